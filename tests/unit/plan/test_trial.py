from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest
import yaml

from ai.backend.kvcache.agent.facts import session_of
from ai.backend.kvcache.engine.versions import NEWEST, Versions
from ai.backend.kvcache.errors import EngineVersionError, SizeError, StartCommandError
from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.plan.decide import Preparation, prepare
from ai.backend.kvcache.plan.described import SESSION_ID, Description
from ai.backend.kvcache.plan.entitle import entitle
from ai.backend.kvcache.plan.session import Gpus
from ai.backend.kvcache.plan.trial import try_start
from ai.backend.kvcache.policy.policy import Policy, check_policy
from ai.backend.kvcache.sizes import GIB

KERNEL_ID = "5f0c2f3e-0000-4000-8000-000000000000"
IMAGE = "cr.example.com/stable/engine:1"
GPU_MODEL = "NVIDIA H100 80GB HBM3"
SERVE = ("vllm", "serve", "/models")
OLD = {"vllm": "0.20.2", "lmcache": "0.4.6"}

type Trying = Callable[..., dict[str, Any]]


@pytest.fixture
def model(make_folders: Callable[[str], tuple[Path, Path]]) -> Path:
    """The folder of a model with a file of 7 bytes in the place of its weights."""
    return make_folders("qwen3-32b")[0]


@pytest.fixture
def tried(model: Path) -> Trying:
    """What programs get for a start command, as changed by arguments."""

    def tried(*command: str, **said: Any) -> dict[str, Any]:
        return try_start(Description(**{"model": model, "command": command, **said})).to_json()

    return tried


def agents(
    model: Path,
    command: Sequence[str],
    versions: Mapping[str, str],
    gpus: int,
    environ: Mapping[str, str],
) -> Preparation:
    """What an agent prepares for a real session, from the kernel's configuration on."""
    folders = {
        "my-model": (model, "/models", "ro", "model"),
        "my-kv": (model.parent / "kv", "/kvcache", "rw", "data"),
    }
    config = {
        "mounts": [
            {
                "name": name,
                "host_path": str(host_path),
                "kernel_path": kernel_path,
                "mount_perm": permission,
                "usage_mode": mode,
            }
            for name, (host_path, kernel_path, permission, mode) in folders.items()
        ],
        "image": {"canonical": IMAGE, "labels": {}},
        "resource_slots": {"cpu": "8", "mem": str(256 * GIB)},
        "internal_data": {
            "model_definition": {
                "models": [{"model_path": "/models", "service": {"start_command": [*command]}}]
            }
        },
        "session_type": "inference",
        "owner_project_id": "32a432e6-0000-4000-8000-000000000000",
    }
    allotted = Gpus("cuda", gpus, 80 * GIB, model=GPU_MODEL) if gpus else None
    session = session_of(KERNEL_ID, config, environ, allotted)
    image = attrs.evolve(session.image, found=Versions(versions, is_complete=True))
    session = attrs.evolve(session, image=image)
    entitlement = entitle(session, Policy())
    assert entitlement is not None
    return prepare(session, entitlement.settings)


class TestAsASession:
    """A trial comes to what an agent prepares."""

    @pytest.mark.parametrize(
        ("command", "versions", "gpus", "environ", "way"),
        [
            ((*SERVE, "-tp", "8"), OLD, 8, {}, "lmcache-gds"),
            (
                (*SERVE, "-tp", "8", "--kv-cache-dtype", "fp8"), OLD, 8,
                {"BACKENDAI_KVCACHE_TRANSPORT": "posix"}, "lmcache-posix",
            ),
            (("vllm", "serve", "{model_path}", "-tp", "2"), OLD, 2, {}, "lmcache-gds"),
            (
                ("bash", "-c", 'exec vllm serve /models -tp 4 --dtype float16 "$@"', "wrap"),
                OLD, 4, {"VLLM_EXTRA_ARGS": "--max-model-len 16384"}, "lmcache-gds",
            ),
            (SERVE, {"vllm": "0.32.0", "lmcache": "0.5.6"}, 0, {}, "lmcache-mp"),
        ],
    )  # fmt: skip
    def test_same_decision(
        self,
        tried: Trying,
        model: Path,
        command: tuple[str, ...],
        versions: Mapping[str, str],
        gpus: int,
        environ: Mapping[str, str],
        way: str,
    ) -> None:
        real = agents(model, command, versions, gpus, environ)
        absent = {p: "none" for p in ("vllm", "lmcache") if p not in versions}
        trial = tried(
            *command,
            versions={**versions, **absent},
            gpus=Decimal(gpus),
            memory_bytes=256 * GIB,
            environ=environ,
        )
        assert real.plan.namespace is not None
        assert (trial["way"], real.plan.adapter) == (way, way)
        assert trial["namespace"] == real.plan.namespace.name
        assert trial["start_command"] == list(real.start_command or ())
        assert trial["refused"] == real.plan.refused
        assert trial["environment"] == {
            name: value.replace(KERNEL_ID, SESSION_ID) for name, value in real.environment.items()
        }
        assert trial["shared_memory_bytes"] == real.shared_memory_bytes

    @pytest.mark.parametrize(
        ("command", "versions", "way"),
        [
            ((*SERVE, "-tp", "8"), {"vllm": "0.32.0"}, "vllm-tiering"),
            (
                ("python3", "-m", "sglang.launch_server", "--model-path", "/models", "--tp", "8"),
                {"sglang": "0.5.23"},
                "sglang-hicache",
            ),
        ],
    )
    def test_same_but_for_what_the_node_decides(
        self,
        tried: Trying,
        model: Path,
        command: tuple[str, ...],
        versions: dict[str, str],
        way: str,
    ) -> None:
        real = agents(model, command, versions, 8, {})
        absent = {p: "none" for p in ("vllm", "lmcache") if p not in versions}
        described: dict[str, Any] = {
            "versions": {**versions, **absent},
            "gpus": Decimal(8),
            "memory_bytes": 256 * GIB,
        }
        trial = tried(*command, **described)
        assert (trial["way"], real.plan.adapter) == (way, way)
        assert trial["namespace"].startswith("assumed-")
        known = tried(*command, **described, image=IMAGE, gpu_model=GPU_MODEL)
        assert real.plan.namespace is not None
        assert known["namespace"] == real.plan.namespace.name
        assert any("the model of the GPUs and the image's name" in note for note in trial["notes"])
        assert trial["start_command"] == list(real.start_command or ())
        assert trial["refused"] == real.plan.refused
        assert trial["environment"].keys() == real.environment.keys()
        assert trial["shared_memory_bytes"] == real.shared_memory_bytes

    def test_same_refusal(self, tried: Trying, model: Path) -> None:
        command = (*SERVE, "--enable-lora")
        trial = tried(*command, versions=OLD)
        assert trial["reason"] == agents(model, command, OLD, 1, {}).plan.no_kv_cache_because
        assert (trial["kv_cache"], trial["way"], trial["namespace"]) == (False, None, None)
        assert trial["start_command"] is None

    def test_no_folder_is_touched(self, tried: Trying, model: Path) -> None:
        before = sorted(model.parent.rglob("*"))
        assert tried(*SERVE, versions=OLD)["kv_cache"]
        assert sorted(model.parent.rglob("*")) == before


class TestModel:
    @pytest.mark.parametrize("path", ["/models", "/models/qwen", "/home/work/qwen"])
    def test_lies_where_the_command_says(self, tried: Trying, path: str) -> None:
        trial = tried("vllm", "serve", path, "-tp", "2", versions=OLD)
        assert trial["kv_cache"]
        assert trial["links"] == {"model": path}

    def test_namespace_does_not_depend_on_the_path(self, tried: Trying) -> None:
        names = {
            tried("vllm", "serve", path, versions=OLD)["namespace"] for path in ("/models", "/m/q")
        }
        assert len(names) == 1

    def test_in_a_folder_of_several(self, tried: Trying, model: Path) -> None:
        for command in (("/models/model",), ("model",)):
            trial = tried("vllm", "serve", *command, versions=OLD, model=model.parent)
            assert trial["links"] == {"model": "/models/model"}

    def test_elsewhere_by_name(self, tried: Trying, model: Path) -> None:
        (model / "vllm.yaml").write_text("tensor-parallel-size: 2\napi-key: sk-hidden\n")
        trial = tried(
            "vllm", "serve", "/m/qwen", "--config", "/m/qwen/vllm.yaml",
            versions=OLD, model_path=PurePosixPath("/m/qwen"),
        )  # fmt: skip
        config = yaml.safe_load(trial["files"]["vllm.yaml"])
        assert config["tensor-parallel-size"] == 2
        assert config["api-key"] == "***"
        assert "sk-hidden" not in str(trial)
        assert "2 GPUs are assumed" in str(trial["notes"])

    def test_name_that_the_engine_would_download(self, tried: Trying) -> None:
        assert tried("vllm", "serve", "Qwen/Qwen3-32B")["reason"] == (
            "the model '/models/Qwen/Qwen3-32B' is not in a folder mounted into the session"
        )

    def test_links_out_of_the_folder(self, tried: Trying, model: Path, tmp_path: Path) -> None:
        # As in Hugging Face's cache, where a snapshot is made of links.
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        for file in model.iterdir():
            os.symlink(file, snapshot / file.name)
        assert (
            tried(*SERVE, versions=OLD, model=snapshot)["namespace"]
            == tried(*SERVE, versions=OLD)["namespace"]
        )

    def test_without_files_the_namespace_is_assumed(self, tried: Trying) -> None:
        def of(name: str, *more: str) -> dict[str, Any]:
            return tried(*SERVE, "-tp", "2", *more, versions=OLD, model=open_model(name))

        trial = of("qwen3-32b")
        name = trial["namespace"]
        assert re.fullmatch("assumed-[0-9a-f]{32}", name)
        assert trial["environment"]["LMCACHE_GDS_PATH"] == f"/kvcache/ns/{name}"
        assert trial["environment"]["PYTHONHASHSEED"].startswith("assumed-")
        assert any("no session has a namespace that begins" in note for note in trial["notes"])
        # It tells start commands apart, and models, as the real ones are told apart.
        assert of("qwen3-32b", "--port", "9000")["namespace"] == name
        assert of("qwen3-32b", "--kv-cache-dtype", "fp8")["namespace"] != name
        assert of("qwen3-14b")["namespace"] != name

    def test_without_weights(self, tried: Trying, model: Path) -> None:
        (model / "model.safetensors").unlink()
        assert "no weight files" in tried(*SERVE)["reason"]


class TestNamespace:
    @pytest.mark.parametrize("sharing", ["user", "session"])
    def test_of_one_owner(self, tried: Trying, sharing: str) -> None:
        trial = tried(*SERVE, versions=OLD, environ={"BACKENDAI_KVCACHE_SHARE": sharing})
        assert trial["namespace"].startswith("assumed-")
        assert any(f"sharing = {sharing}" in note for note in trial["notes"])

    def test_versions_count(self, tried: Trying) -> None:
        names = [
            tried(*SERVE, versions={**OLD, **changed})["namespace"]
            for changed in ({}, {"vllm": "0.20.1"}, {"lmcache": "0.4.5"})
        ]
        assert None not in names
        assert len(set(names)) == 3


class TestSession:
    @pytest.mark.parametrize(
        ("command", "said", "note"),
        [
            ((*SERVE, "-tp", "4", "-pp", "2"), {}, "8 GPUs are assumed, as many as"),
            ((*SERVE, "-tp", "2", "-dp", "2"), {}, "4 GPUs are assumed, as many as"),
            (SERVE, {}, "1 GPU is assumed, as many as"),
            (("./start.sh",), {}, "1 GPU is assumed; say"),
            ((*SERVE, "-tp", "4"), {"gpus": Decimal(2)}, "needs 4 GPUs, and the session has 2"),
            ((*SERVE, "-tp", "4"), {"gpus": Decimal(8)}, "only 4 of 8 GPUs are used"),
            (SERVE, {"gpus": Decimal(1)}, "80 GiB of memory per GPU are assumed"),
            (SERVE, {}, f"vLLM {NEWEST['vllm']} with LMCache {NEWEST['lmcache']};"),
            (
                SERVE,
                {"versions": {"vllm": "0.20.2"}},
                f"assumed to have LMCache {NEWEST['lmcache']};",
            ),
            (
                ("sglang", "serve", "--model-path", "/models"),
                {},
                f"assumed to have SGLang {NEWEST['sglang']};",
            ),
        ],
    )
    def test_what_is_assumed(
        self, tried: Trying, command: tuple[str, ...], said: dict[str, Any], note: str
    ) -> None:
        assert any(note in n for n in tried(*command, **said)["notes"])

    def test_nothing_is_assumed_of_what_is_said(self, tried: Trying) -> None:
        notes = tried(*SERVE, versions=OLD, gpus=Decimal(1), gpu_memory_bytes=80 * GIB)["notes"]
        assert [n for n in notes if "assumed" in n] == [
            "the session is assumed to have a KV folder, at /kvcache"
        ]

    @pytest.mark.parametrize(
        ("said", "is_there"),
        [
            ({"gpus": Decimal(0)}, True),
            ({"versions": OLD}, False),
            ({"versions": OLD, "environ": {"BACKENDAI_KVCACHE_TRANSPORT": "posix"}}, True),
        ],
    )
    def test_what_is_of_one_session(
        self, tried: Trying, said: dict[str, Any], is_there: bool
    ) -> None:
        notes = tried(*SERVE, **said)["notes"]
        assert any("each session's own" in note for note in notes) is is_there

    def test_share_of_a_gpu(self, tried: Trying) -> None:
        said = {"gpus": Decimal("0.5"), "gpu_memory_bytes": 64 * GIB}
        trial = tried(*SERVE, versions=OLD, **said)
        assert trial["plan"]["budget"]["memory_bytes"] == 32 * GIB

    def test_memory(self, tried: Trying) -> None:
        trial = tried(*SERVE, gpus=Decimal(0), memory_bytes=64 * GIB, shared_memory_bytes=GIB)
        assert trial["shared_memory_bytes"] == 0
        assert any("--resource-opts shmem=" in w for w in trial["plan"]["warnings"])
        (why,) = (d["why"] for d in trial["plan"]["decisions"] if d["what"] == "host_memory")
        assert "the session's 64 GiB" in why

    @pytest.mark.parametrize("value", ["off", "false"])
    def test_declined(self, tried: Trying, value: str) -> None:
        trial = tried(*SERVE, environ={"BACKENDAI_KVCACHE": value})
        assert trial["reason"] == f"the session declines it: BACKENDAI_KVCACHE = {value}"

    def test_policy(self, tried: Trying) -> None:
        trial = tried(*SERVE, policy=check_policy({"mode": "off"}))
        assert "switched KV cache off" in trial["reason"]
        trial = tried(
            *SERVE, policy=check_policy({"connector": "lmcache-mp", "mount-point": "/mnt/kv"})
        )
        assert trial["way"] == "lmcache-mp"
        assert trial["plan"]["storage"] == f"/mnt/kv/ns/{trial['namespace']}"

    def test_folder_by_name(self, tried: Trying) -> None:
        trial = tried(*SERVE, environ={"BACKENDAI_KVCACHE_FOLDER": "my-kv"})
        assert trial["plan"]["folder"] == "my-kv"

    def test_secrets(self, tried: Trying, model: Path) -> None:
        (model / "own.yaml").write_text("api-key: [sk-hidden]\nseed: 7\n")
        trial = tried(
            *SERVE, "--api-key", "sk-hidden",
            versions=OLD,
            environ={
                "VLLM_EXTRA_ARGS": "--config /models/own.yaml --api-key sk-hidden --seed 7",
                "HF_TOKEN": "sk-hidden",
            },
        )  # fmt: skip
        assert trial["environment"]["VLLM_EXTRA_ARGS"] == "--api-key *** --seed 7"
        assert trial["start_command"][:6] == [
            "vllm", "serve", "/home/config/kvcache/model", "--api-key", "***",
            "--served-model-name",
        ]  # fmt: skip
        assert yaml.safe_load(trial["files"]["vllm.yaml"])["seed"] == 7
        assert "hidden" not in str(trial)


class TestBadInput:
    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ((), "the start command is empty"),
            (("vllm serve /models",), r"is one word, 'vllm serve /models'; .* -- vllm …"),
            (("bash -c 'vllm serve /models'",), r"is one word, .* as a list"),
            (("vllm serve /models --api-key sk-1",), r"is one word, 'vllm .* --api-key \*\*\*'"),
        ],
    )
    def test_command(self, tried: Trying, command: tuple[str, ...], message: str) -> None:
        with pytest.raises(StartCommandError, match=message):
            tried(*command)

    @pytest.mark.parametrize("package", ["vllm", "lmcache", "sglang", "kvbm"])
    def test_version(self, tried: Trying, package: str) -> None:
        with pytest.raises(EngineVersionError, match="version 'newest' is no version; write it as"):
            tried(*SERVE, versions={package: "newest"})

    def test_memory_of_no_gpu(self, tried: Trying) -> None:
        with pytest.raises(SizeError, match="has no GPU memory"):
            tried(*SERVE, gpus=Decimal(0), gpu_memory_bytes=GIB)
