from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from ai.backend.kvcache.model.geometry import read_geometry
from ai.backend.kvcache.model.overrides import override

TEXT: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
LLAVA = {"model_type": "llava", "text_config": TEXT}


@pytest.mark.parametrize(
    ("config", "changes", "longest"),
    [
        (TEXT, {}, 32_768),  # 4 x 8,192
        (TEXT, {"max_position_embeddings": 16384}, 65_536),
        # any object but a part takes the place of the old one, under either of its names
        (TEXT, {"rope_scaling": {"rope_type": "default"}}, 8_192),
        (TEXT, {"rope_parameters": {"rope_type": "default"}}, 8_192),
        (TEXT, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 16_384),
        (TEXT, {"rope_scaling": {"factor": 8.0}}, 65_536),
        (TEXT, {"rope_scaling": None}, 8_192),
        # a part is merged, and an object in it too
        (LLAVA, {"text_config": {"max_position_embeddings": 4096}}, 16_384),
        (LLAVA, {"text_config": {"rope_scaling": {"factor": 2.0}}}, 16_384),
        (LLAVA, {"text_config": {"rope_parameters": {"factor": 2.0}}}, 16_384),
        # beside the part a length says nothing of the text model
        (LLAVA, {"max_position_embeddings": 4096}, 32_768),
        # whatever the file calls the part
        (
            {"model_type": "deepseek_vl_v2", "language_config": TEXT},
            {"text_config": {"max_position_embeddings": 4096}},
            16_384,
        ),
        # of a file without parts
        (TEXT, {"text_config": {"max_position_embeddings": 4096}}, 16_384),
    ],
)
def test_longest_context(config: dict[str, Any], changes: dict[str, Any], longest: int) -> None:
    before = repr(config)
    assert read_geometry(override(config, changes)).max_model_len == longest
    assert repr(config) == before


def test_yarn_that_a_user_adds() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    changed = override(TEXT, {"rope_scaling": scaling})
    assert read_geometry(changed, vllm=Version("0.20.2")).max_model_len == 32_768
    assert read_geometry(changed, vllm=Version("0.33.0")).max_model_len == 8_192
    changed = override(TEXT, {"rope_scaling": scaling, "max_position_embeddings": 32768})
    assert read_geometry(changed, vllm=Version("0.33.0")).max_model_len == 32_768


def test_fewer_layers() -> None:
    # 2 x 8 x 128 x 2 x 2
    assert read_geometry(override(TEXT, {"num_hidden_layers": 2})).bytes_per_token == 8_192
    changed = override(LLAVA, {"text_config": {"num_hidden_layers": 2}})
    assert read_geometry(changed).bytes_per_token == 8_192


def test_another_family() -> None:
    changed = override(TEXT, {"model_type": "mistral", "sliding_window": 1024})
    assert read_geometry(changed).has_windows


def test_a_part_that_is_no_object() -> None:
    assert override(LLAVA, {"text_config": 5})["text_config"] == 5
