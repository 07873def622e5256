from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from packaging.version import Version

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.catalog import find_in_catalog
from ai.backend.kvcache.model.config import read_json
from ai.backend.kvcache.model.geometry import Geometry, read_geometry
from ai.backend.kvcache.model.parallel import Parallel

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
# 2 (key and value) x 8 KV heads x 128 x 2 bytes x 32 layers
LLAMA_BYTES = 131_072


def of(data: Path, model: str, kv_cache_dtype: str = "auto") -> Geometry:
    config = read_json(data, data / "models" / f"{model}.config.json")
    return read_geometry(config, kv_cache_dtype=kv_cache_dtype)


def kinds(geometry: Geometry) -> dict[str, int]:
    return {str(g.cache.kind): g.count for g in geometry.groups}


class TestPublishedModels:
    # Growing layers, whole model; every layer in full, whole model; windows and states, of one
    # sequence. All in bfloat16.
    @pytest.mark.parametrize(
        ("model", "growing", "in_full", "constant"),
        [
            # 2 x 8 x 128 x 2 x 32, 80, 32, 88 and 64 layers
            ("llama-3.1-8b", 131_072, 131_072, 0),
            ("llama-3.1-70b", 327_680, 327_680, 0),
            ("mixtral-8x7b", 131_072, 131_072, 0),
            ("devstral-2-123b", 360_448, 360_448, 0),
            ("qwen3-32b", 262_144, 262_144, 0),  # head_dim 128 is not 5120 / 64
            # 61 x (512 + 64) x 2: one vector, not a key and a value
            ("deepseek-v3", 70_272, 70_272, 0),
            # 2 x 8 x 64 x 2 = 2,048 a layer; 18 of 36 layers; 18 x 128 tokens x 2,048
            ("gpt-oss-120b", 36_864, 73_728, 4_718_592),
            # 2 x 16 x 128 x 2 = 8,192 a layer; 10 of 62 layers; 52 x 1,024 tokens x 8,192
            ("gemma-3-27b", 81_920, 507_904, 436_207_616),
        ],
    )
    def test_captured(
        self, data: Path, model: str, growing: int, in_full: int, constant: int
    ) -> None:
        geometry = of(data, model)
        assert geometry.bytes_per_token == growing
        assert geometry.bytes_per_token_no_hybrid == in_full
        assert geometry.constant_bytes_per_sequence == constant
        assert geometry.warnings == ()

    @pytest.mark.parametrize(
        ("model", "growing", "in_full", "constant"),
        [
            ("llama-3.1-405b", 516_096, 516_096, 0),  # 2 x 8 x 128 x 2 x 126
            ("qwen3-8b", 147_456, 147_456, 0),  # 2 x 8 x 128 x 2 x 36
            ("qwen3-30b-a3b", 98_304, 98_304, 0),  # 2 x 4 x 128 x 2 x 48
            ("glm-4.5", 376_832, 376_832, 0),  # 2 x 8 x 128 x 2 x 92; 5120 / 96 is no head_dim
            # 2 x 2 x 256 x 2 x 12 of 48 layers. The others keep 3 x (2 x 16 x 128 + 32 x 128) x 2
            # bytes for the convolution and 32 x 128 x 128 x 2 for the recurrence, 1,097,728.
            ("qwen3-next-80b-a3b", 24_576, 24_576, 39_518_208),
            # MLA as above, and 128 bytes of fp8 keys with one float32 in each layer's indexer
            ("deepseek-v3.2", 78_324, 78_324, 0),  # 61 x (1,152 + 132)
            ("deepseek-v2-lite", 31_104, 31_104, 0),  # 27 x 576 x 2
            # 2 x 8 x 128 x 2 x 12 of 48 layers; chunks of 8,192 tokens in the other 36
            ("llama-4-scout", 49_152, 196_608, 1_207_959_552),
            # 2 x 8 x 128 x 2 x 32; the 8 layers that look at images keep nothing of text
            ("llama-3.2-11b-vision", 131_072, 131_072, 0),
            # 2 x 8 x 128 x 2, all 32 layers with a window of 4,096
            ("mistral-7b-v0.1", 0, 131_072, 536_870_912),
            # 2 x 2 x 256 x 2 = 2,048 a layer: 4 full, 16 with a window of 512, 15 that share
            ("gemma-3n-e4b", 8_192, 40_960, 16_777_216),
            ("falcon-40b", 122_880, 122_880, 0),  # 2 x 8 x 64 x 2 x 60; num_kv_heads
            # 2 x 8 x 128 x 2 x 16 of 64 layers; sliding_window_pattern "LLLG"
            ("exaone-4.0-32b", 65_536, 262_144, 805_306_368),
            # 2 x 8 x 128 x 2 x 4 of 56 blocks; 27 of Mamba 2 with 128 heads of 80 and 8 groups:
            # 3 x (10,240 + 2 x 8 x 128) x 2 and 10,240 x 128 x 4 (float32)
            ("nemotron-nano-9b-v2", 16_384, 16_384, 143_548_416),
            # 2 x 8 x 128 x 2 x 4 of 32 layers; Mamba 1: 8,192 x 3 x 2 and 8,192 x 16 x 2
            ("jamba-1.5-mini", 16_384, 16_384, 8_716_288),
            # 32 layers of 2 x 32 x 96 x 2; the window of 262,144 is longer than any context
            ("phi-3.5-mini", 393_216, 393_216, 0),
        ],
    )
    def test_catalog(self, model: str, growing: int, in_full: int, constant: int) -> None:
        geometry = read_geometry(find_in_catalog(model).config)
        assert geometry.bytes_per_token == growing
        assert geometry.bytes_per_token_no_hybrid == in_full
        assert geometry.constant_bytes_per_sequence == constant

    # Bytes of a token on one GPU, growing layers.
    @pytest.mark.parametrize(
        ("model", "tp1", "tp2", "tp4", "tp8", "tp16"),
        [
            # 8 KV heads on 16 ranks: every head twice
            ("llama-3.1-8b", 131_072, 65_536, 32_768, 16_384, 16_384),
            ("llama-3.1-70b", 327_680, 163_840, 81_920, 40_960, 40_960),
            ("mixtral-8x7b", 131_072, 65_536, 32_768, 16_384, 16_384),
            ("devstral-2-123b", 360_448, 180_224, 90_112, 45_056, 45_056),
            ("qwen3-32b", 262_144, 131_072, 65_536, 32_768, 32_768),
            # one vector for all heads, on every rank
            ("deepseek-v3", 70_272, 70_272, 70_272, 70_272, 70_272),
            ("gpt-oss-120b", 36_864, 18_432, 9_216, 4_608, 4_608),
            ("gemma-3-27b", 81_920, 40_960, 20_480, 10_240, 5_120),  # 16 KV heads
        ],
    )
    @pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
    def test_tensor_parallel(
        self, data: Path, model: str, dtype: str, tp1: int, tp2: int, tp4: int, tp8: int, tp16: int
    ) -> None:
        geometry = of(data, model, kv_cache_dtype=dtype)
        found = [geometry.per_gpu(Parallel(tp)).bytes_per_token for tp in (1, 2, 4, 8, 16)]
        if dtype == "bfloat16":
            assert found == [tp1, tp2, tp4, tp8, tp16]
        elif model == "deepseek-v3":
            # 512 bytes, 4 float32 scales and 64 rotary elements of 2 bytes: 656 x 61
            assert found == [40_016] * 5
        else:
            assert [2 * n for n in found] == [tp1, tp2, tp4, tp8, tp16]

    # Bytes of a token on one GPU of the fullest stage.
    @pytest.mark.parametrize(
        ("model", "pp2", "pp3"),
        [
            ("llama-3.1-8b", 65_536, 45_056),  # 16 of 32 layers; 11, 11, 10
            ("llama-3.1-70b", 163_840, 110_592),  # 40; 26 + 1, 27, 26
            ("mixtral-8x7b", 65_536, 45_056),
            ("devstral-2-123b", 180_224, 122_880),  # 44; 29, 30, 29
            ("qwen3-32b", 131_072, 90_112),  # 32; 21, 22, 21
            ("deepseek-v3", 35_712, 24_192),  # 31 of 61; 20, 21, 20
            ("gpt-oss-120b", 18_432, 12_288),  # 9 and 6 layers without a window
            # layers 5, 11, ..., 59 have none: 5 and 5; 3, 4 and 3 (of 21, 21 and 20 layers)
            ("gemma-3-27b", 40_960, 32_768),
        ],
    )
    def test_pipeline_parallel(self, data: Path, model: str, pp2: int, pp3: int) -> None:
        geometry = of(data, model)
        assert geometry.per_gpu(Parallel(1, 2)).bytes_per_token == pp2
        assert geometry.per_gpu(Parallel(1, 3)).bytes_per_token == pp3
        whole = of(data, model).bytes_per_token
        assert geometry.per_gpu(Parallel(1, 1)).bytes_per_token == whole

    def test_windows_in_full_on_one_gpu(self, data: Path) -> None:
        # 62 layers x 2 x 2 heads x 128 x 2 bytes, and 21 of them on the fullest of three stages
        gemma = of(data, "gemma-3-27b")
        assert gemma.per_gpu(Parallel(8)).bytes_per_token_no_hybrid == 63_488
        assert gemma.per_gpu(Parallel(8, 3)).bytes_per_token_no_hybrid == 21_504

    def test_sequence_with_windows(self, data: Path) -> None:
        share = of(data, "gpt-oss-120b").per_gpu(Parallel(1))
        # 131,072 x 36,864, and 128 x 36,864 in the windows
        assert share.sequence_bytes(131_072, hybrid=True) == 4_836_556_800
        assert share.sequence_bytes(131_072, hybrid=False) == 9_663_676_416  # x 73,728
        # shorter than the window
        assert share.sequence_bytes(100, hybrid=True) == 7_372_800


class TestKvDtype:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("auto", LLAMA_BYTES),
            ("bfloat16", LLAMA_BYTES),
            ("float16", LLAMA_BYTES),
            ("float32", 262_144),
            ("fp8", 65_536),
            ("fp8_e4m3", 65_536),
            ("fp8_e5m2", 65_536),
            ("fp8_inc", 65_536),
            ("int8", 65_536),
            # 128 elements and a float32, for each head's key and value: 2 x 8 x 132 x 32
            ("int8_per_token_head", 67_584),
            ("fp8_per_token_head", 67_584),
            ("int4_per_token_head", 34_816),  # 2 x 8 x (64 + 4) x 32
            ("nvfp4", 36_864),  # 2 x 8 x (64 + 8) x 32
        ],
    )
    def test_spellings(self, name: str, expected: int) -> None:
        assert read_geometry(LLAMA, kv_cache_dtype=name).bytes_per_token == expected

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("fp8_ds_mla", 40_016),  # 656 x 61
            ("nvfp4_ds_mla", 21_472),  # 352 x 61
            ("int8_per_token_head", 35_624),  # (576 + 8) x 61
        ],
    )
    def test_latent(self, data: Path, name: str, expected: int) -> None:
        assert of(data, "deepseek-v3", kv_cache_dtype=name).bytes_per_token == expected

    def test_fp8_of_latent_attention_says_what_is_assumed(self, data: Path) -> None:
        assert "largest layout" in of(data, "deepseek-v3", kv_cache_dtype="fp8").warnings[0]
        assert of(data, "deepseek-v3", kv_cache_dtype="fp8_ds_mla").warnings == ()

    @pytest.mark.parametrize("name", ["fp8_ds_mla", "nvfp4_ds_mla"])
    def test_latent_format_without_latent_attention(self, name: str) -> None:
        with pytest.raises(ModelError, match=f"'{name}' is for latent attention"):
            read_geometry(LLAMA, kv_cache_dtype=name)

    @pytest.mark.parametrize(
        ("quantization", "expected"),
        [
            ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
            (
                {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}},
                "nvfp4",
            ),
            (
                {
                    "quant_method": "compressed-tensors",
                    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
                },
                "fp8_e4m3",
            ),
            ({"quant_method": "fp8"}, "bfloat16"),
            ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "bfloat16"),
        ],
    )
    def test_auto_follows_the_checkpoint(self, quantization: dict[str, Any], expected: str) -> None:
        config = {**LLAMA, "quantization_config": quantization}
        assert read_geometry(config).dtype == expected
        assert read_geometry(config, kv_cache_dtype="bfloat16").dtype == "bfloat16"

    @pytest.mark.parametrize("name", ["fp4_magic", "", "FP8"])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(ModelError, match=f"'{name}' is unknown"):
            read_geometry(LLAMA, kv_cache_dtype=name)


class TestComputeDtype:
    def test_vllm_runs_float32_checkpoints_in_16_bits(self) -> None:
        assert read_geometry({**LLAMA, "torch_dtype": "float32"}).dtype == "bfloat16"

    def test_requested_float32_is_kept(self) -> None:
        geometry = read_geometry(LLAMA, dtype="float32")
        assert (geometry.compute_dtype, geometry.bytes_per_token) == ("float32", 262_144)

    def test_newer_field_name(self) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"} | {"dtype": "float16"}
        assert read_geometry(config).dtype == "float16"

    def test_unknown(self) -> None:
        with pytest.raises(ModelError, match="'fp4_magic' is unknown"):
            read_geometry(LLAMA, dtype="fp4_magic")


class TestFields:
    @pytest.mark.parametrize("value", [None, 0])
    def test_head_dim_that_is_not_given(self, value: object) -> None:
        assert read_geometry({**LLAMA, "head_dim": value}).bytes_per_token == LLAMA_BYTES

    def test_head_dim_wins(self) -> None:
        # 2 x 8 x 256 x 2 x 32
        assert read_geometry({**LLAMA, "head_dim": 256}).bytes_per_token == 262_144

    @pytest.mark.parametrize(
        "name",
        [
            "num_key_value_heads",
            "n_head_kv",
            "num_kv_heads",
            "n_kv_heads",
            "multi_query_group_num",
            "num_attention_groups",
            "num_query_groups",
        ],
    )
    def test_names_of_kv_heads(self, name: str) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
        assert read_geometry({**config, name: 4}).bytes_per_token == 65_536

    def test_without_kv_heads_all_are_kept(self) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
        assert read_geometry(config).bytes_per_token == 4 * LLAMA_BYTES

    def test_one_kv_head_by_flag(self) -> None:
        # Falcon 7B: 71 heads of 64, one kept: 2 x 64 x 2 x 32
        falcon = {
            "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71,
            "hidden_size": 4544, "multi_query": True, "torch_dtype": "bfloat16",
        }  # fmt: skip
        assert read_geometry(falcon).bytes_per_token == 8_192

    def test_old_names_of_everything(self) -> None:
        # GPT-2: 2 x 12 x 64 x 2 x 12
        gpt2 = {
            "model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024,
            "dtype": "float16",
        }  # fmt: skip
        geometry = read_geometry(gpt2)
        assert (geometry.bytes_per_token, geometry.max_model_len) == (36_864, 1024)

    def test_attention_in_a_part_of_its_own(self) -> None:
        # DBRX: 2 x 8 x 128 x 2 x 40
        dbrx = {
            "model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144,
            "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8}, "torch_dtype": "bfloat16",
        }  # fmt: skip
        assert read_geometry(dbrx).bytes_per_token == 163_840

    @pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
    def test_text_part_of_a_multimodal_model(self, part: str) -> None:
        assert read_geometry({"model_type": "x", part: LLAMA}).bytes_per_token == LLAMA_BYTES

    def test_text_part_of_a_part(self) -> None:
        config = {"model_type": "omni", "thinker_config": {"text_config": LLAMA}}
        assert read_geometry(config).bytes_per_token == LLAMA_BYTES

    @pytest.mark.parametrize(("whole", "part"), [("float16", "bfloat16"), ("bfloat16", "float16")])
    def test_dtype_of_the_whole_model_wins(self, whole: str, part: str) -> None:
        # LLaVA 1.6 says float16 of the whole, bfloat16 of its language model, and runs in float16.
        config = {
            "model_type": "llava_next",
            "torch_dtype": whole,
            "text_config": {**LLAMA, "torch_dtype": part},
        }
        assert read_geometry(config).compute_dtype == whole

    def test_dtype_of_the_whole_model(self) -> None:
        inner = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
        config = {"model_type": "x", "torch_dtype": "float16", "text_config": inner}
        assert read_geometry(config).dtype == "float16"

    def test_mistrals_own_file(self) -> None:
        # Mistral 7B v0.1: 2 x 8 x 128 x 2 bytes in 32 layers, all with a window
        params = {
            "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
            "n_kv_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
        }  # fmt: skip
        geometry = read_geometry(params, file="params.json")
        assert geometry.bytes_per_token_no_hybrid == 131_072
        assert geometry.constant_bytes_per_sequence == 536_870_912  # 4,096 tokens
        assert geometry.max_model_len == 128_000

    def test_mistrals_windows_by_turns(self) -> None:
        params = {
            "dim": 4096, "n_layers": 36, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8,
            "sliding_window": [None, 32768, 32768, 32768], "max_seq_len": 131072,
        }  # fmt: skip
        geometry = read_geometry(params, file="params.json")
        assert kinds(geometry) == {"full_attention": 9, "sliding_window": 27}

    def test_mistrals_latent_attention(self) -> None:
        # 61 x (512 + 64) x 2
        params = {
            "dim": 7168, "n_layers": 61, "head_dim": 128, "n_heads": 128, "n_kv_heads": 128,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 294912,
        }  # fmt: skip
        assert read_geometry(params, file="params.json").bytes_per_token == 70_272


class TestPatterns:
    WINDOW: ClassVar = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}

    def test_window_everywhere(self) -> None:
        assert kinds(read_geometry(self.WINDOW)) == {"sliding_window": 32}

    @pytest.mark.parametrize("model_type", ["mistral", "qwen2", "somebodys"])
    def test_window_switched_off(self, model_type: str) -> None:
        config = {**self.WINDOW, "model_type": model_type, "use_sliding_window": False}
        assert kinds(read_geometry(config)) == {"full_attention": 32}

    def test_family_whose_window_is_off_unless_switched_on(self) -> None:
        config = {**self.WINDOW, "model_type": "qwen2", "max_window_layers": 28}
        assert kinds(read_geometry(config)) == {"full_attention": 32}
        config["use_sliding_window"] = True
        assert kinds(read_geometry(config)) == {"full_attention": 28, "sliding_window": 4}

    def test_family_with_windows_and_a_model_without(self) -> None:
        # As EXAONE 4.0 1.2B has it.
        fields = {"model_type": "exaone4", "sliding_window": None, "sliding_window_pattern": None}
        assert kinds(read_geometry({**LLAMA, **fields})) == {"full_attention": 32}

    @pytest.mark.parametrize("window", [None, 0])
    def test_no_window(self, window: object) -> None:
        assert kinds(read_geometry({**self.WINDOW, "sliding_window": window})) == {
            "full_attention": 32
        }

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            (
                {"layer_types": ["sliding_attention", "full_attention"] * 16},
                {"sliding_window": 16, "full_attention": 16},
            ),
            # the sixth, twelfth, ... of 32 see everything
            ({"sliding_window_pattern": 6}, {"sliding_window": 27, "full_attention": 5}),
            ({"_sliding_window_pattern": 4}, {"sliding_window": 24, "full_attention": 8}),
            # LLLG eight times; one L more would still end in a layer that sees everything
            ({"sliding_window_pattern": "LLLG"}, {"sliding_window": 24, "full_attention": 8}),
            ({"sliding_window_pattern": "LLL"}, {"sliding_window": 31, "full_attention": 1}),
            (
                {"hybrid_layer_pattern": [0, 1, 1, 1] * 8},
                {"full_attention": 8, "sliding_window": 24},
            ),
            (
                {"cross_attention_layers": [3, 8]},
                {"full_attention": 30, "cross_attention": 2},
            ),
            ({"num_kv_shared_layers": 12}, {"sliding_window": 20, "shared": 12}),
        ],
    )
    def test_ways_to_write_it(self, fields: dict[str, Any], expected: dict[str, int]) -> None:
        assert kinds(read_geometry({**self.WINDOW, **fields})) == expected

    @pytest.mark.parametrize(
        ("fields", "recurrent", "full"),
        [
            ({"full_attention_interval": 4}, 24, 8),
            ({"attn_layer_indices": [3, 9]}, 30, 2),
            ({"attn_layer_period": 8, "attn_layer_offset": 4}, 28, 4),
            ({"layers_block_type": ["mamba"] * 30 + ["attention"] * 2}, 30, 2),
        ],
    )
    def test_recurrent_layers(self, fields: dict[str, Any], recurrent: int, full: int) -> None:
        mamba = {
            "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4,
            "mamba_n_groups": 1,
        }  # fmt: skip
        geometry = read_geometry({**LLAMA, "model_type": "bamba", **mamba, **fields})
        assert kinds(geometry) == {"mamba": recurrent, "full_attention": full}
        # 3 x (4,096 + 2 x 128) x 2 for the convolution, 4,096 x 128 x 2 for the recurrence
        assert geometry.constant_bytes_per_sequence == recurrent * 1_074_688

    def test_short_convolution(self) -> None:
        fields = {"full_attn_idxs": [2, 5], "conv_L_cache": 3}
        geometry = read_geometry({**LLAMA, "model_type": "lfm2", **fields})
        assert kinds(geometry) == {"short_convolution": 30, "full_attention": 2}
        assert geometry.constant_bytes_per_sequence == 30 * 16_384  # 2 x 4,096 x 2

    def test_rotary_layers_look_back_in_chunks(self) -> None:
        config = {**LLAMA, "model_type": "llama4_text", "no_rope_layers": [1, 1, 0, 1] * 8}
        expected = {"chunked_attention": 24, "full_attention": 8}
        assert kinds(read_geometry(config)) == expected
        # a list of another length, and one that is empty: every fourth layer has none
        with pytest.raises(ModelError, match="no_rope_layers describes 3 layers"):
            read_geometry({**config, "no_rope_layers": [1, 1, 0]})
        assert kinds(read_geometry({**config, "no_rope_layers": []})) == expected

    def test_rotary_layers_of_others_mean_nothing_else(self) -> None:
        config = {**LLAMA, "model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0] * 8}
        assert kinds(read_geometry(config)) == {"full_attention": 32}

    def test_letters(self) -> None:
        config = {
            **LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E",
            "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4,
            "n_groups": 8,
        }  # fmt: skip
        geometry = read_geometry(config)
        assert kinds(geometry) == {"mamba": 2, "full_attention": 1}
        assert len(geometry.layers) == 5

    def test_both_in_one_layer(self) -> None:
        config = {
            **LLAMA, "model_type": "falcon_h1", "mamba_n_heads": 32, "mamba_d_head": 64,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_n_groups": 1,
        }  # fmt: skip
        assert kinds(read_geometry(config)) == {"full_attention": 32, "mamba": 32}

    def test_kimi(self) -> None:
        config = {
            **LLAMA, "model_type": "kimi_linear", "num_hidden_layers": 4, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "linear_attn_config": {
                "full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 32, "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
        }  # fmt: skip
        geometry = read_geometry(config)
        assert kinds(geometry) == {"linear_attention": 3, "mla": 1}
        assert geometry.bytes_per_token == 1_152
        # 3 x 3 x 32 x 128 x 2 for the convolutions, 32 x 128 x 128 x 4 for the recurrence
        assert geometry.constant_bytes_per_sequence == 3 * 2_170_880

    def test_gemma_4_has_other_heads_without_a_window(self) -> None:
        config = {
            "model_type": "gemma4_text", "num_hidden_layers": 6, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 256, "hidden_size": 2816, "dtype": "bfloat16",
            "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
            "max_position_embeddings": 262144, "sliding_window": 1024,
        }  # fmt: skip
        geometry = read_geometry(config)
        assert kinds(geometry) == {"sliding_window": 5, "full_attention": 1}
        assert geometry.bytes_per_token == 4_096  # 2 x 2 x 512 x 2
        assert geometry.bytes_per_token_no_hybrid == 45_056  # and 5 x 2 x 8 x 256 x 2

    def test_values_of_another_size_than_keys(self) -> None:
        # (192 + 128) x 4 x 2 x 32
        config = {**LLAMA, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128}
        assert read_geometry(config).bytes_per_token == 81_920

    def test_some_layers_take_over_the_choice_of_the_indexer(self) -> None:
        config = {
            **LLAMA, "model_type": "glm_moe_dsa", "num_hidden_layers": 6, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
            "index_topk_freq": 2,
        }  # fmt: skip
        # layers 0, 1, 3 and 5 choose
        assert kinds(read_geometry(config)) == {"mla": 6, "sparse_indexer": 4}
        config["index_topk_pattern"] = "FFSSSS"
        assert kinds(read_geometry(config)) == {"mla": 6, "sparse_indexer": 2}


class TestLongestContext:
    @pytest.mark.parametrize(
        ("scaling", "expected"),
        [
            (None, 131_072),
            ({"rope_type": "llama3", "factor": 8.0}, 131_072),  # in the field already
            ({"type": "linear", "factor": 4.0}, 524_288),
            ({"rope_type": "dynamic", "factor": 2}, 262_144),
            ({"rope_type": "default"}, 131_072),
            ({"rope_type": "linear", "factor": None}, 131_072),
            # of each kind of layer
            ({"full_attention": {"rope_type": "linear", "factor": 8.0}}, 1_048_576),
            (
                {
                    "full_attention": {"rope_type": "default"},
                    "sliding_attention": {"type": "mrope"},
                },
                131_072,
            ),
        ],
    )
    @pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
    def test_rotary_scaling(self, field: str, scaling: object, expected: int) -> None:
        geometry = read_geometry({**LLAMA, field: scaling})
        assert geometry.max_model_len == expected
        assert geometry.warnings == ()

    # vLLM, config/model.py, _get_and_verify_max_len: YaRN's factor counts from the original length
    # up to 0.29, and from 0.30 on is in max_position_embeddings already.
    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("0.15.0", 131_072), ("0.20.2", 131_072), ("0.29.0", 131_072), ("0.29.9", 131_072),
            ("0.30.0", 40_960), ("0.32.0", 40_960), ("0.33.0", 40_960),
        ],
    )  # fmt: skip
    def test_yarn_by_version(self, data: Path, version: str, expected: int) -> None:
        config = read_json(data, data / "models" / "qwen3-yarn-128k.config.json")
        geometry = read_geometry(config, vllm=Version(version))
        assert geometry.max_model_len == expected  # 4 x 32,768, or as the file states
        assert geometry.warnings == ()

    def test_yarn_where_the_version_is_not_known(self, data: Path) -> None:
        geometry = of(data, "qwen3-yarn-128k")
        assert geometry.max_model_len == 131_072
        assert geometry.warnings == (
            "the longest context is 40960 or 131072 tokens, depending on the version of vLLM, "
            "which is not known; the longer one is counted. --max-model-len decides it",
        )

    def test_yarn_that_all_versions_read_alike(self) -> None:
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        geometry = read_geometry({**LLAMA, "rope_scaling": scaling})  # 4 x 32,768
        assert geometry.max_model_len == 131_072
        assert geometry.warnings == ()

    def test_yarn_without_an_original_length(self) -> None:
        # Transformers fills in max_position_embeddings.
        config = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
        assert read_geometry(config, vllm=Version("0.26.0")).max_model_len == 524_288
        assert read_geometry(config, vllm=Version("0.33.0")).max_model_len == 131_072

    def test_yarn_in_mistrals_own_file(self) -> None:
        params = {
            "dim": 5120, "n_layers": 40, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128,
            "max_position_embeddings": 262144,
            "yarn": {"original_max_position_embeddings": 16384, "factor": 32},
        }  # fmt: skip
        old = read_geometry(params, file="params.json", vllm=Version("0.20.2"))
        assert old.max_model_len == 524_288  # 32 x 16,384
        new = read_geometry(params, file="params.json", vllm=Version("0.33.0"))
        assert new.max_model_len == 262_144

    @pytest.mark.parametrize("version", [None, Version("0.20.2"), Version("0.33.0")])
    def test_long_rope_starts_at_the_original_length(self, version: Version | None) -> None:
        scaling = {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
        config = {**LLAMA, "rope_scaling": scaling, "original_max_position_embeddings": 4096}
        assert read_geometry(config, vllm=version).max_model_len == 4096

    def test_gemma_3_has_every_scaling_in_its_length(self) -> None:
        scaling = {"full_attention": {"rope_type": "linear", "factor": 8.0}}
        config = {**LLAMA, "model_type": "gemma3_text", "rope_parameters": scaling}
        assert read_geometry(config).max_model_len == 131_072

    def test_smallest_of_several(self) -> None:
        assert read_geometry({**LLAMA, "seq_length": 8192}).max_model_len == 8192

    def test_model_max_length_wins(self, data: Path) -> None:
        # Command-R states 8,192 positions and a model_max_length of 131,072; vLLM takes the latter.
        assert of(data, "command-r-v01").max_model_len == 131_072
        config = {**LLAMA, "model_max_length": 4096, "seq_length": 8192}
        assert read_geometry(config).max_model_len == 4096

    def test_not_stated(self) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "max_position_embeddings"}
        geometry = read_geometry({**config, "model_type": "xverse"})
        assert geometry.max_model_len == 2048
        assert "2048 tokens are assumed" in geometry.warnings[0]

    def test_default_of_the_model_type(self) -> None:
        config = {k: v for k, v in LLAMA.items() if k != "max_position_embeddings"}
        geometry = read_geometry({**config, "model_type": "qwen2"})
        assert geometry.max_model_len == 32_768
        assert geometry.warnings == (
            "config.json leaves fields out, and the defaults of model type 'qwen2' count, as in "
            "vLLM: max_position_embeddings = 32768",
        )

    @pytest.mark.parametrize("factor", ["4", -1, 0, True, float("nan"), float("inf")])
    def test_nonsense(self, factor: object) -> None:
        with pytest.raises(ModelError, match=r"rope_scaling\.factor"):
            read_geometry({**LLAMA, "rope_scaling": {"type": "linear", "factor": factor}})


class TestUnknownFamilies:
    def test_computed_with_a_warning(self) -> None:
        geometry = read_geometry({**LLAMA, "model_type": "somebodys"})
        assert geometry.bytes_per_token == LLAMA_BYTES
        assert geometry.warnings == (
            "model_type 'somebodys' is not known; its fields were read as those of known "
            "families: 32 full_attention, 131072 bytes a token",
        )

    @pytest.mark.parametrize(
        "model_type", ["deepseek_v4", "longcat_flash", "minicpm3", "nemotron-nas", "step3p5"]
    )
    def test_families_that_the_fields_do_not_describe(self, model_type: str) -> None:
        with pytest.raises(ModelError, match=rf"model_type = '{model_type}': this family .*"):
            read_geometry({**LLAMA, "model_type": model_type})

    def test_encoder_and_decoder(self) -> None:
        with pytest.raises(ModelError, match="only decoders"):
            read_geometry({**LLAMA, "is_encoder_decoder": True})


class TestNonsense:
    @pytest.mark.parametrize(
        "field",
        [
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "sliding_window",
            "kv_lora_rank",
        ],
    )
    @pytest.mark.parametrize(
        "value", [-1, 1.5, True, False, "32", "", float("nan"), float("inf"), [], [1], {}, 10**12]
    )
    def test_names_file_and_field(self, field: str, value: object) -> None:
        config = {**LLAMA, "model_type": "mistral", field: value}
        with pytest.raises(ModelError, match=rf"^odd\.json: {field} = .* is not a positive int"):
            read_geometry(config, file="odd.json")

    @pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
    @pytest.mark.parametrize("value", [None, 0])
    def test_missing(self, field: str, value: object) -> None:
        with pytest.raises(ModelError, match=f"^config.json: {field} is missing"):
            read_geometry({**LLAMA, field: value})

    def test_place_in_a_nested_file(self) -> None:
        config = {"model_type": "x", "text_config": {**LLAMA, "num_hidden_layers": -5}}
        with pytest.raises(ModelError, match=r"config.json: text_config\.num_hidden_layers = -5"):
            read_geometry(config)

    @pytest.mark.parametrize("value", [10**9, 1001])
    def test_more_layers_than_any_model(self, value: int) -> None:
        with pytest.raises(ModelError, match=f"num_hidden_layers = {value} is not a real model's"):
            read_geometry({**LLAMA, "num_hidden_layers": value})

    @pytest.mark.parametrize("value", [None, "", 5, []])
    def test_model_type(self, value: object) -> None:
        with pytest.raises(ModelError, match="model_type"):
            read_geometry({**LLAMA, "model_type": value})

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"num_key_value_heads": 7}, "num_attention_heads = 32 is no multiple"),
            ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
            ({"hidden_size": 4097}, "hidden_size = 4097 is no multiple"),
            ({"layer_types": ["full_attention"] * 3}, "layer_types describes 3 layers"),
            ({"layer_types": ["telepathy"] * 32}, "layer_types names 'telepathy'"),
            ({"layer_types": "full_attention"}, "layer_types = .* is not a list of names"),
            ({"layer_types": [None] * 32}, "layer_types = .* is not a list of names"),
            ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
            ({"layer_types": ["chunked_attention"] * 32}, "attention_chunk_size is missing"),
            ({"layer_types": ["mamba"] * 32}, "layer_types has recurrent layers"),
            ({"cross_attention_layers": [40]}, "cross_attention_layers names layer 40"),
            ({"cross_attention_layers": [True]}, "not a list of integers"),
            ({"num_kv_shared_layers": 32}, "num_kv_shared_layers = 32 leaves none"),
            ({"use_sliding_window": "no"}, "use_sliding_window = 'no' is neither"),
            ({"hybrid_override_pattern": "MX"}, "hybrid_override_pattern has letters"),
            ({"sliding_window_pattern": "LG?"}, "letters other than L and G"),
            ({"text_config": 5}, "text_config = 5 is not an object"),
            ({"quantization_config": "fp8"}, "quantization_config = 'fp8' is not an object"),
            ({"rope_scaling": 4}, "rope_scaling = 4 is not an object"),
        ],
    )
    def test_contradictions(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            read_geometry({**LLAMA, **fields})

    def test_long_values_are_not_repeated(self) -> None:
        with pytest.raises(ModelError) as raised:
            read_geometry({**LLAMA, "num_hidden_layers": "9" * 10**6})
        assert len(str(raised.value)) < 200
