from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.engine.arguments import (
    EngineArguments,
    arguments_of_config,
    environment_arguments,
)
from ai.backend.kvcache.engine.arguments import read_arguments as read
from ai.backend.kvcache.engine.vllm import VLLM
from ai.backend.kvcache.errors import StartCommandError


def read_arguments(arguments: Sequence[str]) -> EngineArguments:
    return read(arguments, VLLM)


class TestReadArguments:
    def test_nothing_said(self) -> None:
        arguments = read_arguments([])
        assert arguments.model is None
        assert arguments.tensor_parallel is None
        assert arguments.pipeline_parallel == 1
        assert arguments.gpu_memory_utilization is None
        assert arguments.max_model_len is None
        assert (arguments.dtype, arguments.kv_cache_dtype) == ("auto", "auto")

    @pytest.mark.parametrize(
        "spelling",
        [
            ["--tensor-parallel-size", "8"],
            ["--tensor-parallel-size=8"],
            ["--tensor_parallel_size", "8"],
            ["--tensor_parallel_size=8"],
            ["-tp", "8"],
            ["-tp=8"],
            ["--tensor-par", "8"],
            ["--tensor_par=8"],
        ],
    )
    def test_spellings(self, spelling: list[str]) -> None:
        assert read_arguments(["/models", *spelling]).tensor_parallel == 8

    def test_later_wins(self) -> None:
        assert read_arguments(["-tp", "2", "--tensor-parallel-size=4"]).tensor_parallel == 4

    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("8192", 8192),
            ("32k", 32_000),
            ("32K", 32_768),
            ("1.5k", 1500),
            ("1M", 1_048_576),
            (" 8k ", 8000),
        ],
    )
    def test_lengths_for_people(self, text: str, tokens: int) -> None:
        assert read_arguments(["--max-model-len", text]).max_model_len == tokens

    @pytest.mark.parametrize("text", ["auto", "-1"])
    def test_length_left_to_vllm(self, text: str) -> None:
        assert read_arguments(["--max-model-len", text]).max_model_len is None

    def test_model(self) -> None:
        assert read_arguments(["/models", "--port", "8000"]).model == "/models"
        assert read_arguments(["--model", "/models"]).model == "/models"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["-tp"],
            ["-tp", "many"],
            ["-tp", "0"],
            ["-tp", "$TP"],
            ["-tp", "8k"],
            ["--max-model-len", "1e5"],
            ["--max-model-len", "131,072"],
            ["--max-model-len", "1.5K"],
            ["--max-num-seqs", "64K"],
            ["--max-model-len", "-5"],
            ["--gpu-memory-utilization", "90%"],
            ["--gpu-memory-utilization", "1.5"],
            ["--gpu-memory-utilization=nan"],
        ],
    )
    def test_unusable_values_are_named(self, arguments: list[str]) -> None:
        with pytest.raises(StartCommandError, match=r"^--?[a-z-]+ .*"):
            read_arguments(arguments)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--kv-transfer-config", "$CONFIG"],
            ["--kv-transfer-config=x"],
            ["--kv_transfer_config.kv_connector=LMCacheConnectorV1"],
            ["--kv-transfer-config.kv_connector", "LMCacheConnectorV1"],
        ],
    )
    def test_connector(self, arguments: list[str]) -> None:
        assert read_arguments(arguments).connector == "--kv-transfer-config"

    def test_native_offloading(self) -> None:
        assert read_arguments(["--kv-offloading-size", "8"]).connector == "--kv-offloading-size"

    def test_what_changes_values(self) -> None:
        arguments = read_arguments(["--rope-theta", "500000", "-q", "awq", "--port", "1"])
        found = {choice.name: choice.value for choice in arguments.choices}
        assert found == {"--rope-theta": "500000", "--quantization": "awq"}

    def test_lora(self) -> None:
        assert read_arguments(["--enable-lora"]).lora
        assert not read_arguments(["--enable-lora", "--no-enable-lora"]).lora

    def test_flags(self) -> None:
        default = read_arguments([])
        assert (default.prefix_caching, default.sleep_mode, default.computes_kv_scales) == (
            True, False, False,
        )  # fmt: skip
        told = read_arguments([
            "--no-enable-prefix-caching", "--enable-sleep-mode", "--calculate_kv_scales",
        ])  # fmt: skip
        assert (told.prefix_caching, told.sleep_mode, told.computes_kv_scales) == (
            False, True, True,
        )  # fmt: skip

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--speculative-config", '{"method": "ngram"}'],
            ["--speculative-config.method", "eagle"],
            ["-sc", "x"],
        ],
    )
    def test_draft_models(self, arguments: list[str]) -> None:
        assert read_arguments(arguments).speculates
        assert not read_arguments([]).speculates

    def test_sizes(self) -> None:
        told = read_arguments(["--block-size", "32", "-dp", "2"])
        assert (told.block_size, told.data_parallel) == (32, 2)
        assert (read_arguments([]).block_size, read_arguments([]).data_parallel) == (None, 1)

    def test_memory(self) -> None:
        told = read_arguments([
            *("--kv-cache-memory-bytes", "20G", "--num-gpu-blocks-override=4096"),
            *("--cpu-offload-gb", "1.5", "--swap-space", "16", "--enforce-eager"),
            *("--max-num-batched-tokens", "8k", "--max-num-seqs", "64", "-pcp", "2"),
            *("--enable-prompt-embeds", "--attention-backend", "FLASHINFER"),
        ])
        # 20 x 2^30 bytes: a capital letter is a power of two.
        assert told.kv_cache_memory_bytes == 21_474_836_480
        assert told.num_gpu_blocks_override == 4096
        assert (told.cpu_offload_gb, told.swap_space) == (1.5, 16.0)
        assert told.enforce_eager
        assert (told.max_num_batched_tokens, told.max_num_seqs) == (8000, 64)
        assert told.prefill_context_parallel == 2
        assert told.enable_prompt_embeds
        assert told.attention_backend == "FLASHINFER"

    @given(st.lists(st.text(max_size=12) | st.sampled_from(["-tp", "--config", "--dtype", "8"])))
    def test_anything_else_is_our_own_error(self, arguments: list[str]) -> None:
        with contextlib.suppress(StartCommandError):
            read_arguments(arguments)


class TestPlaces:
    def test_environment_in_the_agents_order(self) -> None:
        environ = {
            "VLLM_EXTRA_ARGS": "--max-model-len 4096 --served-model-name 'my model'",
            "VLLM_TP_SIZE": "2",
            "VLLM_QUANTIZATION": "awq",
            "VLLM_PP_SIZE": "",
        }
        assert environment_arguments(environ) == [
            *("--quantization", "awq", "--tensor-parallel-size", "2"),
            *("--max-model-len", "4096", "--served-model-name", "my model"),
        ]

    def test_other_engines_variables_too(self) -> None:
        # The agent does not look which engine the command runs.
        environ = {
            "SGLANG_TP_SIZE": "4",
            "VLLM_TP_SIZE": "2",
            "SGLANG_EXTRA_ARGS": "--b",
            "VLLM_EXTRA_ARGS": "--a",
        }
        assert environment_arguments(environ) == [
            *("--tensor-parallel-size", "2", "--tensor-parallel-size", "4", "--a", "--b"),
        ]

    def test_unbalanced_quotes(self) -> None:
        with pytest.raises(StartCommandError, match="VLLM_EXTRA_ARGS has unbalanced quotes"):
            environment_arguments({"VLLM_EXTRA_ARGS": "--served-model-name 'my model"})

    def test_config_file(self) -> None:
        config = {
            "tensor-parallel-size": 4,
            "enforce-eager": True,
            "enable-lora": False,
            "kv_transfer_config": {"kv_connector": "X"},
        }
        arguments = read_arguments(arguments_of_config(config))
        assert arguments.tensor_parallel == 4
        assert not arguments.lora
        assert arguments.connector == "--kv-transfer-config"

    def test_form_of_config_that_vllm_ignores(self) -> None:
        arguments = read_arguments(["/m", "--config=b.yaml"])
        assert arguments.config_file is None
        assert arguments.ignored_config == "--config=b.yaml"
