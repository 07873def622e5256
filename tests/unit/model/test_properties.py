"""What the choice of a way asks of a model's geometry."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.catalog import find_in_catalog
from ai.backend.kvcache.model.geometry import read_geometry

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}

PROPERTIES = ("is_latent", "has_indexer", "has_windows", "has_unequal_heads", "is_multimodal")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3.1-70b", set()),
        ("deepseek-v3", {"is_latent"}),
        ("deepseek-v3.2", {"is_latent", "has_indexer"}),
        ("glm-5.1", {"is_latent", "has_indexer"}),
        ("qwen2.5-vl-72b", {"is_multimodal"}),
        ("gpt-oss-120b", {"has_windows"}),
        # 16 KV heads of 256 elements in windows, 4 of 512 in the others
        ("gemma-4-31b", {"has_windows", "has_unequal_heads", "is_multimodal"}),
        # 8 KV heads in windows, 4 in the others
        ("mimo-v2-flash", {"has_windows", "has_unequal_heads"}),
        # every layer has 16 KV heads of 128
        ("gemma-3-27b", {"has_windows", "is_multimodal"}),
    ],
)
def test_catalog(model: str, expected: set[str]) -> None:
    geometry = read_geometry(find_in_catalog(model).config)
    assert {name for name in PROPERTIES if getattr(geometry, name)} == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"vision_config": {"hidden_size": 1024}}, True),
        ({"vision_config": {}}, False),
        ({"vision_config": None}, False),
        ({"audio_config": {"hidden_size": 1280}}, True),
        ({"vision_encoder": {"hidden_size": 1024}}, True),  # Mistral's params.json
        ({"mm_vision_tower": "openai/clip-vit-large-patch14-336"}, True),  # LLaVA before 1.6
        ({"architectures": ["Phi4MMForCausalLM"]}, True),
        ({"architectures": ["Qwen2VLForConditionalGeneration"]}, True),
        ({"architectures": ["ChatGLMForConditionalGeneration"]}, False),
        ({"architectures": None}, False),
    ],
)
def test_multimodal(fields: dict[str, Any], expected: bool) -> None:
    assert read_geometry({**LLAMA, **fields}).is_multimodal is expected


def test_multimodal_by_its_outer_part() -> None:
    inner = {k: v for k, v in LLAMA.items() if k != "architectures"}
    config = {"model_type": "llava", "vision_config": {"hidden_size": 1024}, "text_config": inner}
    assert read_geometry(config).is_multimodal


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"model_type": "iquestloopcoder"}, True),
        ({"model_type": "iquestloopcoder", "loop_num": 1}, False),
        ({"model_type": "ouro"}, True),
        # one cache of tokens and one state in each layer
        (
            {
                "model_type": "falcon_h1", "mamba_n_heads": 32, "mamba_d_head": 64,
                "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_n_groups": 1,
            },
            False,
        ),
    ],
)  # fmt: skip
def test_layers_that_run_several_times(fields: dict[str, Any], expected: bool) -> None:
    assert read_geometry({**LLAMA, **fields}).has_repeated_layers is expected


def test_an_indexer_is_no_repetition() -> None:
    assert not read_geometry(find_in_catalog("deepseek-v3.2").config).has_repeated_layers


def test_architectures_that_are_no_names() -> None:
    with pytest.raises(ModelError, match="architectures = 5 is not a list of names"):
        read_geometry({**LLAMA, "architectures": 5})
