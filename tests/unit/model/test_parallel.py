from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.geometry import read_geometry
from ai.backend.kvcache.model.parallel import Parallel, stage_sizes

QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 40960,
    "dtype": "bfloat16",
}


class TestStages:
    @pytest.mark.parametrize(
        ("layers", "pipeline", "expected"),
        [
            (80, 1, [80]),
            (80, 2, [40, 40]),
            # one over: not to the last, which has the output projection
            (61, 2, [31, 30]),
            # not to the first either, which has the embeddings, while there are others
            (61, 3, [20, 21, 20]),
            (62, 3, [21, 21, 20]),
            (94, 4, [23, 24, 24, 23]),
            (95, 4, [24, 24, 24, 23]),
            (3, 3, [1, 1, 1]),
        ],
    )
    def test_as_vllm_deals_layers_out(
        self, layers: int, pipeline: int, expected: list[int]
    ) -> None:
        assert stage_sizes(layers, pipeline) == expected

    def test_more_stages_than_layers(self) -> None:
        with pytest.raises(ModelError, match=r"3 layers cannot be divided .* size of 4"):
            stage_sizes(3, 4)


class TestRefusals:
    @pytest.mark.parametrize("tensor", [3, 5, 6, 7, 24, 128])
    def test_heads_that_cannot_be_divided(self, tensor: int) -> None:
        with pytest.raises(ModelError, match=f"tensor-parallel size of {tensor}"):
            read_geometry(QWEN).per_gpu(Parallel(tensor))

    def test_kv_heads_that_cannot_be_divided(self) -> None:
        # 12 heads ask, 4 are kept: 6 divides the former only
        config = {**QWEN, "num_attention_heads": 12, "num_key_value_heads": 4}
        with pytest.raises(ModelError, match=r"4 KV heads cannot be divided .* 6"):
            read_geometry(config).per_gpu(Parallel(6))

    def test_recurrent_heads_that_cannot_be_divided(self) -> None:
        config = {
            **QWEN, "model_type": "bamba", "layers_block_type": ["mamba"] * 94,
            "mamba_n_heads": 12, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4,
        }  # fmt: skip
        with pytest.raises(ModelError, match="12 heads of a recurrent layer"):
            read_geometry(config).per_gpu(Parallel(8))


class TestDecodeContext:
    def test_tokens_are_dealt_out(self) -> None:
        # 4 KV heads on 16 ranks, each four times: 94 x 2 x 128 x 2 = 48,128 on every rank, of
        # which two ranks each keep every second token.
        geometry = read_geometry(QWEN)
        assert geometry.per_gpu(Parallel(16)).bytes_per_token == 48_128
        assert geometry.per_gpu(Parallel(16, 1, 2)).bytes_per_token == 24_064
        assert geometry.per_gpu(Parallel(16, 1, 4)).bytes_per_token == 12_032

    def test_latent_vectors_are_dealt_out(self) -> None:
        # 94 x 576 x 2 on each of 8 ranks, or an eighth of them
        config = {**QWEN, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        geometry = read_geometry(config)
        assert geometry.per_gpu(Parallel(8)).bytes_per_token == 108_288
        assert geometry.per_gpu(Parallel(8, 1, 8)).bytes_per_token == 13_536

    @pytest.mark.parametrize(
        ("parallel", "message"),
        [
            (Parallel(16, 1, 3), "16 cannot be divided by a decode-context-parallel size of 3"),
            (Parallel(4, 1, 2), "needs a tensor-parallel size of at least 8 for 4 KV heads"),
            (Parallel(16, 1, 8), "needs a tensor-parallel size of at least 32"),
        ],
    )
    def test_sizes_that_do_not_go(self, parallel: Parallel, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            read_geometry(QWEN).per_gpu(parallel)

    def test_windows_do_not_go(self) -> None:
        config = {**QWEN, "model_type": "mistral", "sliding_window": 4096}
        with pytest.raises(ModelError, match="does not go with sliding_window layers"):
            read_geometry(config).per_gpu(Parallel(16, 1, 2))


class TestRecurrentState:
    def test_divided_and_shared_groups_repeated(self) -> None:
        # Mamba 2 with 64 heads of 64, one group, state 128: the whole keeps
        # 3 x (4,096 + 2 x 128) x 2 + 4,096 x 128 x 2 = 1,074,688 in each layer; of 8 ranks each
        # has its own copy of the group: (3 x (4,096 + 8 x 256) x 2 + 1,048,576) / 8 = 135,680.
        config = {
            **QWEN, "model_type": "bamba", "num_hidden_layers": 2,
            "layers_block_type": ["mamba", "attention"], "mamba_n_heads": 64, "mamba_d_head": 64,
            "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_groups": 1,
        }  # fmt: skip
        geometry = read_geometry(config)
        assert geometry.constant_bytes_per_sequence == 1_074_688
        share = geometry.per_gpu(Parallel(8))
        # 2 x 1 x 128 x 2 for each token besides
        assert share.sequence_bytes(1, hybrid=True) == 135_680 + 512
        assert share.sequence_bytes(1001, hybrid=False) == 135_680 + 512_512


LAYOUTS = st.tuples(
    st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8), st.sampled_from([1, 2, 4])
)


def config_of(layers: int, kv_heads: int, head_dim: int, window: int | None) -> dict[str, Any]:
    return {
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "sliding_window": window,
        "layer_types": [
            "sliding_attention" if window and i % 3 else "full_attention" for i in range(layers)
        ],
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
    }


@given(
    layers=st.integers(8, 120),
    kv_heads=st.sampled_from([1, 2, 4, 8, 16, 64]),
    head_dim=st.sampled_from([64, 128, 192, 256]),
    window=st.none() | st.integers(1, 8192),
    dtype=st.sampled_from(["auto", "fp8", "int8_per_token_head"]),
    layout=LAYOUTS,
    tokens=st.integers(1, 200_000),
)
def test_gpus_together_hold_at_least_the_whole(
    layers: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    dtype: str,
    layout: tuple[int, int, int],
    tokens: int,
) -> None:
    geometry = read_geometry(config_of(layers, kv_heads, head_dim, window), kv_cache_dtype=dtype)
    parallel = Parallel(*layout)
    try:
        share = geometry.per_gpu(parallel)
    except ModelError:
        return
    assert share.bytes_per_token * parallel.gpus >= geometry.bytes_per_token
    assert share.bytes_per_token_no_hybrid * parallel.gpus >= geometry.bytes_per_token_no_hybrid
    assert share.sequence_bytes(tokens, hybrid=True) <= share.sequence_bytes(tokens, hybrid=False)
    whole = geometry.per_gpu(Parallel())
    for hybrid in (True, False):
        one = share.sequence_bytes(tokens, hybrid=hybrid)
        assert one <= whole.sequence_bytes(tokens, hybrid=hybrid)
        assert one * parallel.gpus >= whole.sequence_bytes(tokens, hybrid=hybrid)


@given(
    layers=st.integers(1, 100),
    kv_heads=st.sampled_from([1, 2, 4, 8, 16, 32]),
    window=st.none() | st.integers(1, 8192),
    tensor=st.sampled_from([1, 2, 4, 8]),
    tokens=st.integers(1, 100_000),
)
def test_more_of_anything_takes_more(
    layers: int, kv_heads: int, window: int | None, tensor: int, tokens: int
) -> None:
    def taken(layers: int, kv_heads: int, dtype: str, tokens: int) -> int:
        geometry = read_geometry(config_of(layers, kv_heads, 128, window), kv_cache_dtype=dtype)
        return geometry.per_gpu(Parallel(tensor)).sequence_bytes(tokens, hybrid=True)

    base = taken(layers, kv_heads, "fp8", tokens)
    assert taken(layers + 1, kv_heads, "fp8", tokens) > base
    assert taken(layers, 2 * kv_heads, "fp8", tokens) >= base
    assert taken(layers, kv_heads, "bfloat16", tokens) == 2 * base
    assert taken(layers, kv_heads, "fp8", tokens + 1) >= base
