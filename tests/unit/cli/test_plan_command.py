"""``plan MODEL -- START COMMAND``. What is decided is tested in plan/test_trial.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache

SERVE = ("--", "vllm", "serve", "/models", "-tp", "8")
OLD = ("--vllm-version", "0.20.2", "--lmcache-version", "0.4.6")


@pytest.fixture
def model(make_folders: Callable[[str], tuple[Path, Path]]) -> str:
    return str(make_folders("devstral-2-123b")[0])


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(kvcache, ["plan", *arguments])


def planned(*arguments: str) -> Any:
    result = plan(*arguments)
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


class TestFormats:
    def test_json(self, model: str) -> None:
        answer = planned(model, *OLD, "--format", "json", *SERVE)
        assert list(answer)[:6] == [
            "kv_cache", "reason", "way", "refused", "namespace", "start_command",
        ]  # fmt: skip
        assert (answer["kv_cache"], answer["reason"], answer["way"]) == (True, None, "lmcache-gds")
        assert answer["start_command"][:5] == [
            "vllm", "serve", "/home/config/kvcache/model", "-tp", "8",
        ]  # fmt: skip
        assert answer["plan"]["storage"] == f"/kvcache/ns/{answer['namespace']}"

    def test_json_of_a_refusal(self, model: str) -> None:
        answer = planned(model, "--format", "json", *SERVE, "--enable-lora")
        assert (answer["kv_cache"], answer["way"]) == (False, None)
        assert "LoRA" in answer["reason"]
        assert (answer["namespace"], answer["start_command"]) == (None, None)

    def test_json_of_figures(self) -> None:
        for answer in planned("llama-3.1-8b", "llama-3.1-405b", "--format", "json"):
            is_planned = answer["budget"]["offload"]
            assert answer["kv_cache"] is is_planned
            assert (answer["reason"] is None) is is_planned
            assert (answer["way"] is None) is not is_planned
            assert (answer["namespace"], answer["start_command"]) == (None, None)
            assert isinstance(answer["refused"], dict)

    def test_text(self, model: str) -> None:
        result = plan(model, *OLD, "--env", "BACKENDAI_KVCACHE_BUFFER=12GiB", *SERVE)
        assert result.exit_code == 0, result.output
        for part in (
            "KV cache: yes, lmcache-gds\n",
            "\nbuffer                  12 GiB       set by the user in BACKENDAI_KVCACHE_BUFFER\n",
            "\nstart command:\n  vllm serve /home/config/kvcache/model -tp 8 ",
            "\nenvironment:\n  LMCACHE_CHUNK_SIZE=256\n",
            "\n/home/config/kvcache/vllm.yaml:\n  kv-transfer-config:\n",
            "\n  model -> /models\n",
            "\nassumed:\n  the session is assumed to have a KV folder, at /kvcache\n",
        ):
            assert part in result.stdout

    def test_text_of_a_refusal(self, model: str) -> None:
        result = plan(model, "--vllm-version", "0.10.0", "--lmcache-version", "none", *SERVE)
        assert result.exit_code == 1
        reason, *_ = result.stdout.splitlines()
        assert reason.startswith("KV cache: no, because ")
        assert "the image has no LMCache" in reason
        assert "start command" not in result.stdout.partition("assumed:")[0]

    def test_env(self, model: str) -> None:
        result = plan(model, *OLD, "--format", "env", *SERVE)
        environment = dict(line.split("=", 1) for line in result.stdout.splitlines())
        assert environment["LMCACHE_GDS_PATH"].startswith("/kvcache/ns/")
        assert result.stderr.startswith("# ")

    def test_yaml(self, model: str) -> None:
        result = plan(model, *OLD, "--format", "yaml", *SERVE)
        config = yaml.safe_load(result.stdout)
        assert config["kv-transfer-config"]["kv_connector"] == "LMCacheConnectorV1"

    @pytest.mark.parametrize("output", ["env", "yaml"])
    def test_no_settings(self, model: str, output: str) -> None:
        result = plan(model, "--format", output, *SERVE, "--enable-lora")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "LoRA" in result.stderr


class TestOptions:
    def test_versions(self, model: str) -> None:
        command = ("--", "sglang", "serve", "--model-path", "/models", "--tp", "8")
        names = [
            planned(model, "--sglang-version", version, "--format", "json", *command)["namespace"]
            for version in ("0.5.15", "0.5.23")
        ]
        assert None not in names
        assert names[0] != names[1]

    def test_without_gpus(self, model: str) -> None:
        answer = planned(model, "--gpus", "0", "--format", "json", "--", "vllm", "serve", "/models")
        assert answer["way"] == "lmcache-mp"

    def test_weights_of_a_known_model(self) -> None:
        arguments = ("qwen3-8b", "--weights", "70GiB", *OLD, "--format", "json")
        answer = planned(*arguments, "--", "vllm", "serve", "/models")
        assert "lmcache-gds" in answer["refused"]

    def test_setting(self, model: str) -> None:
        answer = planned(
            model, "--setting", "connector=lmcache-mp", "--setting", "mount-point=/kv",
            "--format", "json", *SERVE,
        )  # fmt: skip
        assert answer["plan"]["storage"].startswith("/kv/ns/")

    def test_own_dashes_of_the_command(self, model: str) -> None:
        # What the plan's own options are called is the engine's here.
        answer = planned(
            model, *OLD, "--format", "json", *SERVE, "--max-model-len", "4096", "--", "x"
        )
        assert "--max-model-len" in answer["start_command"]
        assert "--" in answer["start_command"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--", "vllm", "serve"], "MODEL is missing"),
            (["qwen3-8b", "qwen3-14b", "--", "vllm"], "for one model; 2 are given: qwen3-8b qwen3"),
            (["qwen3-8b", "--"], "the start command is empty"),
            (["qwen3-8b", "--", "vllm serve /models"], "is one word, 'vllm serve /models'"),
            (["qwen3-8b", "--env", "TP", "--", "vllm"], "'TP' is not written as NAME=VALUE"),
            (["qwen3-8b", "--env", "=1", "--", "vllm"], "'=1' is not written as NAME=VALUE"),
            (["qwen3-8b", "--env", "A=1"], "--env is for a start command; write one behind --"),
            (["qwen3-8b", "--mem", "64g"], "--mem is for a start command"),
            (["qwen3-8b", "--sglang-version", "0.5.23"], "--sglang-version is for a start"),
            (["qwen3-8b", "--gpus", "0"], "--gpus 0 is for a start command"),
            (["qwen3-8b", "vllm", "serve"], "'vllm' is no directory"),
            (["qwen3-8b", "vllm", "serve"], "a start command stands behind --"),
            (["qwen3-8b", "-tp", "8", "--", "vllm"], "No such option: -t (options of a start"),
            (
                ["qwen3-8b", "--tensor-parallel", "8", "--", "vllm", "serve"],
                "write --tensor-parallel-size into the start command",
            ),
            (["qwen3-8b", "--overhead", "3g", "--", "vllm"], "--overhead is for plans without"),
            (["qwen3-8b", "--gpus", "0", "--gpu-memory", "1g", "--", "vllm"], "has no GPU memory"),
            (["no-such-model", "--", "vllm"], "'no-such-model' is no directory"),
            (["qwen3-8b", "--vllm-version", "new", "--", "vllm"], "vLLM version 'new' is no"),
            (["qwen3-8b", "--model-path", "m", "--", "vllm"], "'m', does not begin with /"),
            (["qwen3-8b", "--setting", "connector=x", "--", "vllm"], "connector = 'x': must be"),
            (["qwen3-8b", "--setting", "colour=x", "--", "vllm"], "colour is not allowed key"),
        ],
    )
    def test_ends_with_2(self, arguments: list[str], message: str) -> None:
        result = plan(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout == ""

    def test_weights_of_a_directory(self, model: str) -> None:
        result = plan(model, "--weights", "1g", *SERVE)
        assert result.exit_code == 2
        assert "are measured; leave them out" in result.stderr


class TestEntryPoints:
    @pytest.mark.parametrize(
        "entry",
        [
            [sys.executable, "-m", "ai.backend.kvcache"],
            [str(Path(sys.executable).with_name("backend.ai")), "kvcache"],
        ],
        ids=["module", "backend.ai"],
    )
    def test_dashes(self, model: str, entry: list[str]) -> None:
        done = subprocess.run(
            [*entry, "plan", model, *OLD, "--format", "json", *SERVE, "--enable-lora"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert "LoRA" in json.loads(done.stdout)["reason"]
