"""Starts as people write them, read in a session: what is told of them, and what is left alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.errors import DeclinedError, KVCacheError
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.plan.conflicts import refuse_conflicts
from ai.backend.kvcache.plan.decide import prepare
from ai.backend.kvcache.plan.session import Image, Mount, Service, Session
from ai.backend.kvcache.plan.start import EngineStart, read_start, with_own_environment
from ai.backend.kvcache.policy.settings import Settings

COMMANDS = Path(__file__).parents[2] / "data" / "commands"
ROWS: list[dict[str, Any]] = json.loads((COMMANDS / "expected.json").read_text())

COMMAND = "BACKENDAI_KVCACHE_COMMAND"


def session(
    *command: str,
    tmp_path: Path,
    environ: Mapping[str, str] | None = None,
    is_service: bool = True,
) -> Session:
    for name in ("models", "kv"):
        (tmp_path / name).mkdir(exist_ok=True)
    return Session(
        kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
        mounts=(
            Mount("model", tmp_path / "models", PurePosixPath("/models"), False, True),
            Mount("kv", tmp_path / "kv", PurePosixPath("/kvcache"), True, False),
        ),
        environ=environ or {},
        image=Image("image", {}),
        gpus=None,
        service=Service(command, PurePosixPath("/models")) if is_service else None,
        owner=Owner(),
        shared_memory_bytes=None,
    )


def read(tmp_path: Path, *command: str, **environ: str) -> EngineStart:
    return read_start(session(*command, tmp_path=tmp_path, environ=environ))


class TestLeftAlone:
    @pytest.mark.parametrize(
        "row", [r for r in ROWS if "program" not in r], ids=lambda r: " ".join(r["command"])[:50]
    )
    def test_wholly(self, row: Mapping[str, Any], tmp_path: Path) -> None:
        """Nothing in the environment, no file, no memory, no directory: a plan with the reason."""
        uncertain = session(*row["command"], tmp_path=tmp_path, environ=row.get("environ"))
        preparation = prepare(uncertain, Settings())
        assert list(preparation.files) == ["plan.json"]
        assert preparation.environment == {}
        assert preparation.links == {}
        assert preparation.start_command is None
        assert preparation.shared_memory_bytes == 0
        assert preparation.memory_directories == ()
        assert list((tmp_path / "kv").iterdir()) == []
        because = preparation.plan.no_kv_cache_because
        assert because is not None
        assert "so the session is left alone" in because

    def test_the_line_to_write_works(self, tmp_path: Path) -> None:
        with pytest.raises(DeclinedError) as raised:
            read(tmp_path, "bash", "/models/start.sh")
        line = str(raised.value).rpartition("such as: ")[2]
        start = read(tmp_path, *shlex.split(line))
        assert (start.arguments.model, start.arguments.tensor_parallel) == ("/models", 1)

    @pytest.mark.parametrize(
        "command",
        [
            ("bash", "-c", "./start.sh --api-key 's3 cr3t'"),
            ("bash", "-c", "x; vllm serve --api-key=s3cr3t $A"),
        ],
    )
    def test_no_secret_is_told(self, command: tuple[str, ...], tmp_path: Path) -> None:
        with pytest.raises(DeclinedError) as raised:
            read(tmp_path, *command)
        assert "cr3t" not in str(raised.value)


class TestConnectorOfTheUsersOwn:
    OPTIONS = (
        "--kv-transfer-config {}",
        "--kv_transfer_config={}",
        "--kv-transfer-config.kv_connector X",
        "--kv_transfer_config.kv_connector=X",
        "--kv-transfer-conf {}",
        "--kv-connector X",
        "--kv-offloading-size 8",
        "--kv_offloading_backend=native",
    )

    @pytest.mark.parametrize("option", OPTIONS)
    def test_in_a_command(self, option: str, tmp_path: Path) -> None:
        start = read(tmp_path, "vllm", "serve", "/models", *option.split())
        with pytest.raises(DeclinedError, match=r"is already given"):
            refuse_conflicts(session("x", tmp_path=tmp_path), start, [])

    @pytest.mark.parametrize(
        "option", [*OPTIONS, "--enable-lmcache", "--enable-hierarchical-cache"]
    )
    def test_in_a_command_that_is_not_understood(self, option: str, tmp_path: Path) -> None:
        with pytest.raises(DeclinedError, match=r"is already given"):
            read(tmp_path, "bash", "-c", f"for x in 1; do vllm serve /models {option}; done")

    @pytest.mark.parametrize(
        "command",
        [
            ("python3", "-m", "dynamo.vllm", "--model", "/models", "--connector", "lmcache"),
            ("sglang", "serve", "--model-path", "/models", "--enable-hierarchical-cache"),
            ("sglang", "serve", "--model-path", "/models", "--enable-hier"),
            ("sglang", "serve", "--model-path", "/models", "--enable-lmcache"),
            ("sglang", "serve", "--model-path", "/models", "--hicache-storage-backend", "file"),
        ],
    )
    def test_of_other_engines(self, command: tuple[str, ...], tmp_path: Path) -> None:
        assert read(tmp_path, *command).arguments.connector is not None

    @pytest.mark.parametrize("name", ["b-own-lmcache.json", "b-own-plain.json"])
    def test_in_lines_that_people_write(self, name: str, tmp_path: Path) -> None:
        command = json.loads((COMMANDS / name).read_text())
        assert read(tmp_path, *command).arguments.connector == "--kv-transfer-config"

    def test_in_extra_arguments(self, tmp_path: Path) -> None:
        extra = {"VLLM_EXTRA_ARGS": "--kv-transfer-config.kv_connector X"}
        start = read(tmp_path, "vllm", "serve", "/models", **extra)
        assert start.arguments.connector == "--kv-transfer-config"
        with pytest.raises(DeclinedError, match=r"is already given"):
            read(tmp_path, "./start.sh", **extra)


class TestConfigFile:
    def config(self, tmp_path: Path, name: str) -> EngineStart:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "c.yaml").write_text((COMMANDS / name).read_text())
        return read(tmp_path, "bash", "-c", "cd /models; vllm serve . --config c.yaml")

    def test_nested(self, tmp_path: Path) -> None:
        told = self.config(tmp_path, "b-config-nested.yaml").arguments
        assert told.hf_overrides == {"max_position_embeddings": 65_536}
        assert not told.prefix_caching
        assert told.served_model_name == "chat"
        assert (told.tensor_parallel, told.max_model_len) == (8, 65_536)

    def test_false(self, tmp_path: Path) -> None:
        assert not self.config(tmp_path, "b-config-false.yaml").arguments.prefix_caching

    def test_connector(self, tmp_path: Path) -> None:
        told = self.config(tmp_path, "b-config-connector.yaml").arguments
        assert told.connector == "--kv-transfer-config"


class TestSurroundings:
    def test_the_lines_own_environment_is_the_users(self, tmp_path: Path) -> None:
        made = session(
            *("bash", "-c", "export PYTHONHASHSEED=0; LMCACHE_CHUNK_SIZE=512 vllm serve /models"),
            tmp_path=tmp_path, environ={"PYTHONHASHSEED": "7", "A": "1"},
        )  # fmt: skip
        environ = with_own_environment(made, read_start(made)).environ
        assert environ == {"PYTHONHASHSEED": "0", "LMCACHE_CHUNK_SIZE": "512", "A": "1"}

    def test_relative_paths_begin_where_the_line_goes(self, tmp_path: Path) -> None:
        start = read(tmp_path, "bash", "-c", "cd /models && cd deep && vllm serve ./m")
        assert start.directory == PurePosixPath("/models/deep")
        assert read(tmp_path, "vllm", "serve", ".").directory == PurePosixPath("/models")

    @pytest.mark.parametrize(
        "more",
        [
            "--nnodes 2 --node-rank 0", "-n 2", "-n2", "--headless",
            "--data-parallel-address 10.0.0.1", "-dp 2 -dpl 1", "--data-parallel-size 8 --data-parallel-size-local 4", "-dpe",
        ],
    )  # fmt: skip
    def test_several_nodes(self, more: str, tmp_path: Path) -> None:
        start = read(tmp_path, "vllm", "serve", "/models", *more.split())
        with pytest.raises(DeclinedError, match="one of several that run together"):
            refuse_conflicts(session("x", tmp_path=tmp_path), start, [])

    @pytest.mark.parametrize("more", ["--nnodes 1", "-n1", "-dp 8 -dpl 8", "--node-rank 0"])
    def test_one_node(self, more: str, tmp_path: Path) -> None:
        start = read(tmp_path, "vllm", "serve", "/models", *more.split())
        assert start.arguments.other_nodes is None


class TestSessionThatStartsNothing:
    def test_is_left_alone(self, tmp_path: Path) -> None:
        with pytest.raises(DeclinedError) as raised:
            read_start(session(tmp_path=tmp_path, is_service=False))
        name, _, line = str(raised.value).rpartition("such as: ")[2].partition("=")
        assert name == COMMAND
        # The variable that is named works by itself.
        made = session(tmp_path=tmp_path, is_service=False, environ={COMMAND: shlex.split(line)[0]})
        assert read_start(made).arguments.model == "/models"

    def test_command_of_the_variable(self, tmp_path: Path) -> None:
        environ = {COMMAND: "vllm serve /models -tp 2", "VLLM_EXTRA_ARGS": "--max-model-len 1"}
        start = read_start(session(tmp_path=tmp_path, is_service=False, environ=environ))
        assert start.arguments.tensor_parallel == 2
        # Backend.AI adds arguments to services only.
        assert start.arguments.max_model_len is None

    def test_command_that_is_not_understood(self, tmp_path: Path) -> None:
        made = session(tmp_path=tmp_path, is_service=False, environ={COMMAND: "./start.sh"})
        with pytest.raises(KVCacheError, match="so the session is left alone"):
            read_start(made)


class TestOverrides:
    @pytest.mark.parametrize(
        ("options", "overrides"),
        [
            ('--hf-overrides {"a":{"b":1}}', {"a": {"b": 1}}),
            ("--hf-overrides.a.b=1 --hf-overrides.a.c x", {"a": {"b": 1, "c": "x"}}),
            ("--hf_overrides.max_position_embeddings 128k", {"max_position_embeddings": 128_000}),
            # Values with dots are put behind all others, and so win over JSON (vLLM 0.20 to 0.33).
            ('--hf-overrides.b=2 --hf-overrides {"a":1}', {"b": 2}),
            ('--hf-overrides {"a":1} --hf-overrides {"c":3}', {"c": 3}),
            ("--hf-overrides.l+ a,b --hf-overrides.l+=c", {"l": ["a", "b", "c"]}),
            ('--hf-overrides.a {"b":1} --hf-overrides.a.c=2', {"a": {"b": 1, "c": 2}}),
        ],
    )
    def test_forms(self, options: str, overrides: Mapping[str, Any], tmp_path: Path) -> None:
        start = read(tmp_path, "vllm", "serve", "/models", *options.split())
        assert start.arguments.hf_overrides == overrides
