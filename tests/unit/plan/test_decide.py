from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest
import yaml

from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.model.catalog import find_in_catalog
from ai.backend.kvcache.plan.decide import Preparation, decide, prepare
from ai.backend.kvcache.plan.plan import Decision
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Service, Session
from ai.backend.kvcache.policy.settings import Settings, Sharing

GIB = 2**30
SETTINGS = Settings()

#: The labels of an image that says what is inside.
LABELS = {
    "ai.backend.kvcache.engine-version": "0.32.0",
    "ai.backend.kvcache.lmcache-version": "0.5.6",
}

#: The same for LMCache inside vLLM, which is right before vLLM 0.26.
IN_PROCESS_LABELS = {
    "ai.backend.kvcache.engine-version": "0.20.2",
    "ai.backend.kvcache.lmcache-version": "0.4.6",
}

type SessionMaker = Callable[..., Session]


def write_model(directory: Path, config: Path, *, weights_bytes: int = 0, seed: int = 0) -> None:
    """A model folder with a real configuration; its weights are stated or tiny."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_bytes(config.read_bytes())
    (directory / "model.safetensors").write_bytes(bytes([seed]) * 1000)
    if weights_bytes:
        index = {"metadata": {"total_size": weights_bytes}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def kv_folder(tmp_path: Path) -> Path:
    path = tmp_path / "kv"
    path.mkdir()
    return path


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "model"
    write_model(path, data / "models/devstral-2-123b.config.json", weights_bytes=128 * GIB)
    return path


@pytest.fixture
def make(kv_folder: Path, model: Path) -> SessionMaker:
    """A model service with a KV folder at the mount point, as changed by arguments: on CPUs, or
    with GPUs and versions of which LMCache inside vLLM is right."""

    def make_session(**changes: Any) -> Session:
        session = Session(
            kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
            mounts=(
                Mount("my-model", model, PurePosixPath("/models"), False, True),
                Mount("my-kv", kv_folder, PurePosixPath("/kvcache"), True, False),
            ),
            environ={},
            image=Image("local/stable/vllm:1", LABELS),
            gpus=None,
            service=Service(("vllm", "serve", "{model_path}"), PurePosixPath("/models")),
            owner=Owner(),
            shared_memory_bytes=None,
        )
        if "gpus" in changes:
            changes = {"image": Image("local/stable/vllm:1", IN_PROCESS_LABELS), **changes}
        return attrs.evolve(session, **changes)

    return make_session


#: What a session without GPUs is run by.
RUN_BY = ("sh", "/home/config/kvcache/with-server.sh")

EIGHT_GPUS = Gpus("cuda", 8, 80 * GIB)


def serve(*arguments: str) -> Service:
    return Service(("vllm", "serve", "{model_path}", *arguments), PurePosixPath("/models"))


def vllm_config(preparation: Preparation) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(preparation.files["vllm.yaml"])
    return config


def reason(preparation: Preparation) -> str:
    """Why there is no KV cache; asserts that nothing but the plan is given then."""
    assert list(preparation.files) == ["plan.json"]
    assert preparation.environment == {}
    assert preparation.start_command is None
    assert preparation.shared_memory_bytes == 0
    plan = json.loads(preparation.files["plan.json"])
    assert plan["kv_cache"] is False
    return str(plan["no_kv_cache_because"])


def decision_on(what: str, preparation: Preparation) -> tuple[Any, str]:
    """(value, why)."""
    (decision,) = (d for d in preparation.plan.decisions if d.what == what)
    return decision.value, decision.why


class TestDeciding:
    def test_touches_no_folder(self, make: SessionMaker, kv_folder: Path) -> None:
        decided = decide(make(), SETTINGS)
        assert decided.plan.namespace is not None
        assert list(kv_folder.iterdir()) == []
        # What carries it out is decided likewise.
        assert prepare(make(), SETTINGS) == decided
        assert (kv_folder / "ns" / decided.plan.namespace.name).is_dir()

    def test_a_kv_folder_need_not_exist(self, make: SessionMaker) -> None:
        model, kv = make().mounts
        nowhere = attrs.evolve(kv, host_path=Path("/nonexistent"))
        assert decide(make(mounts=(model, nowhere)), SETTINGS).plan.no_kv_cache_because is None

    def test_ways_that_are_refused_are_told(self, make: SessionMaker) -> None:
        image = Image("local/stable/vllm:1", {}, Versions({"vllm": "0.32.0"}, is_complete=True))
        session = make(gpus=EIGHT_GPUS, service=serve("-tp", "8"), image=image)
        preparation = decide(session, SETTINGS)
        assert preparation.plan.adapter == "vllm-tiering"
        plan = json.loads(preparation.files["plan.json"])
        assert plan["refused"] == {
            "lmcache-mp": "the image has no LMCache",
            "lmcache-gds": "the image has no LMCache",
            "lmcache-posix": "the image has no LMCache",
        }

    def test_all_ways_are_refused(self, make: SessionMaker) -> None:
        image = Image("local/stable/vllm:1", {}, Versions({"vllm": "0.32.0"}, is_complete=True))
        session = make(
            gpus=EIGHT_GPUS, service=serve("-tp", "8", "--data-parallel-size", "2"), image=image
        )
        preparation = decide(session, SETTINGS)
        assert reason(preparation).startswith(
            "no lmcache-mp or lmcache-gds or lmcache-posix: the image has no LMCache; "
            "no vllm-tiering: a data parallel size of 2"
        )
        refused = json.loads(preparation.files["plan.json"])["refused"]
        assert list(refused) == ["lmcache-mp", "lmcache-gds", "lmcache-posix", "vllm-tiering"]

    def test_a_session_that_no_way_is_for(self, make: SessionMaker) -> None:
        preparation = decide(make(service=serve("--enable-lora")), SETTINGS)
        assert "LoRA" in reason(preparation)
        assert preparation.plan.refused == {}


class TestOnCpus:
    def test_lmcache_server_on_the_namespace(self, make: SessionMaker, kv_folder: Path) -> None:
        preparation = prepare(make(), SETTINGS)
        plan = preparation.plan
        assert plan.no_kv_cache_because is None
        assert plan.namespace is not None
        assert (kv_folder / "ns" / plan.namespace.name).is_dir()
        transfer = vllm_config(preparation)["kv-transfer-config"]
        assert transfer["kv_connector"] == "LMCacheMPConnector"
        assert transfer["kv_load_failure_policy"] == "recompute"
        server = preparation.files["with-server.sh"]
        assert f'"base_path": "/kvcache/ns/{plan.namespace.name}"' in server
        assert preparation.shared_memory_bytes == 2 * GIB

    def test_start_command(self, make: SessionMaker) -> None:
        preparation = prepare(make(), SETTINGS)
        assert preparation.start_command == (
            *RUN_BY, "vllm", "serve", "/home/config/kvcache/model",
            "--served-model-name", "/models", "--config", "/home/config/kvcache/vllm.yaml",
        )  # fmt: skip
        assert preparation.links == {"model": "/models"}
        assert preparation.plan.add_by_hand is None

    def test_no_json_on_the_command_line(self, make: SessionMaker) -> None:
        command = prepare(make(gpus=EIGHT_GPUS, service=serve("-tp", "8")), SETTINGS).start_command
        assert command is not None
        assert [token for token in command if "{" in token] == []

    def test_users_shared_memory_wins(self, make: SessionMaker) -> None:
        enough = prepare(make(shared_memory_bytes=4 * GIB), SETTINGS)
        assert enough.shared_memory_bytes == 0
        assert enough.plan.warnings == ()
        short = prepare(make(shared_memory_bytes=GIB), SETTINGS)
        assert short.shared_memory_bytes == 0
        assert "--resource-opts shmem=2048m" in short.plan.warnings[0]


class TestOnGpus:
    def test_reference_case(self, make: SessionMaker) -> None:
        preparation = prepare(make(gpus=EIGHT_GPUS, service=serve("-tp", "8")), SETTINGS)
        assert preparation.plan.namespace is not None
        name = preparation.plan.namespace.name
        environment = preparation.environment
        assert environment["LMCACHE_GDS_PATH"] == f"/kvcache/ns/{name}"
        assert environment["LMCACHE_CUFILE_BUFFER_SIZE"] == "24576"
        assert environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
        assert environment["LMCACHE_CONFIG_FILE"] == "/home/config/kvcache/lmcache.yaml"
        assert environment["LMCACHE_PRE_CACHING_HASH_ALGORITHM"] == "sha256_cbor"
        assert environment["PYTHONHASHSEED"] == str(int(name[:8], 16))
        assert preparation.start_command is not None
        assert preparation.start_command[-2:] == ("--gpu-memory-utilization", "0.6")
        assert vllm_config(preparation)["kv-transfer-config"] == {
            "kv_connector": "LMCacheConnectorV1",
            "kv_role": "kv_both",
            # It loads within a step of the scheduler, and computing instead would answer wrongly.
            "kv_load_failure_policy": "fail",
        }
        assert preparation.shared_memory_bytes == 0
        assert "the client has to ask again" in " ".join(preparation.plan.warnings)

    def test_lmcache_file_says_the_same(self, make: SessionMaker) -> None:
        preparation = prepare(make(gpus=EIGHT_GPUS, service=serve("-tp", "8")), SETTINGS)
        options = yaml.safe_load(preparation.files["lmcache.yaml"])
        assert options == {
            "gds_path": preparation.environment["LMCACHE_GDS_PATH"],
            "chunk_size": 256,
            "pre_caching_hash_algorithm": "sha256_cbor",
            "gds_buffer_size": 24_576,
            "save_unfull_chunk": False,
            "local_cpu": False,
            # LMCache stages what it stores in host memory and does not start without any.
            "max_local_cpu_size": 5.0,
        }

    def test_users_utilization_wins(self, make: SessionMaker) -> None:
        service = serve("-tp", "8", "--gpu-memory-utilization", "0.85")
        preparation = prepare(make(gpus=EIGHT_GPUS, service=service), SETTINGS)
        assert preparation.start_command is not None
        assert preparation.start_command.count("--gpu-memory-utilization") == 1
        # 80 - 68 - 1.5 GiB
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "10752"

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("LMCACHE_CUFILE_BUFFER_SIZE", "LMCACHE_GDS_BUFFER_SIZE"),
            ("LMCACHE_GDS_BUFFER_SIZE", "LMCACHE_CUFILE_BUFFER_SIZE"),
        ],
    )
    def test_users_buffer_wins_under_both_names(
        self, make: SessionMaker, theirs: str, ours: str
    ) -> None:
        session = make(gpus=EIGHT_GPUS, service=serve("-tp", "8"), environ={theirs: "8192"})
        preparation = prepare(session, SETTINGS)
        assert theirs not in preparation.environment
        assert preparation.environment[ours] == "8192"
        assert preparation.start_command is not None
        # 0.9 - 8 / 80
        assert preparation.start_command[-1] == "0.8"
        assert "set by the user" in preparation.files["plan.json"]

    def test_users_buffer_is_nonsense(self, make: SessionMaker) -> None:
        session = make(gpus=EIGHT_GPUS, environ={"LMCACHE_GDS_BUFFER_SIZE": "8g"})
        assert "LMCACHE_GDS_BUFFER_SIZE = '8g'" in reason(prepare(session, SETTINGS))

    def test_users_other_values_win_and_are_not_recorded(self, make: SessionMaker) -> None:
        session = make(
            gpus=EIGHT_GPUS,
            service=serve("-tp", "8"),
            environ={"PYTHONHASHSEED": "4711", "LMCACHE_GDS_PATH": "/secret/path"},
        )
        preparation = prepare(session, SETTINGS)
        assert "PYTHONHASHSEED" not in preparation.environment
        assert "LMCACHE_GDS_PATH" not in preparation.environment
        assert "/secret/path" not in preparation.files["plan.json"]

    def test_parallel_size_from_the_environment(self, make: SessionMaker) -> None:
        session = make(gpus=EIGHT_GPUS, environ={"VLLM_TP_SIZE": "8"})
        assert prepare(session, SETTINGS).environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"

    def test_extra_arguments_win_over_the_start_command(self, make: SessionMaker) -> None:
        session = make(
            gpus=EIGHT_GPUS,
            service=serve("-tp", "8", "--max-model-len", "262144"),
            environ={"VLLM_EXTRA_ARGS": "--max-model-len 131072"},
        )
        # 2 x 5.5 GiB x 1.05 = 11.55, in whole GiB
        assert prepare(session, SETTINGS).environment["LMCACHE_GDS_BUFFER_SIZE"] == "12288"

    def test_vllms_default_is_one_gpu(self, make: SessionMaker) -> None:
        # 128 GiB of weights on one GPU of 80 GiB.
        refused = prepare(make(gpus=EIGHT_GPUS), SETTINGS).plan.refused
        assert "128 GiB of weights and at least " in refused["lmcache-gds"]
        assert "so vLLM does not start, with KV cache or without" in refused["lmcache-gds"]

    def test_other_accelerators(self, make: SessionMaker) -> None:
        session = make(gpus=Gpus("rocm", 8, 80 * GIB))
        assert "'rocm' accelerators" in reason(prepare(session, SETTINGS))

    def test_concurrent_transfers(self, make: SessionMaker) -> None:
        session = make(gpus=EIGHT_GPUS, service=serve("-tp", "8"))
        preparation = prepare(session, Settings(concurrent_transfers=1))
        # 11 GiB x 1.05 = 11.55, in whole GiB
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "12288"


class TestUsersConfigFile:
    @pytest.fixture(autouse=True)
    def config(self, model: Path) -> None:
        content = {"tensor-parallel-size": 8, "max-model-len": 131072, "enforce-eager": True}
        (model / "vllm.yaml").write_text(yaml.safe_dump(content))

    @pytest.mark.parametrize("name", ["vllm.yaml", "/models/vllm.yaml"])
    def test_merged_into_ours(self, make: SessionMaker, name: str) -> None:
        preparation = prepare(make(gpus=EIGHT_GPUS, service=serve("--config", name)), SETTINGS)
        config = vllm_config(preparation)
        assert config["enforce-eager"] is True
        assert config["kv-transfer-config"]["kv_connector"] == "LMCacheConnectorV1"
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "12288"
        assert preparation.start_command == (
            "vllm", "serve", "/home/config/kvcache/model", "--served-model-name", "/models",
            "--config", "/home/config/kvcache/vllm.yaml",
            "--gpu-memory-utilization", "0.75",
        )  # fmt: skip

    def test_command_line_wins_over_the_file(self, make: SessionMaker) -> None:
        service = serve("--config", "vllm.yaml", "--max-model-len", "262144")
        preparation = prepare(make(gpus=EIGHT_GPUS, service=service), SETTINGS)
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"

    def test_named_in_extra_arguments(self, make: SessionMaker) -> None:
        environ = {"VLLM_EXTRA_ARGS": "--config vllm.yaml --served-model-name 'my model'"}
        preparation = prepare(make(gpus=EIGHT_GPUS, environ=environ), SETTINGS)
        assert preparation.environment["VLLM_EXTRA_ARGS"] == "--served-model-name 'my model'"
        assert preparation.start_command is not None
        assert preparation.start_command.count("--config") == 1

    def test_form_that_vllm_ignores(self, make: SessionMaker) -> None:
        preparation = prepare(make(service=serve("--config=vllm.yaml")), SETTINGS)
        assert "enforce-eager" not in vllm_config(preparation)
        assert "vLLM ignores --config=vllm.yaml" in preparation.plan.warnings[0]

    def test_connector_in_it(self, make: SessionMaker, model: Path) -> None:
        (model / "vllm.yaml").write_text("kv-transfer-config: {kv_connector: Mine}")
        session = make(service=serve("--config", "vllm.yaml"))
        assert "--kv-transfer-config is already given" in reason(prepare(session, SETTINGS))

    @pytest.mark.parametrize("content", ["a: [", "- 1", "\x00", "a: " + "[" * 50_000])
    def test_unusable(self, make: SessionMaker, model: Path, content: str) -> None:
        (model / "vllm.yaml").write_text(content)
        session = make(service=serve("--config", "vllm.yaml"))
        assert "--config vllm.yaml" in reason(prepare(session, SETTINGS))

    def test_what_cannot_be_read_is_not_quoted(self, make: SessionMaker, model: Path) -> None:
        (model / "vllm.yaml").write_text("port: 1\napi-key: 's3cr3t\n")
        session = make(service=serve("--config", "vllm.yaml"))
        # The text that began there has no end.
        assert reason(prepare(session, SETTINGS)) == "--config vllm.yaml is not valid YAML (line 3)"

    def test_not_there(self, make: SessionMaker) -> None:
        session = make(service=serve("--config", "/models/none.yaml"))
        assert "cannot be read: No such file" in reason(prepare(session, SETTINGS))

    def test_a_way_out_of_the_folder(self, make: SessionMaker, tmp_path: Path) -> None:
        # A file of this host beside the folder, which a container must not get to see.
        (tmp_path / "host.yaml").write_text("secret: 1")
        session = make(service=serve("--config", "/models/../host.yaml"))
        assert "lies in no mounted folder" in reason(prepare(session, SETTINGS))

    def test_a_link_out_of_the_folder(
        self, make: SessionMaker, model: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "host.yaml").write_text("secret: 1")
        (model / "linked.yaml").symlink_to(tmp_path / "host.yaml")
        session = make(service=serve("--config", "linked.yaml"))
        assert "leads out of its folder" in reason(prepare(session, SETTINGS))

    def test_not_in_a_mounted_folder(self, make: SessionMaker) -> None:
        session = make(service=serve("--config", "/etc/vllm.yaml"))
        assert "lies in no mounted folder" in reason(prepare(session, SETTINGS))


class TestFolder:
    def test_found_by_name(self, make: SessionMaker, kv_folder: Path, model: Path) -> None:
        session = make(
            mounts=(
                Mount("my-model", model, PurePosixPath("/models"), False, True),
                Mount("my-kv", kv_folder, PurePosixPath("/home/work/my-kv"), True, False),
            ),
            environ={"BACKENDAI_KVCACHE_FOLDER": "my-kv"},
        )
        plan = prepare(session, SETTINGS).plan
        assert plan.folder == "my-kv"
        assert str(plan.storage).startswith("/home/work/my-kv/ns/")

    def test_name_that_is_not_mounted(self, make: SessionMaker) -> None:
        session = make(environ={"BACKENDAI_KVCACHE_FOLDER": "other"})
        message = reason(prepare(session, SETTINGS))
        assert "'other'" in message
        assert "(my-model, my-kv)" in message

    def test_model_folder(self, make: SessionMaker) -> None:
        session = make(environ={"BACKENDAI_KVCACHE_FOLDER": "my-model"})
        assert "'my-model' is a model folder" in reason(prepare(session, SETTINGS))

    def test_read_only(self, make: SessionMaker, kv_folder: Path) -> None:
        session = make()
        kv = attrs.evolve(session.mounts[1], writable=False)
        session = attrs.evolve(session, mounts=(session.mounts[0], kv))
        assert "mounted read-only" in reason(prepare(session, SETTINGS))
        assert list(kv_folder.iterdir()) == []


class TestKindsOfModels:
    def test_windows_are_counted_in_full(self, make: SessionMaker, model: Path, data: Path) -> None:
        write_model(model, data / "models/gemma-3-27b.config.json", weights_bytes=54 * GIB)
        service = serve("-tp", "8", "--language-model-only")
        preparation = prepare(make(gpus=EIGHT_GPUS, service=service), SETTINGS)
        # 62 layers x 2 of 16 heads x 2 x 128 x 2 bytes x 131,072 tokens = 7.75 GiB, twice, and
        # 5 % more: 16.275, in whole GiB
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "17408"
        assert "hybrid KV cache manager off" in preparation.plan.warnings[0]

    def test_latent_attention(self, make: SessionMaker, model: Path, data: Path) -> None:
        write_model(model, data / "models/deepseek-v3.config.json", weights_bytes=128 * GIB)
        preparation = prepare(make(gpus=EIGHT_GPUS, service=serve("-tp", "8")), SETTINGS)
        # On every rank 70,272 x 163,840 tokens = 10.72 GiB, twice and 5 % = 22.5, in whole GiB.
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "23552"
        # 0.9 - 23 / 80 = 0.6125
        assert preparation.plan.arguments[-1] == "0.61"

    @pytest.mark.parametrize(
        ("arguments", "refused"),
        [
            # Chunks of 256 tokens hold whole blocks of all ranks, of 128 tokens at most each.
            (("-dcp", "2"), None),
            (("-dcp", "8"), "blocks of up to 128 tokens on 8 ranks"),
            (("-dcp", "8", "--block-size", "32"), None),
            (("-dcp", "8", "--block-size", "64"), "blocks of 64 tokens on 8 ranks"),
        ],
    )
    def test_decode_context_parallel(
        self,
        make: SessionMaker,
        model: Path,
        data: Path,
        arguments: tuple[str, ...],
        refused: str | None,
    ) -> None:
        write_model(model, data / "models/deepseek-v3.config.json", weights_bytes=400 * GIB)
        session = make(
            gpus=EIGHT_GPUS,
            service=serve("-tp", "8", *arguments),
            image=Image("local/stable/vllm:1", LABELS),
            memory_bytes=1024 * GIB,
        )
        plan = prepare(session, SETTINGS).plan
        if refused is None:
            assert plan.adapter == "lmcache-mp"
        else:
            assert refused in plan.refused["lmcache-mp"]
            assert refused in plan.refused["vllm-tiering"]
            assert "where ranks share one context" in plan.refused["lmcache-gds"]

    def test_unknown_family_is_planned_with_a_warning(
        self, make: SessionMaker, model: Path, data: Path
    ) -> None:
        config = json.loads((data / "models/llama-3.1-8b.config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "model_type": "somebodys"}))
        preparation = prepare(make(), SETTINGS)
        assert preparation.plan.no_kv_cache_because is None
        assert "'somebodys' is not known" in preparation.plan.warnings[0]

    def test_mistrals_own_description(self, make: SessionMaker, model: Path) -> None:
        (model / "config.json").unlink()
        params = {"dim": 4096, "n_layers": 32, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8}
        (model / "params.json").write_text(json.dumps(params))
        plan = json.loads(prepare(make(), SETTINGS).files["plan.json"])
        assert {d["what"]: d["value"] for d in plan["decisions"]}["bytes_per_token"] == 131_072


class TestFaults:
    """Whatever is wrong, the session gets a plan with the reason, and nothing else."""

    def test_no_config(self, make: SessionMaker, model: Path) -> None:
        (model / "config.json").unlink()
        assert "neither config.json nor params.json" in reason(prepare(make(), SETTINGS))

    def test_broken_config(self, make: SessionMaker, model: Path) -> None:
        (model / "config.json").write_text("{")
        assert "not valid JSON" in reason(prepare(make(), SETTINGS))

    def test_family_that_is_not_covered(self, make: SessionMaker, model: Path) -> None:
        (model / "config.json").write_text('{"model_type": "deepseek_v4"}')
        assert "'deepseek_v4'" in reason(prepare(make(), SETTINGS))

    def test_no_weights(self, make: SessionMaker, model: Path) -> None:
        # The configuration alone would give two fine-tunes one namespace.
        for path in model.glob("model.safetensors*"):
            path.unlink()
        assert "no weight files" in reason(prepare(make(), SETTINGS))

    def test_recurrent_layers(self, make: SessionMaker, model: Path) -> None:
        config = find_in_catalog("qwen3-next-80b-a3b").config
        (model / "config.json").write_text(json.dumps(config))
        assert "the model has recurrent layers" in reason(prepare(make(), SETTINGS))

    def test_heads_that_cannot_be_divided(self, make: SessionMaker) -> None:
        session = make(gpus=EIGHT_GPUS, service=serve("-tp", "7"))
        assert "tensor-parallel size of 7" in reason(prepare(session, SETTINGS))

    def test_model_from_a_hub(self, make: SessionMaker) -> None:
        service = Service(("vllm", "serve", "org/model"), PurePosixPath("/models"))
        assert "'/models/org/model' is not in" in reason(prepare(make(service=service), SETTINGS))

    def test_connector_of_the_users_own(self, make: SessionMaker) -> None:
        session = make(service=serve("--kv-transfer-config.kv_connector", "Mine"))
        assert "left alone" in reason(prepare(session, SETTINGS))

    def test_lmcache_configuration_of_the_users_own(self, make: SessionMaker) -> None:
        # Our variables would override what that file says.
        session = make(gpus=EIGHT_GPUS, environ={"LMCACHE_CONFIG_FILE": "/models/lmcache.yaml"})
        assert "LMCACHE_CONFIG_FILE is already set" in reason(prepare(session, SETTINGS))

    def test_lora(self, make: SessionMaker) -> None:
        assert "LoRA" in reason(prepare(make(service=serve("--enable-lora")), SETTINGS))

    def test_scales_that_each_start_computes(self, make: SessionMaker) -> None:
        service = serve("--kv-cache-dtype", "fp8", "--calculate-kv-scales")
        assert "computes its own scales" in reason(prepare(make(service=service), SETTINGS))

    def test_blocks_that_do_not_fit_chunks(self, make: SessionMaker) -> None:
        preparation = prepare(make(service=serve("--block-size", "96")), SETTINGS)
        assert "a block size of 96 does not divide" in reason(preparation)
        assert prepare(make(service=serve("--block-size", "32")), SETTINGS).plan.namespace

    def test_several_engines_need_several_servers(self, make: SessionMaker) -> None:
        service = serve("--data-parallel-size", "2")
        assert "data parallel size of 2" in reason(prepare(make(service=service), SETTINGS))
        on_gpus = prepare(make(gpus=EIGHT_GPUS, service=serve("-tp", "8", "-dp", "2")), SETTINGS)
        assert on_gpus.plan.no_kv_cache_because is None

    @pytest.mark.parametrize(
        ("argument", "note"),
        [
            ("--no-enable-prefix-caching", "prefix caching is off"),
            ("--enable-sleep-mode", "a sleeping engine keeps the transfer buffer"),
            ("--speculative-config=x", "a draft model runs beside"),
        ],
    )
    def test_what_is_told_and_no_conflict(
        self, make: SessionMaker, argument: str, note: str
    ) -> None:
        plan = prepare(make(service=serve(argument)), SETTINGS).plan
        assert plan.no_kv_cache_because is None
        assert note in plan.warnings[0]

    def test_overrides_change_the_model(self, make: SessionMaker) -> None:
        session = make(
            gpus=EIGHT_GPUS,
            service=serve("-tp", "8", "--hf-overrides", '{"max_position_embeddings": 131072}'),
        )
        # 5.5 GiB twice and 5 %, in whole GiB
        assert prepare(session, SETTINGS).environment["LMCACHE_GDS_BUFFER_SIZE"] == "12288"

    @pytest.mark.parametrize("overrides", ["{", "[]", "5"])
    def test_overrides_that_are_nonsense(self, make: SessionMaker, overrides: str) -> None:
        service = serve("--hf-overrides", overrides)
        because = reason(prepare(make(service=service), SETTINGS))
        assert f"overrides of the model's configuration ({overrides}) are n" in because

    def test_unbalanced_quotes(self, make: SessionMaker) -> None:
        session = make(environ={"VLLM_EXTRA_ARGS": "--served-model-name 'x"})
        assert "unbalanced quotes" in reason(prepare(session, SETTINGS))


def found(**packages: str) -> Image:
    """An image whose files were looked at."""
    return Image("local/stable/engine:1", {}, Versions(packages, is_complete=True))


SGLANG = found(sglang="0.5.23")


def sglang(*arguments: str) -> Service:
    command = ("python3", "-m", "sglang.launch_server", "--model-path", "{model_path}")
    return Service((*command, *arguments), PurePosixPath("/models"))


class TestNewerVersionsOnGpus:
    """From vLLM 0.26 on LMCache inside vLLM answers wrongly, so its server is taken."""

    @pytest.fixture
    def on_gpus(self, make: SessionMaker) -> SessionMaker:
        def make_session(vllm: str, lmcache: str, **changes: Any) -> Session:
            session = make(
                gpus=EIGHT_GPUS,
                service=serve("-tp", "8"),
                memory_bytes=1024 * GIB,
                image=found(vllm=vllm, lmcache=lmcache),
            )
            return attrs.evolve(session, **changes)

        return make_session

    def test_lmcaches_server(self, on_gpus: SessionMaker) -> None:
        preparation = prepare(on_gpus("0.33.0", "0.5.6"), SETTINGS)
        assert preparation.plan.adapter == "lmcache-mp"
        transfer = vllm_config(preparation)["kv-transfer-config"]
        assert transfer["kv_connector"] == "LMCacheMPConnector"
        # It loads between two steps of the scheduler.
        assert transfer["kv_load_failure_policy"] == "recompute"
        assert "--supported-transfer-mode auto" in preparation.files["with-server.sh"]
        # A quarter of 1,024 GiB for all ranks.
        assert "--l1-size-gb 256 " in preparation.files["with-server.sh"]

    def test_vllms_own_with_an_older_lmcache(self, on_gpus: SessionMaker) -> None:
        plan = prepare(on_gpus("0.32.0", "0.5.5"), SETTINGS).plan
        assert plan.adapter == "vllm-tiering"
        assert "LMCache 0.5.6 or later" in plan.refused["lmcache-mp"]

    def test_nothing_between(self, on_gpus: SessionMaker) -> None:
        why = reason(prepare(on_gpus("0.29.0", "0.5.2"), SETTINGS))
        assert "use an image with LMCache 0.5.6 or later" in why
        assert "vLLM 0.29.0 is too old, 0.32.0 or later is needed" in why

    def test_gpudirect_storage_is_refused_with_its_reason(self, on_gpus: SessionMaker) -> None:
        settings = Settings(wish=Wish(transport=Transport.GDS))
        preparation = prepare(on_gpus("0.32.0", "0.5.6"), settings)
        assert reason(preparation).startswith(
            "vLLM 0.32.0 with LMCache 0.5.6: vLLM keeps keys and values in another form from 0.26"
        )
        assert list(preparation.plan.refused) == ["lmcache-gds"]

    def test_layers_with_unequal_heads(
        self, on_gpus: SessionMaker, model: Path, tmp_path: Path
    ) -> None:
        config = tmp_path / "gemma.json"
        config.write_text(json.dumps(dict(find_in_catalog("gemma-4-31b").config)))
        write_model(model, config, weights_bytes=60 * GIB)
        preparation = prepare(on_gpus("0.32.0", "0.5.2"), SETTINGS)
        assert preparation.plan.adapter == "vllm-tiering"
        transfer = vllm_config(preparation)["kv-transfer-config"]
        extra = transfer["kv_connector_extra_config"]
        # A number of tokens would have to be the same number of blocks of all layers.
        assert "block_size" not in extra
        assert extra["blocks_per_chunk"] == 16

    @pytest.mark.parametrize(
        ("arguments", "environ", "adapter"),
        [
            ((), {"VLLM_KV_CACHE_LAYOUT": "HND"}, "lmcache-mp"),
            ((), {"VLLM_KV_CACHE_LAYOUT": "LHBNC"}, "vllm-tiering"),
            ((), {"VLLM_KV_CACHE_LAYOUT": "BHLNC"}, "vllm-tiering"),
            (("--enable-prompt-embeds",), {}, "vllm-tiering"),
            (("--block-size", "64"), {}, "lmcache-mp"),
            (("--block-size", "128"), {}, "vllm-tiering"),
            (("--block-size=256",), {}, "vllm-tiering"),
            (("--block-size", "128", "--attention-backend", "FLASH_ATTN"), {}, "lmcache-mp"),
            (("--block-size", "128", "--attention-backend=triton_attn"), {}, "lmcache-mp"),
            (("--block-size", "128", "--attention-backend", "FLASHINFER"), {}, "vllm-tiering"),
            (("--enable-sleep-mode",), {}, "vllm-tiering"),
            (("--enable-cumem-allocator",), {}, "vllm-tiering"),
            ((), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "vllm-tiering"),
            ((), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "lmcache-mp"),
        ],
    )
    def test_what_was_told(
        self,
        on_gpus: SessionMaker,
        arguments: tuple[str, ...],
        environ: dict[str, str],
        adapter: str,
    ) -> None:
        session = on_gpus("0.33.0", "0.5.6", service=serve("-tp", "8", *arguments), environ=environ)
        assert prepare(session, SETTINGS).plan.adapter == adapter

    @pytest.mark.parametrize(
        ("arguments", "environ", "gpu_gib", "gpu", "adapter"),
        [
            ((), {}, 80, None, "lmcache-gds"),
            ((), {}, 141, "NVIDIA H200", "lmcache-gds"),
            # Of a generation on which vLLM takes FlashInfer by itself.
            ((), {}, 180, None, None),
            ((), {}, 90, "NVIDIA B200", None),
            (("--attention-backend", "FLASHMLA"), {}, 180, "NVIDIA B200", "lmcache-gds"),
            (("--attention-backend", "FLASHINFER_MLA"), {}, 80, None, None),
            (("--attention-backend", "TOKENSPEED_MLA"), {}, 80, None, None),
            ((), {"VLLM_KV_CACHE_LAYOUT": "NHD"}, 80, None, None),
        ],
    )
    def test_latent_attention_with_an_older_lmcache(
        self,
        on_gpus: SessionMaker,
        model: Path,
        data: Path,
        arguments: tuple[str, ...],
        environ: dict[str, str],
        gpu_gib: int,
        gpu: str | None,
        adapter: str | None,
    ) -> None:
        write_model(model, data / "models/deepseek-v3.config.json", weights_bytes=200 * GIB)
        session = on_gpus(
            "0.29.0",
            "0.5.2",
            service=serve("-tp", "8", "--max-model-len", "32768", *arguments),
            environ=environ,
            gpus=Gpus("cuda", 8, gpu_gib * GIB, model=gpu),
        )
        assert prepare(session, SETTINGS).plan.adapter == adapter

    @pytest.mark.parametrize(
        ("lmcache", "arguments", "adapter"),
        [
            ("0.4.6", (), None),
            ("0.5.4", (), None),
            ("0.5.5", (), "lmcache-gds"),
            ("0.5.4", ("--language-model-only",), "lmcache-gds"),
        ],
    )
    def test_images(
        self,
        on_gpus: SessionMaker,
        model: Path,
        tmp_path: Path,
        lmcache: str,
        arguments: tuple[str, ...],
        adapter: str | None,
    ) -> None:
        config = tmp_path / "vl.json"
        config.write_text(json.dumps(dict(find_in_catalog("qwen2.5-vl-72b").config)))
        write_model(model, config, weights_bytes=136 * GIB)
        session = on_gpus("0.25.1", lmcache, service=serve("-tp", "8", *arguments))
        assert prepare(session, SETTINGS).plan.adapter == adapter

    def test_share_of_a_gpu(self, on_gpus: SessionMaker, model: Path, data: Path) -> None:
        write_model(model, data / "models/llama-3.1-8b.config.json", weights_bytes=15 * GIB)
        share = Gpus("cuda", 1, 40 * GIB, is_fraction=True)
        session = on_gpus("0.33.0", "0.5.6", gpus=share, service=serve())
        assert prepare(session, SETTINGS).plan.adapter == "vllm-tiering"

    def test_a_later_version(self, on_gpus: SessionMaker) -> None:
        plan = prepare(on_gpus("0.34.0", "0.5.6"), SETTINGS).plan
        assert plan.adapter == "lmcache-mp"
        assert "vLLM 0.34.0 is later than 0.33.0" in " ".join(plan.warnings)

    def test_an_image_that_says_nothing(self, make: SessionMaker) -> None:
        for gpus in (EIGHT_GPUS, None):
            session = make(gpus=gpus, service=serve("-tp", "8"), image=Image("somebodys", {}))
            why = reason(prepare(session, SETTINGS))
            assert "ai.backend.kvcache.engine-version" in why
            assert "ai.backend.kvcache.lmcache-version" in why


class TestOtherWays:
    """The reference model on eight GPUs of 80 GiB: 11 GiB a context and GPU, 1 TiB of memory."""

    @pytest.fixture
    def on_gpus(self, make: SessionMaker) -> SessionMaker:
        def make_session(**changes: Any) -> Session:
            session = make(gpus=EIGHT_GPUS, service=serve("-tp", "8"), memory_bytes=1024 * GIB)
            return attrs.evolve(session, **changes)

        return make_session

    def test_ordinary_files(self, on_gpus: SessionMaker) -> None:
        settings = Settings(wish=Wish(transport=Transport.POSIX))
        preparation = prepare(on_gpus(), settings)
        assert preparation.plan.adapter == "lmcache-posix"
        assert preparation.plan.budget is None
        storage = preparation.plan.storage
        assert preparation.environment["LMCACHE_REMOTE_URL"] == f"fs://localhost:0{storage}"
        assert preparation.environment["LMCACHE_LOCAL_CPU"] == "True"
        # A quarter of 1,024 GiB for eight ranks.
        assert preparation.environment["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "32.0"
        # Two sessions that store one block do not write to one file.
        assert json.loads(preparation.environment["LMCACHE_EXTRA_CONFIG"]) == {
            "fs_connector_relative_tmp_dir": ".tmp-5f0c2f3e-0000-4000-8000-000000000000"
        }
        assert preparation.start_command is not None
        assert "--gpu-memory-utilization" not in preparation.start_command

    def test_directory_of_the_counters(self, on_gpus: SessionMaker) -> None:
        preparation = prepare(on_gpus(), Settings(wish=Wish(transport=Transport.POSIX)))
        assert preparation.environment["PROMETHEUS_MULTIPROC_DIR"] == "/run/kvcache-metrics"
        assert preparation.memory_directories == (PurePosixPath("/run/kvcache-metrics"),)

    def test_users_own_directory_of_the_counters(self, on_gpus: SessionMaker) -> None:
        session = on_gpus(environ={"PROMETHEUS_MULTIPROC_DIR": "/tmp/mine"})
        preparation = prepare(session, Settings(wish=Wish(transport=Transport.POSIX)))
        assert "PROMETHEUS_MULTIPROC_DIR" not in preparation.environment
        assert preparation.memory_directories == ()
        assert decision_on("PROMETHEUS_MULTIPROC_DIR", preparation) == (
            "left alone",
            "set by the user",
        )
        assert "/tmp/mine" not in preparation.files["plan.json"]

    def test_no_counters_of_gpudirect_storage(self, on_gpus: SessionMaker) -> None:
        # LMCache does not count there what it loads, and a page would say that it is nothing.
        preparation = prepare(on_gpus(), SETTINGS)
        assert preparation.plan.adapter == "lmcache-gds"
        assert "PROMETHEUS_MULTIPROC_DIR" not in preparation.environment
        assert preparation.memory_directories == ()

    def test_host_memory_for_transfers_only(self, on_gpus: SessionMaker) -> None:
        settings = Settings(wish=Wish(transport=Transport.POSIX), cpu_tier_bytes=0)
        environment = prepare(on_gpus(), settings).environment
        assert environment["LMCACHE_LOCAL_CPU"] == "False"
        # 262,144 tokens x 45,056 B = 11 GiB, and 64 chunks of 256 x 45,056 B = 704 MiB.
        assert environment["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "11.6875"

    def test_too_little_host_memory(self, on_gpus: SessionMaker) -> None:
        settings = Settings(wish=Wish(transport=Transport.POSIX))
        assert "of host memory" in reason(prepare(on_gpus(memory_bytes=256 * GIB), settings))

    def test_vllms_own_where_lmcache_is_missing(self, on_gpus: SessionMaker) -> None:
        preparation = prepare(on_gpus(image=found(vllm="0.32.0")), SETTINGS)
        assert preparation.plan.adapter == "vllm-tiering"
        assert vllm_config(preparation)["kv-transfer-config"] == {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "spec_name": "TieringOffloadingSpec",
                "cpu_bytes_to_use": 256 * GIB,
                "block_size": 256,
                "secondary_tiers": [{"type": "fs", "root_dir": str(preparation.plan.storage)}],
            },
        }
        # The host memory lies in /dev/shm, with 1 GiB for the rest.
        assert preparation.shared_memory_bytes == 257 * GIB

    def test_too_little_shared_memory_for_vllms_own(self, on_gpus: SessionMaker) -> None:
        session = on_gpus(image=found(vllm="0.32.0"), shared_memory_bytes=64 * GIB)
        # vLLM would not start.
        assert "shmem=263168m" in reason(prepare(session, SETTINGS))

    def test_little_host_memory_for_stores(self, on_gpus: SessionMaker) -> None:
        # A quarter of 8 GiB for eight ranks are 22 chunks of 11.3 MiB each.
        preparation = prepare(on_gpus(memory_bytes=8 * GIB), SETTINGS)
        assert preparation.environment["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "0.25"
        assert "stored whole" in " ".join(preparation.plan.warnings)

    def test_sglang(self, on_gpus: SessionMaker) -> None:
        session = on_gpus(image=SGLANG, service=sglang("--tp", "8"))
        preparation = prepare(session, SETTINGS)
        plan = preparation.plan
        assert plan.adapter == "sglang-hicache"
        assert preparation.environment == {
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(plan.storage)
        }
        assert preparation.start_command == (
            *("python3", "-m", "sglang.launch_server", "--model-path"),
            *("/home/config/kvcache/model", "--tp", "8", "--served-model-name", "/models"),
            *("--enable-hierarchical-cache", "--hicache-storage-backend", "file"),
            # A quarter of 1,024 GiB for eight, in units of 10^9 bytes.
            *("--hicache-size", "34", "--hicache-write-policy", "write_through"),
            *("--page-size", "64", "--enable-metrics"),
        )
        assert list(preparation.files) == ["plan.json"]

    def test_sglangs_own_config_file_stays(self, on_gpus: SessionMaker, model: Path) -> None:
        (model / "mine.yaml").write_text("tp-size: 8\npage-size: 32\n")
        session = on_gpus(image=SGLANG, service=sglang("--config", "mine.yaml"))
        preparation = prepare(session, SETTINGS)
        assert preparation.start_command is not None
        assert preparation.start_command[5:7] == ("--config", "mine.yaml")
        assert "--page-size" not in preparation.start_command
        assert Decision("tensor_parallel", 8, "as the engine is told") in preparation.plan.decisions

    @pytest.mark.parametrize(
        ("arguments", "because"),
        [
            (("--disable-radix-cache",), "prefix caching is off"),
            (("--enable-hicache",), "--enable-hicache is already given"),
            (("--page-size", "48"), "a block size of 48 does not divide"),
            (("--served-model-name", "n" * 161), "give a shorter --served-model-name"),
            (("--dp-size", "2"), "data parallel size of 2"),
            (("--lora-paths", "a=/a"), "LoRA"),
        ],
    )
    def test_what_sglang_cannot_have(
        self, on_gpus: SessionMaker, arguments: tuple[str, ...], because: str
    ) -> None:
        session = on_gpus(image=SGLANG, service=sglang("--tp", "8", *arguments))
        assert because in reason(prepare(session, SETTINGS))

    def test_sglang_is_not_started_where_it_would_refuse(self, on_gpus: SessionMaker) -> None:
        session = on_gpus(
            image=SGLANG,
            service=sglang("--tp", "8", "--context-length", "1024"),
            memory_bytes=21 * GIB,
        )
        assert "needs 20 GiB" in reason(prepare(session, SETTINGS))

    def test_dynamo(self, on_gpus: SessionMaker) -> None:
        command = ("python3", "-m", "dynamo.vllm", "--model", "/models", "-tp", "8")
        session = on_gpus(
            image=found(vllm="0.31.0", kvbm="1.6.1"),
            service=Service((*command, "--block-size", "32"), PurePosixPath("/models")),
        )
        assert "only where connector names a way" in reason(prepare(session, SETTINGS))
        preparation = prepare(session, Settings(wish=Wish("dynamo-kvbm")))
        assert preparation.plan.adapter == "dynamo-kvbm"
        environment = preparation.environment
        # A quarter of 1,024 GiB in units of 10^9 bytes, and four times that on disk.
        assert environment["DYN_KVBM_CPU_CACHE_GB"] == "274"
        assert environment["DYN_KVBM_DISK_CACHE_GB"] == "1096"
        assert environment["DYN_KVBM_DISK_CACHE_DIR"] == str(preparation.plan.storage)
        assert preparation.start_command is not None
        assert preparation.start_command[-2:] == ("--config", "/home/config/kvcache/vllm.yaml")
        transfer = vllm_config(preparation)["kv-transfer-config"]
        assert transfer["kv_connector"] == "DynamoConnector"
        warnings = " ".join(preparation.plan.warnings)
        assert "forgets everything" in warnings
        assert "answer with another request's cache" in warnings

    def test_ways_have_namespaces_of_their_own(self, on_gpus: SessionMaker) -> None:
        older, newer = (Image("image", labels) for labels in (IN_PROCESS_LABELS, LABELS))
        ways = {
            "lmcache-gds": older,
            "lmcache-posix": older,
            "lmcache-mp": newer,
            "vllm-tiering": newer,
        }
        plans = [
            prepare(on_gpus(image=image), Settings(wish=Wish(way))).plan
            for way, image in ways.items()
        ]
        assert [plan.adapter for plan in plans] == list(ways)
        assert len({plan.namespace and plan.namespace.name for plan in plans}) == len(ways)

    def test_data_parallel_engines_share_the_memory(self, on_gpus: SessionMaker) -> None:
        one = on_gpus(service=serve("-tp", "4"), memory_bytes=64 * GIB)
        two = on_gpus(service=serve("-tp", "4", "-dp", "2"), memory_bytes=64 * GIB)
        # A quarter of 64 GiB for four ranks, and for eight.
        sizes = [
            prepare(session, SETTINGS).environment["LMCACHE_MAX_LOCAL_CPU_SIZE"]
            for session in (one, two)
        ]
        assert sizes == ["4.0", "2.0"]

    def test_metrics_of_the_server(self, make: SessionMaker) -> None:
        (metrics,) = prepare(make(), SETTINGS).plan.to_json()["metrics"]
        assert metrics["name"] == "lmcache-server"
        assert metrics["host"].startswith("127.")
        assert metrics["path"] == "/metrics"


class TestShellsLine:
    def test_shells_line_is_completed(self, make: SessionMaker) -> None:
        service = Service(("bash", "-c", "exec vllm serve $M -tp 8"), PurePosixPath("/models"))
        session = make(gpus=EIGHT_GPUS, service=service, environ={"M": "/models"})
        assert prepare(session, SETTINGS).start_command == (
            "bash", "-c", "exec vllm serve /home/config/kvcache/model -tp 8 "
            "--served-model-name /models --config /home/config/kvcache/vllm.yaml "
            "--gpu-memory-utilization 0.6",
        )  # fmt: skip

    def test_arguments_that_the_shell_drops(self, make: SessionMaker) -> None:
        service = Service(("bash", "-c", "vllm serve /models -tp 8"), PurePosixPath("/models"))
        environ = {"VLLM_EXTRA_ARGS": "--max-model-len 131072"}
        preparation = prepare(make(gpus=EIGHT_GPUS, service=service, environ=environ), SETTINGS)
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
        assert "--max-model-len 131072 from variables" in " ".join(preparation.plan.warnings)

    def test_keys_among_them_are_not_recorded(self, make: SessionMaker) -> None:
        service = Service(("bash", "-c", "vllm serve /models -tp 8"), PurePosixPath("/models"))
        environ = {"VLLM_EXTRA_ARGS": "--api-key s3cr3t"}
        preparation = prepare(make(gpus=EIGHT_GPUS, service=service, environ=environ), SETTINGS)
        assert "--api-key '***' from variables" in " ".join(preparation.plan.warnings)
        assert "s3cr3t" not in json.dumps(preparation.plan.to_json())


class TestModelLink:
    """The engine serves the model under one path, since LMCache's keys carry the path."""

    @pytest.mark.parametrize(
        ("arguments", "link", "command"),
        [
            (("{model_path}",), "/models", ("/home/config/kvcache/model",)),
            (("/models",), "/models", ("/home/config/kvcache/model",)),
            (("--model", "/models"), "/models", ("--model", "/home/config/kvcache/model")),
            (("--model=/models",), "/models", ("--model=/home/config/kvcache/model",)),
        ],
    )
    def test_ways_to_name_it(
        self, make: SessionMaker, arguments: tuple[str, ...], link: str, command: tuple[str, ...]
    ) -> None:
        service = Service(("vllm", "serve", *arguments), PurePosixPath("/models"))
        preparation = prepare(make(service=service), SETTINGS)
        assert preparation.links == {"model": link}
        assert preparation.start_command is not None
        assert preparation.start_command[4 : 4 + len(command)] == command

    def test_folder_in_the_folder(self, make: SessionMaker, model: Path, data: Path) -> None:
        write_model(model / "deep", data / "models/llama-3.1-8b.config.json")
        service = Service(("vllm", "serve", "/models/deep"), PurePosixPath("/models"))
        preparation = prepare(make(service=service), SETTINGS)
        assert preparation.links == {"model": "/models/deep"}
        assert preparation.start_command is not None
        assert preparation.start_command[5:7] == ("--served-model-name", "/models/deep")

    def test_clients_name_stays(self, make: SessionMaker) -> None:
        command = prepare(
            make(service=serve("--served-model-name", "mine")), SETTINGS
        ).start_command
        assert command is not None
        assert command.count("--served-model-name") == 1

    def test_model_that_the_command_does_not_name(self, make: SessionMaker, model: Path) -> None:
        (model / "user.yaml").write_text("model: /models\n")
        service = Service(("vllm", "serve", "--config", "user.yaml"), PurePosixPath("/models"))
        preparation = prepare(make(service=service), SETTINGS)
        assert preparation.plan.no_kv_cache_because is None
        assert preparation.links == {}
        assert "--served-model-name" not in (preparation.start_command or ())


class TestNamespace:
    """Two sessions share a namespace exactly if they may share blocks."""

    @pytest.fixture
    def name(self, make: SessionMaker) -> Callable[..., str]:
        def namespace_name(**changes: Any) -> str:
            namespace = prepare(make(**changes), SETTINGS).plan.namespace
            assert namespace is not None
            return namespace.name

        return namespace_name

    @pytest.mark.parametrize(
        "service",
        [
            serve("--served-model-name", "x"),
            serve("--max-model-len", "4096"),
            serve("-tp", "1"),
            serve("--dtype", "bfloat16"),
        ],
    )
    def test_what_does_not_matter(self, name: Callable[..., str], service: Service) -> None:
        assert name(service=service) == name()

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"service": serve("--dtype", "float32")}, id="compute type"),
            pytest.param({"service": serve("--kv-cache-dtype", "fp8")}, id="cache type"),
            pytest.param({"service": serve("-tp", "2")}, id="tensor parallel"),
            pytest.param({"service": serve("-pp", "2")}, id="pipeline parallel"),
            pytest.param({"service": serve("--rope-theta", "1")}, id="rope"),
            pytest.param({"service": serve("--quantization", "fp8")}, id="quantization"),
            pytest.param(
                {"image": Image("x", {**LABELS, "ai.backend.kvcache.engine-version": "0.33.0"})},
                id="engine version",
            ),
        ],
    )
    def test_what_matters(self, name: Callable[..., str], changes: dict[str, Any]) -> None:
        assert name(**changes) != name()

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("LMCACHE_CHUNK_SIZE", "512"),
            ("LMCACHE_PRE_CACHING_HASH_ALGORITHM", "builtin"),
            ("PYTHONHASHSEED", "0"),
        ],
    )
    def test_users_settings_of_keys_matter(
        self, name: Callable[..., str], variable: str, value: str
    ) -> None:
        gpus = {"gpus": EIGHT_GPUS, "service": serve("-tp", "8")}
        assert name(**gpus, environ={variable: value}) != name(**gpus)

    @pytest.mark.parametrize(
        ("sharing", "shared", "apart"),
        [
            (Sharing.PROJECT, ({"user_id": "u2"}, {"project_id": "p2"}, {"session_id": "s2"}), ()),
            (Sharing.USER, ({"project_id": "p2"}, {"session_id": "s2"}), ({"user_id": "u2"},)),
            (Sharing.SESSION, ({"user_id": "u2"},), ({"session_id": "s2"},)),
        ],
    )
    def test_sharing(
        self,
        make: SessionMaker,
        sharing: Sharing,
        shared: tuple[dict[str, str], ...],
        apart: tuple[dict[str, str], ...],
    ) -> None:
        def name_of(**changes: Any) -> str:
            session = make(**{"user_id": "u1", "project_id": "p1", "session_id": "s1", **changes})
            namespace = prepare(session, Settings(sharing=sharing)).plan.namespace
            assert namespace is not None
            return namespace.name

        assert all(name_of(**changes) == name_of() for changes in shared)
        assert all(name_of(**changes) != name_of() for changes in apart)

    def test_sharing_with_somebody_unknown(self, make: SessionMaker) -> None:
        settings = Settings(sharing=Sharing.USER)
        assert "sharing = user" in reason(prepare(make(), settings))

    def test_weights_matter(self, name: Callable[..., str], model: Path) -> None:
        before = name()
        (model / "model.safetensors").write_bytes(b"\1" * 1000)
        assert name() != before

    def test_path_does_not_matter(
        self, name: Callable[..., str], make: SessionMaker, tmp_path: Path, data: Path
    ) -> None:
        copy = tmp_path / "copy"
        write_model(copy, data / "models/devstral-2-123b.config.json", weights_bytes=128 * GIB)
        session = make()
        moved = Mount("copy", copy, PurePosixPath("/elsewhere"), False, True)
        assert name() == name(
            mounts=(moved, session.mounts[1]),
            service=Service(("vllm", "serve", "{model_path}"), PurePosixPath("/elsewhere")),
        )

    def test_images_that_do_not_say_their_versions_do_not_share(self, make: SessionMaker) -> None:
        half_known = Versions({"kvbm": "1.6.1"})
        names = set()
        for image in ("a", "b"):
            session = make(
                gpus=EIGHT_GPUS,
                service=serve("-tp", "8"),
                memory_bytes=1024 * GIB,
                image=Image(image, {}, half_known),
            )
            namespace = prepare(session, Settings(wish=Wish("dynamo-kvbm"))).plan.namespace
            assert namespace is not None
            names.add(namespace.name)
        assert len(names) == 2
