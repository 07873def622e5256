from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache

REFERENCE = (
    "--tensor-parallel", "8", "--gpu-memory", "80GiB", "--weights", "128GiB", "--overhead", "3GiB",
    "--gpu-memory-utilization", "0.9", "--max-model-len", "262144",
    # With these, LMCache runs inside vLLM and stages transfers in a buffer of the GPU's.
    "--vllm-version", "0.20.2", "--lmcache-version", "0.4.6",
)  # fmt: skip


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(kvcache, ["plan", *arguments])


def planned(*arguments: str) -> Any:
    result = plan(*arguments, "--format", "json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


class TestFormats:
    def test_text(self) -> None:
        result = plan("devstral-2-123b", *REFERENCE)
        assert result.exit_code == 0
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        for line in (
            "full_attention 88 360,448 - -",
            "one token on one GPU (TP 8) 45,056",
            "weights 16 GiB 16 GiB",
            "overhead 3 GiB 3 GiB",
            "KV pool 53 GiB 29 GiB",
            "transfer buffer - 24 GiB",
            "left free 8 GiB 8 GiB",
            "gpu_memory_utilization 0.9 0.6",
            "contexts of 262,144 tokens 4 2",
            "KV cache: yes",
        ):
            assert line in lines

    def test_bar_is_to_scale(self) -> None:
        result = plan("devstral-2-123b", *REFERENCE)
        (bar,) = (line for line in result.stdout.splitlines() if line.startswith("  ["))
        # 64 columns for 80 GiB: 16, 19, 48 and 72 of them are 12.8, 15.2, 38.4 and 57.6 columns.
        assert bar == f"  [{'█' * 13}{'▓' * 2}{'▒' * 23}{'░' * 20}{'·' * 6}]"

    def test_json(self) -> None:
        budget = planned("devstral-2-123b", *REFERENCE)["budget"]
        assert budget["buffer_bytes"] == 25_769_803_776
        assert budget["gpu_memory_utilization"] == 0.6

    def test_several_models(self) -> None:
        plans = planned("qwen3-8b", "qwen3-14b")
        assert [p["model"]["name"] for p in plans] == ["qwen3-8b", "qwen3-14b"]
        assert plan("qwen3-8b", "qwen3-14b").stdout.count("KV cache: yes") == 2

    @pytest.mark.parametrize(
        ("version", "name"),
        [("0.4.3", "LMCACHE_CUFILE_BUFFER_SIZE"), ("0.4.4", "LMCACHE_GDS_BUFFER_SIZE")],
    )
    def test_env(self, version: str, name: str) -> None:
        result = plan(
            "devstral-2-123b", *REFERENCE, "--format", "env", "--lmcache-version", version
        )
        environment = dict(line.split("=", 1) for line in result.stdout.splitlines())
        assert environment.pop(name) == "24576"
        assert environment.pop("PYTHONHASHSEED").isdigit()
        assert environment.pop("LMCACHE_GDS_PATH").startswith("/kvcache/")
        assert environment == {
            "LMCACHE_CHUNK_SIZE": "256",
            "LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor",
            "LMCACHE_LOCAL_CPU": "False",
            "LMCACHE_SAVE_UNFULL_CHUNK": "False",
            # GiB to stage stores in, LMCache's default.
            "LMCACHE_MAX_LOCAL_CPU_SIZE": "5.0",
        }
        assert result.stderr.startswith("# ")

    def test_yaml(self) -> None:
        result = plan("devstral-2-123b", *REFERENCE, "--format", "yaml")
        config = yaml.safe_load(result.stdout)
        assert config.pop("gds_path").startswith("/kvcache/")
        assert config == {
            "chunk_size": 256,
            "pre_caching_hash_algorithm": "sha256_cbor",
            "local_cpu": False,
            "save_unfull_chunk": False,
            "max_local_cpu_size": 5.0,
            "gds_buffer_size": 24_576,
        }

    def test_the_newest_versions(self) -> None:
        newest = REFERENCE[: REFERENCE.index("--vllm-version")]
        lines = [" ".join(line.split()) for line in plan(
            "devstral-2-123b", *newest
        ).stdout.splitlines()]  # fmt: skip
        for line in (
            "KV pool 53 GiB 53 GiB",
            "transfer buffer - -",
            "LMCache's server - 0.79 GiB",
            "left free 8 GiB 7.21 GiB",
            "gpu_memory_utilization 0.9 0.9",
            "contexts of 262,144 tokens 4 4",
            "KV cache: yes",
            "way: lmcache-mp",
        ):
            assert line in lines

    def test_an_estimated_overhead_has_bounds(self) -> None:
        text = plan("devstral-2-123b", "--gpus", "8").stdout
        assert "the overhead is an estimate, 1." in text
        assert "the overhead is an estimate" not in plan("devstral-2-123b", *REFERENCE).stdout

    def test_way(self) -> None:
        # LMCache inside vLLM answers wrongly with vLLM 0.26 and later, so its server is taken.
        newer = ("qwen3-8b", "--vllm-version", "0.32.0", "--lmcache-version", "0.5.6")
        lines = plan(*newer).stdout.splitlines()
        assert "  way: lmcache-mp" in lines
        assert any(line.startswith("  not lmcache-gds: vLLM 0.32.0 with") for line in lines)
        result = plan(*newer, "--format", "env")
        assert (result.exit_code, result.stdout) == (0, "")
        assert "# lmcache-mp is told by files; a start command behind -- shows" in result.stderr
        assert "  way: lmcache-gds" in plan("devstral-2-123b", *REFERENCE).stdout.splitlines()

    def test_list_of_models(self) -> None:
        result = plan("--list-models")
        assert result.exit_code == 0
        rows = [line.split() for line in result.stdout.splitlines()]
        assert len(rows) > 30
        (llama,) = (row for row in rows if row[0] == "llama-3.1-8b")
        assert llama == [
            "llama-3.1-8b", "8.0", "B", "131,072", "131,072",
            "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/blob/main/config.json",
        ]  # fmt: skip

    def test_list_of_models_for_programs(self) -> None:
        models = json.loads(plan("--list-models", "--format", "json").stdout)
        (llama,) = (model for model in models if model["name"] == "llama-3.1-8b")
        assert llama == {
            "name": "llama-3.1-8b",
            # 32 x 218,103,808 and 2 x 128,256 x 4,096
            "parameters": 8_029_995_008,
            "kv_bytes_per_token": 131_072,
            "max_model_len": 131_072,
            "source": (
                "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/blob/main/config.json"
            ),
        }

    def test_terminal_without_such_characters(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "ai.backend.kvcache", "plan", "qwen3-8b"],
            capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert b"KV cache: yes" in done.stdout


class TestOptions:
    def test_one_rank_for_each_gpu(self) -> None:
        geometry = planned("llama-3.1-70b", "--gpus", "8")["geometry"]
        assert geometry["kv_bytes_per_token_per_gpu"] == 40_960

    def test_stages_and_ranks(self) -> None:
        plans = planned("llama-3.1-70b", "--gpus", "8", "--pipeline-parallel", "2")
        # 40 of 80 layers, 2 of 8 KV heads
        assert plans["geometry"]["kv_bytes_per_token_per_gpu"] == 40_960
        assert plans["engine"]["arguments"][:4] == [
            "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2",
        ]  # fmt: skip

    def test_share_of_a_gpu(self) -> None:
        budget = planned("qwen3-8b", "--gpus", "0.5", "--gpu-memory", "80g")["budget"]
        assert budget["gpu_memory_bytes"] == 40 * 2**30

    def test_way_of_a_share_of_a_gpu(self) -> None:
        ways = {
            gpus: planned("qwen3-8b", "--gpus", gpus, "--gpu-memory", "80g")["way"]
            for gpus in ("1", "0.5")
        }
        assert ways == {"1": "lmcache-mp", "0.5": "vllm-tiering"}

    def test_pinned(self) -> None:
        budget = planned("devstral-2-123b", *REFERENCE, "--pin-utilization")["budget"]
        # 80 - 72 - 1.5 GiB
        assert budget["buffer_bytes"] == 6_979_321_856
        assert budget["gpu_memory_utilization"] == 0.9

    def test_kv_cache_dtype(self) -> None:
        assert planned("qwen3-32b", "--kv-cache-dtype", "fp8")["model"]["kv_dtype"] == "fp8"

    def test_decode_context_parallel(self) -> None:
        geometry = planned(
            "deepseek-v3", "--tensor-parallel", "8", "--decode-context-parallel", "8"
        )["geometry"]
        assert geometry["kv_bytes_per_token_per_gpu"] == 8_784  # 61 x 1,152 / 8

    def test_gpus_that_are_left_over(self) -> None:
        reasons = planned("qwen3-8b", "--tensor-parallel", "4", "--gpus", "8")["budget"]["reasons"]
        assert reasons[0] == "only 4 of 8 GPUs are used"

    def test_context(self) -> None:
        budget = planned("devstral-2-123b", *REFERENCE, "--context", "140000")["budget"]
        assert budget["resident_contexts"] == 4  # 29 GiB / 5.87 GiB


class TestExitCodes:
    def test_no(self) -> None:
        result = plan("llama-3.1-405b")
        assert result.exit_code == 1
        assert "KV cache: no, because" in result.stdout

    @pytest.mark.parametrize("output", ["env", "yaml"])
    def test_no_settings(self, output: str) -> None:
        result = plan("llama-3.1-405b", "--format", output)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "of weights" in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "MODEL is missing"),
            (["no-such-model"], "'no-such-model' is no directory"),
            (["qwen3-8b", "--gpu-memory", "lots"], "'lots' is not a size"),
            (["qwen3-8b", "--weights", "-1g"], "'-1g' is not a size"),
            (["qwen3-8b", "--tensor-parallel", "0"], "0 is not in the range"),
            (["qwen3-8b", "--tensor-parallel", "7"], "tensor-parallel size of 7"),
            (["qwen3-8b", "--tensor-parallel", "8", "--gpus", "4"], "which take 8 GPUs"),
            (["qwen3-8b", "--pipeline-parallel", "2", "--gpus", "1"], "which take 2 GPUs"),
            (["qwen3-8b", "--gpus", "1.5"], "neither a number of GPUs nor a part of one"),
            (["qwen3-8b", "--gpus", "nan"], "neither a number of GPUs nor a part of one"),
            (["qwen3-8b", "--gpu-memory-utilization", "1.1"], "not above 0 and up to 1"),
            (["qwen3-8b", "--gpu-memory-utilization", "nan"], "not above 0 and up to 1"),
            (["qwen3-8b", "--kv-cache-dtype", "fp4"], "'fp4' is unknown; known are auto"),
            (["qwen3-8b", "--lmcache-version", "new"], "LMCache version 'new' is no version"),
            (["qwen3-8b", "--vllm-version", "0.6.0"], "vLLM 0.6.0 is too old"),
            (["qwen3-8b", "--context", "50000"], "longer than the longest of 40960"),
            (["qwen3-8b", "qwen3-14b", "--format", "env"], "is for one model; 2 are given"),
            (["qwen3-8b", "--concurrent-transfers", "65"], "65 is not in the range"),
        ],
    )
    def test_bad_input(self, arguments: list[str], message: str) -> None:
        result = plan(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout == ""

    def test_bad_file(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": "x"}')
        result = plan(str(tmp_path))
        assert result.exit_code == 2
        assert result.stderr == (
            "Error: config.json: num_hidden_layers = 'x' is not a positive integer\n"
        )


class TestEntryPoints:
    def test_as_a_module(self) -> None:
        # Without Backend.AI: whoever imports it from here would fail.
        code = (
            "import runpy, sys;"
            "sys.modules.update(dict.fromkeys(['ai.backend.common', 'ai.backend.client']));"
            "sys.argv = ['kvcache', 'plan', 'qwen3-8b', '--format', 'json'];"
            "runpy.run_module('ai.backend.kvcache', run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["model"]["name"] == "qwen3-8b"

    def test_of_the_backend_ai_command(self) -> None:
        done = subprocess.run(
            [Path(sys.executable).with_name("backend.ai"), "kvcache", "plan", "llama-3.1-405b"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert "KV cache: no, because" in done.stdout
