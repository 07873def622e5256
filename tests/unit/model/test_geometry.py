from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.config import read_json
from ai.backend.kvcache.model.geometry import Geometry, read_geometry

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


class TestBytesPerToken:
    # 2 (key and value) x KV heads x head_dim x 2 bytes x layers.
    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("llama-3.1-8b", 131_072),  # 2 x 8 x 128 x 2 x 32
            ("llama-3.1-70b", 327_680),  # 2 x 8 x 128 x 2 x 80
            ("mixtral-8x7b", 131_072),  # 2 x 8 x 128 x 2 x 32
            ("devstral-2-123b", 360_448),  # 2 x 8 x 128 x 2 x 88
            ("qwen3-32b", 262_144),  # 2 x 8 x 128 x 2 x 64; head_dim 128 is not 5120 / 64
        ],
    )
    def test_published_models(self, data: Path, model: str, expected: int) -> None:
        geometry = read_geometry(read_json(data, data / "models" / f"{model}.config.json"))
        assert geometry.bytes_per_token == expected

    @pytest.mark.parametrize(
        ("tensor", "pipeline", "expected"),
        [
            (1, 1, 360_448),
            (2, 1, 180_224),
            (8, 1, 45_056),
            (16, 1, 45_056),  # 8 KV heads on 16 ranks: every head twice
            (8, 2, 22_528),  # 44 of 88 layers
            (8, 3, 15_360),  # 30 of 88 layers on the fullest stage: 2 x 1 x 128 x 2 x 30
        ],
    )
    def test_per_gpu(self, data: Path, tensor: int, pipeline: int, expected: int) -> None:
        geometry = read_geometry(read_json(data, data / "models" / "devstral-2-123b.config.json"))
        assert geometry.bytes_per_token_per_gpu(tensor, pipeline) == expected

    def test_heads_that_cannot_be_divided(self) -> None:
        with pytest.raises(ModelError, match=r"8 KV heads cannot be divided .* 6"):
            read_geometry(LLAMA).bytes_per_token_per_gpu(6, 1)

    @pytest.mark.parametrize(
        ("kv_cache_dtype", "expected"),
        [("auto", 131_072), ("fp8", 65_536), ("fp8_e5m2", 65_536), ("float32", 262_144)],
    )
    def test_kv_dtype(self, kv_cache_dtype: str, expected: int) -> None:
        assert read_geometry(LLAMA, kv_cache_dtype=kv_cache_dtype).bytes_per_token == expected

    @given(
        layers=st.integers(1, 200),
        kv_heads=st.sampled_from([1, 2, 4, 8, 16]),
        tensor=st.sampled_from([1, 2, 4, 8, 16, 32]),
        pipeline=st.integers(1, 8),
    )
    def test_gpus_together_hold_at_least_the_whole(
        self, layers: int, kv_heads: int, tensor: int, pipeline: int
    ) -> None:
        geometry = Geometry("llama", layers, kv_heads, 128, "bfloat16", "bfloat16", 2, 8192)
        per_gpu = geometry.bytes_per_token_per_gpu(tensor, pipeline)
        assert per_gpu * tensor * pipeline >= geometry.bytes_per_token


class TestDtype:
    def test_vllm_runs_float32_checkpoints_in_16_bits(self) -> None:
        geometry = read_geometry({**LLAMA, "torch_dtype": "float32"})
        assert (geometry.dtype, geometry.element_bytes) == ("bfloat16", 2)

    def test_requested_float32_is_kept(self) -> None:
        geometry = read_geometry(LLAMA, dtype="float32")
        assert (geometry.compute_dtype, geometry.element_bytes) == ("float32", 4)

    def test_newer_field_name(self) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"} | {"dtype": "float16"}
        assert read_geometry(config).dtype == "float16"

    def test_unknown(self) -> None:
        with pytest.raises(ModelError, match="'fp4_magic' is unknown"):
            read_geometry(LLAMA, kv_cache_dtype="fp4_magic")


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            ("deepseek-v3", "model_type 'deepseek_v3'"),  # latent attention
            ("gpt-oss-120b", "model_type 'gpt_oss'"),  # sliding windows
            ("gemma-3-27b", "model_type 'gemma3_text'"),  # sliding windows
        ],
    )
    def test_models_that_are_not_plain(self, data: Path, model: str, reason: str) -> None:
        with pytest.raises(ModelError, match=reason):
            read_geometry(read_json(data, data / "models" / f"{model}.config.json"))

    def test_sliding_window_in_use(self) -> None:
        with pytest.raises(ModelError, match="sliding_window = 4096"):
            read_geometry({**LLAMA, "model_type": "mistral", "sliding_window": 4096})

    def test_sliding_window_not_in_use(self) -> None:
        config = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096}
        assert read_geometry({**config, "use_sliding_window": False}).bytes_per_token == 131_072

    @pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads"])
    @pytest.mark.parametrize("value", [None, 0, -1, 1.5, True, "32", float("nan"), [], {}])
    def test_nonsense_names_the_field(self, field: str, value: object) -> None:
        with pytest.raises(ModelError, match=field):
            read_geometry({**LLAMA, field: value})

    def test_implausible_layers(self) -> None:
        with pytest.raises(ModelError, match="num_hidden_layers = 1000000000"):
            read_geometry({**LLAMA, "num_hidden_layers": 10**9})

    def test_contradicting_heads(self) -> None:
        with pytest.raises(ModelError, match="num_attention_heads = 32 is no multiple"):
            read_geometry({**LLAMA, "num_key_value_heads": 7})

    def test_text_part_of_a_multimodal_model(self) -> None:
        assert read_geometry({"model_type": "mistral3", "text_config": LLAMA}).layers == 32

    @given(
        st.dictionaries(
            st.sampled_from([*LLAMA, "head_dim", "sliding_window", "text_config", "dtype"]),
            st.none()
            | st.booleans()
            | st.integers(-(2**40), 2**40)
            | st.floats()
            | st.text(max_size=8)
            | st.lists(st.integers(), max_size=2)
            | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        )
    )
    def test_anything_else_is_our_own_error(self, changes: dict[str, Any]) -> None:
        with contextlib.suppress(ModelError):
            assert read_geometry({**LLAMA, **changes}).bytes_per_token > 0
