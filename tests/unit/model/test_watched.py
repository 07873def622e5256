from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.model.watched import watches_length


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "rope_scaling": {"type": "longrope"}},
        {"model_type": "phi3", "rope_scaling": {"type": "su"}},
        {"model_type": "minicpm3", "rope_scaling": {"rope_type": "longrope"}},
        {"model_type": "phi3", "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        # one for each kind of layer
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
        {"model_type": "llama4"},
        {"model_type": "llama4", "text_config": {"model_type": "llama4_text"}},
        {"model_type": "x", "text_config": {"model_type": "llama4_text"}},
        {"model_type": "x", "llm_config": {"rope_scaling": {"type": "longrope"}}},
    ],
)
def test_models_that_do(config: dict[str, Any]) -> None:
    assert watches_length(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama", "rope_scaling": None},
        {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"model_type": "qwen3", "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"model_type": None, "rope_scaling": "longrope", "text_config": []},
    ],
)
def test_models_that_do_not(config: dict[str, Any]) -> None:
    assert not watches_length(config)


@pytest.mark.parametrize(
    "name", ["devstral-2-123b", "deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "qwen3-32b"]
)
def test_of_real_models_few_do(data: Path, name: str) -> None:
    config = json.loads((data / f"models/{name}.config.json").read_text())
    assert not watches_length(config)


@pytest.mark.parametrize(
    "name", ["llama-4-scout", "llama-4-maverick", "phi-3.5-mini", "phi-4-mini"]
)
def test_of_real_models_some_do(name: str) -> None:
    assert watches_length(open_model(name).config)
