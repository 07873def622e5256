from __future__ import annotations

import pytest

from ai.backend.kvcache.engine.arguments import EngineArguments, read_arguments
from ai.backend.kvcache.engine.sglang import SGLANG


def read(*arguments: str) -> EngineArguments:
    return read_arguments(arguments, SGLANG)


@pytest.mark.parametrize("model", [("/models",), ("--model-path", "/models"), ("--model=/models",)])
def test_model(model: tuple[str, ...]) -> None:
    assert read(*model, "--port", "8000").model == "/models"


@pytest.mark.parametrize("option", ["--tp", "--tp-size", "--tensor-parallel-size", "--tensor-par"])
def test_tensor_parallel(option: str) -> None:
    assert read("/models", option, "8").tensor_parallel == 8


def test_what_else_is_read() -> None:
    told = read(
        *("/models", "--pp-size", "2", "--context-length", "131072", "--page-size", "64"),
        *("--served-model-name", "mine", "--kv-cache-dtype", "fp8_e4m3", "--dp=2"),
        *("--json-model-override-args", '{"rope_theta": 1e6}'),
    )
    assert told.pipeline_parallel == 2
    assert told.max_model_len == 131_072
    assert told.block_size == 64
    assert told.served_model_name == "mine"
    assert told.kv_cache_dtype == "fp8_e4m3"
    assert told.data_parallel == 2
    assert told.hf_overrides == {"rope_theta": 1e6}
    assert [choice.name for choice in told.choices] == [
        "--page-size",
        "--json-model-override-args.rope_theta",
    ]


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ("--disable-radix-cache", "prefix_caching", False),
        ("--enable-lora", "lora", True),
        ("--lora-paths", "lora", True),
        ("--enable-hicache", "connector", "--enable-hicache"),
        ("--enable-lmcache", "connector", "--enable-lmcache"),
        ("--speculative-algorithm", "speculates", True),
    ],
)
def test_presence(argument: str, field: str, value: object) -> None:
    assert getattr(read("/models"), field) != value
    assert getattr(read("/models", argument, "x"), field) == value
