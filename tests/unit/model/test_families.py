"""What models of each kind of family keep, and which families are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.catalog import find_in_catalog
from ai.backend.kvcache.model.config import read_json
from ai.backend.kvcache.model.geometry import Geometry, read_geometry
from ai.backend.kvcache.model.parallel import Parallel

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
#: 2 (key and value) x 8 KV heads x 128 x 2 bytes
LAYER = 4_096


def plain(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, **fields}


def without(*names: str, **fields: Any) -> dict[str, Any]:
    return {k: v for k, v in plain(**fields).items() if k not in names}


def captured(data: Path, model: str) -> Geometry:
    return read_geometry(read_json(data, data / "models" / f"{model}.config.json"))


def kinds(geometry: Geometry) -> dict[str, int]:
    return {str(g.cache.kind): g.count for g in geometry.groups}


class TestPublishedPools:
    """Bytes a token that follow from what engines printed of their KV pools, in bfloat16."""

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("qwen3-14b", 163_840),  # 2 x 8 x 128 x 2 x 40 layers
            ("qwen3-8b", 147_456),  # x 36
            ("qwen3-1.7b", 114_688),  # x 28
            ("llama-3.1-8b", 131_072),  # x 32
            ("llama-3.1-405b", 516_096),  # x 126
            ("mixtral-8x7b", 131_072),  # x 32
            ("deepseek-v3", 70_272),  # (512 + 64) x 2 x 61
            ("deepseek-v3.2", 78_324),  # and 128 + 4 bytes of each indexer
        ],
    )
    def test_of_the_catalog(self, model: str, expected: int) -> None:
        assert read_geometry(find_in_catalog(model).config).bytes_per_token == expected

    @pytest.mark.parametrize(
        ("model", "tensor_parallel", "expected"),
        [
            ("qwen3-32b", 2, 131_072),  # 2 x 4 x 128 x 2 x 64
            ("llama-3.1-70b", 4, 81_920),  # 2 x 2 x 128 x 2 x 80
            ("qwen3-235b-a22b", 4, 48_128),  # 2 x 1 x 128 x 2 x 94
        ],
    )
    def test_on_one_gpu(self, model: str, tensor_parallel: int, expected: int) -> None:
        geometry = read_geometry(find_in_catalog(model).config)
        assert geometry.per_gpu(Parallel(tensor_parallel)).bytes_per_token == expected

    def test_in_fp8(self) -> None:
        # 2 x 4 x 256 x 1 x 16 of 64 layers
        config = find_in_catalog("qwen3.8-27b").config
        assert read_geometry(config, kv_cache_dtype="fp8").bytes_per_token == 32_768

    def test_chunks_in_full(self) -> None:
        # 2 x 1 x 128 x 2 x 48 on each of eight GPUs, without the hybrid manager
        share = read_geometry(find_in_catalog("llama-4-scout").config).per_gpu(Parallel(8))
        assert share.bytes_per_token_no_hybrid == 24_576

    @pytest.mark.parametrize(
        ("model", "expected", "longest"),
        [
            ("command-r-v01", 1_310_720, 131_072),  # 2 x 64 x 128 x 2 x 40
            ("deepseek-coder-6.7b", 524_288, 65_536),  # 2 x 32 x 128 x 2 x 32; 4 x 16,384
            ("gpt2-xl", 307_200, 1_024),  # 2 x 25 x 64 x 2 x 48
            ("mistral-7b-v0.2", 131_072, 32_768),  # 2 x 8 x 128 x 2 x 32
            ("oddity-null-head-dim", 57_344, 32_768),  # 2 x 4 x 3,584 / 28 x 2 x 28
            ("qwen1.5-32b", 262_144, 32_768),  # 2 x 8 x 128 x 2 x 64
            ("r1-distill-qwen-14b", 196_608, 131_072),  # 2 x 8 x 128 x 2 x 48
            ("qwen3-yarn-128k", 262_144, 131_072),  # 2 x 8 x 128 x 2 x 64
            ("llava-1.5-7b", 524_288, 4_096),  # 2 x 32 x 4,096 / 32 x 2 x 32, all by default
            ("llava-1.6-mistral-7b", 131_072, 32_768),  # 2 x 8 x 4,096 / 32 x 2 x 32
            ("iquest-coder-40b-loop", 327_680, 131_072),  # 2 x 8 x 128 x 2 x 80
            ("bailing-hybrid", 8_064, 131_072),  # (512 + 64) x 2 x 7 of 42 layers
        ],
    )
    def test_captured(self, data: Path, model: str, expected: int, longest: int) -> None:
        geometry = captured(data, model)
        assert geometry.bytes_per_token == expected
        assert geometry.max_model_len == longest

    def test_yi_1_5_34b(self) -> None:
        # 2 x 8 x 7,168 / 56 x 2 x 60
        config = without("head_dim", num_hidden_layers=60, num_attention_heads=56, hidden_size=7168)
        assert read_geometry(config).bytes_per_token == 245_760


class TestGroupsOfLayers:
    def test_latent_attention_ends_each_group(self, data: Path) -> None:
        geometry = captured(data, "bailing-hybrid")
        assert kinds(geometry) == {"linear_attention": 35, "mla": 7}
        assert geometry.is_latent
        assert geometry.has_states
        # 3 x 3 x 32 x 128 x 2 bytes for the convolutions, 32 x 128 x 128 x 4 for the recurrence
        assert geometry.constant_bytes_per_sequence == 35 * 2_170_880

    @pytest.mark.parametrize(
        ("architecture", "expected"),
        [
            # 11 layers in groups of 4: two layers are left, which are attention but in one of them
            ("BailingMoeV3ForCausalLM", {"linear_attention": 6, "mla": 5}),
            ("BailingMoeLinearV2ForCausalLM", {"linear_attention": 6, "mla": 5}),
            ("BailingMoeV2_5ForCausalLM", {"linear_attention": 9, "mla": 2}),
        ],
    )
    def test_what_is_left_behind_the_last_group(
        self, data: Path, architecture: str, expected: dict[str, int]
    ) -> None:
        config = read_json(data, data / "models" / "bailing-hybrid.config.json")
        fields = {
            "architectures": [architecture], "num_hidden_layers": 11, "layer_group_size": 4
        }  # fmt: skip
        assert kinds(read_geometry({**config, **fields})) == expected

    def test_grouped_query_attention_ends_each_group(self) -> None:
        geometry = read_geometry(plain(model_type="bailing_moe_linear", layer_group_size=4))
        assert kinds(geometry) == {"linear_attention": 9, "full_attention": 3}
        assert geometry.bytes_per_token == 3 * LAYER
        assert geometry.constant_bytes_per_sequence == 9 * 1_048_576  # 32 x 128 x 128 x 2

    def test_groups_of_one(self) -> None:
        geometry = read_geometry(plain(model_type="bailing_moe_linear", layer_group_size=1))
        assert geometry.bytes_per_token == 12 * LAYER
        assert not geometry.has_states

    @pytest.mark.parametrize(
        "model_type",
        ["bailing_hybrid", "bailing_moe_linear", "mimo_v2", "nemotron_h", "zamba2"],
    )
    def test_families_that_must_say_which_layer_is_which(self, model_type: str) -> None:
        with pytest.raises(ModelError, match="layer_types is missing"):
            read_geometry(plain(model_type=model_type))

    def test_states_as_transformers_5_writes_them(self) -> None:
        mamba = {
            "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4,
            "mamba_n_groups": 1,
        }  # fmt: skip
        layer_types = [*["linear_attention"] * 3, "full_attention"] * 3
        config = plain(model_type="granitemoehybrid", layer_types=layer_types, **mamba)
        geometry = read_geometry(config)
        assert geometry.bytes_per_token == 3 * LAYER
        assert geometry.has_states


class TestSeveralAttentionsInALayer:
    def test_second_run_has_a_window(self, data: Path) -> None:
        geometry = captured(data, "iquest-coder-40b-loop")
        assert kinds(geometry) == {"full_attention": 80, "sliding_window": 80}
        assert geometry.bytes_per_token == 327_680
        assert geometry.bytes_per_token_no_hybrid == 655_360
        assert geometry.constant_bytes_per_sequence == 80 * 64 * LAYER
        assert geometry.has_windows
        assert len(geometry.layers) == 80

    def test_how_often_is_stated_or_two(self) -> None:
        config = plain(model_type="iquestloopcoder")
        assert kinds(read_geometry(config)) == {"full_attention": 12, "sliding_window": 12}
        config |= {"loop_num": 3, "loop_window_size": 128}
        assert read_geometry(config).bytes_per_token_no_hybrid == 36 * LAYER
        assert kinds(read_geometry({**config, "loop_num": 1})) == {"full_attention": 12}

    def test_every_run_sees_everything(self) -> None:
        geometry = read_geometry(plain(model_type="ouro", total_ut_steps=3))
        assert geometry.bytes_per_token == 36 * LAYER
        assert read_geometry(plain(model_type="ouro")).bytes_per_token == 48 * LAYER  # four times


class TestFieldsThatAreLeftOut:
    """Defaults are those of Transformers 5.19, models/*/configuration_*.py."""

    @pytest.mark.parametrize(
        ("whole", "text", "expected"),
        [
            # LlamaConfig: 32 layers, 32 heads of 4,096 / 32, each kept
            ("llava", {"_name_or_path": "lmsys/vicuna-7b-v1.5"}, 524_288),
            ("llava", {}, 524_288),
            ("llava_next", {"model_type": "llama", "num_key_value_heads": 8}, 131_072),
            # MistralConfig: 32 layers, 8 KV heads of 128
            ("mistral3", {"_name_or_path": "x", "sliding_window": None}, 131_072),
            # as mistral-community/pixtral-12b: 40 layers of 8 KV heads of 128
            (
                "llava",
                {
                    "model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
                    "intermediate_size": 14336, "max_position_embeddings": 1024000,
                    "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
                },
                163_840,
            ),
            # GemmaConfig: 16 KV heads of 256; 28 layers
            ("paligemma", {"_name_or_path": "x"}, 458_752),
            # Qwen2Config: 32 layers of 32 KV heads of 128
            ("llava_onevision", {"model_type": "qwen2"}, 524_288),
            # Qwen3VLTextConfig: 32 layers of 32 KV heads of 128
            ("qwen3_vl", {"rope_theta": 5000000}, 524_288),
            # vLLM's class for it: DeepseekV2Config, 32 layers of 512 + 64
            ("kimi_vl", {"vocab_size": 163840}, 36_864),
            # vLLM's Step3TextConfig: 61 layers of one KV head of 256
            ("step3_vl", {"vocab_size": 128815}, 62_464),
        ],
    )  # fmt: skip
    def test_in_a_part_for_text(self, whole: str, text: dict[str, Any], expected: int) -> None:
        config = {"model_type": whole, "text_config": text, "torch_dtype": "bfloat16"}
        geometry = read_geometry(config)
        assert geometry.bytes_per_token == expected
        assert "config.json leaves fields out, and the defaults" in geometry.warnings[0]

    def test_says_which(self, data: Path) -> None:
        assert captured(data, "llava-1.6-mistral-7b").warnings == (
            "config.json leaves fields out, and the defaults of model type 'mistral' count, as in "
            "vLLM: num_hidden_layers = 32, num_attention_heads = 32, hidden_size = 4096",
        )

    def test_a_window_by_default(self) -> None:
        # MistralConfig has a window of 4,096 unless the file says null.
        config = plain(model_type="mistral")
        assert kinds(read_geometry(config)) == {"sliding_window": 12}
        assert kinds(read_geometry({**config, "sliding_window": None})) == {"full_attention": 12}

    @pytest.mark.parametrize(
        ("model_type", "fields", "expected"),
        [
            # null: as many as ask
            ("mistral", {"num_key_value_heads": None, "sliding_window": None}, 196_608),
            ("qwen3", {"head_dim": None, "hidden_size": 2048}, 24_576),  # 2,048 / 32
        ],
    )
    def test_null_is_no_default(
        self, model_type: str, fields: dict[str, Any], expected: int
    ) -> None:
        assert read_geometry(plain(model_type=model_type, **fields)).bytes_per_token == expected

    @pytest.mark.parametrize(
        ("model_type", "fields", "heads"),
        [
            ("llama", {}, 32),  # LlamaConfig: as many as ask
            ("mistral", {"sliding_window": None}, 8),
            ("gpt_bigcode", {"n_head": 32}, 1),  # multi_query unless the file says otherwise
            ("falcon", {"multi_query": True}, 1),
            ("falcon", {"multi_query": True, "new_decoder_architecture": True}, 32),
            ("falcon", {"multi_query": False, "num_kv_heads": 4}, 4),
            ("chatglm", {"multi_query_attention": True, "multi_query_group_num": 2}, 2),
            ("chatglm", {}, 32),
            ("step3_text", {}, 1),
            ("mpt", {"attn_config": {"kv_n_heads": 16}}, 16),
        ],
    )
    def test_number_of_kv_heads(self, model_type: str, fields: dict[str, Any], heads: int) -> None:
        config = without("num_key_value_heads", model_type=model_type, **fields)
        # 2 x heads x 128 x 2 x 12
        assert read_geometry(config).bytes_per_token == heads * 6_144

    def test_other_names_of_a_field_win_over_its_default(self) -> None:
        # As bigscience/bloom: n_embed instead of hidden_size, whose default is 64.
        config = {
            "model_type": "bloom", "n_embed": 14336, "num_attention_heads": 112, "n_layer": 70,
            "seq_length": 2048, "torch_dtype": "bfloat16",
        }  # fmt: skip
        # 2 x 112 x 128 x 2 x 70
        assert read_geometry(config).bytes_per_token == 4_014_080

    def test_text_model_beside_its_tower(self) -> None:
        # As older files of Qwen2-VL: one object, and the text model's defaults for what it lacks.
        config = without("head_dim", "num_hidden_layers", model_type="qwen2_vl")
        assert read_geometry(config).bytes_per_token == 80 * LAYER

    def test_mistrals_own_file_has_no_defaults(self) -> None:
        params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "head_dim": 128}
        geometry = read_geometry(params, file="params.json")
        assert kinds(geometry) == {"full_attention": 32}
        assert geometry.bytes_per_token == 524_288  # 2 x 32 x 128 x 2 x 32
        assert geometry.max_model_len == 128_000


class TestLayersOfTheirOwn:
    def test_gemma_4_as_transformers_5_19_writes_it(self) -> None:
        own = {"head_dim": 512, "num_key_value_heads": 2}
        config = plain(
            model_type="gemma4_text",
            num_hidden_layers=6,
            head_dim=256,
            sliding_window=1024,
            per_layer_config={"5": own},
        )
        geometry = read_geometry(config)
        assert geometry.bytes_per_token == 4_096  # 2 x 2 x 512 x 2
        assert geometry.bytes_per_token_no_hybrid == 45_056  # and 5 x 2 x 8 x 256 x 2
        assert geometry.has_unequal_heads

    def test_the_last_layer_of_gemma_4_sees_everything(self) -> None:
        config = plain(model_type="gemma4_text", num_hidden_layers=8, sliding_window=1024)
        assert kinds(read_geometry(config)) == {"sliding_window": 6, "full_attention": 2}

    def test_fewer_kv_heads_in_some_layers(self) -> None:
        config = plain(per_layer_config={"0": {"num_key_value_heads": 2}, "11": {}})
        assert read_geometry(config).bytes_per_token == 11 * LAYER + LAYER // 4

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"per_layer_config": [1]}, r"per_layer_config = \[1\] is not an object"),
            ({"per_layer_config": {"3": 5}}, r"per_layer_config\.3 = 5 is not an object"),
            ({"per_layer_config": {"3": {"skip": ["self_attn"]}}}, r"per_layer_config\.3\.skip"),
            ({"num_key_value_heads": [8, 4, 8]}, "num_key_value_heads = .* positive integer"),
            ({"use_cla": True, "cla_share_factor": 2}, "use_cla = true"),
            ({"qk_nope_head_dim": 64}, "kv_lora_rank is missing"),
            # DeepSeek V3 takes it from its class; null means another attention
            ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "kv_lora_rank is missing"),
        ],
    )
    def test_not_covered(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            read_geometry(plain(**fields))

    def test_layers_that_only_speculation_needs_are_not_counted(self) -> None:
        config = plain(num_nextn_predict_layers=3, mtp_num_hidden_layers=3)
        assert read_geometry(config).bytes_per_token == 12 * LAYER


class TestIndexers:
    GLM = plain(
        model_type="glm_moe_dsa",
        num_hidden_layers=78,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=192,
        index_topk_freq=4,
        index_skip_topk_offset=3,
    )

    # Layers 0, 1, 2 and each fourth from the seventh on choose: 0, 1, 2, 6, 10, ..., 74.
    @pytest.mark.parametrize(
        ("version", "indexers"), [(None, 21), ("0.22.0", 78), ("0.25.1", 21), ("0.33.0", 21)]
    )
    def test_by_version(self, version: str | None, indexers: int) -> None:
        geometry = read_geometry(self.GLM, vllm=None if version is None else Version(version))
        assert kinds(geometry) == {"mla": 78, "sparse_indexer": indexers}
        assert geometry.bytes_per_token == 78 * 1_152 + indexers * 132

    def test_by_default_every_layer_chooses(self) -> None:
        config = {k: v for k, v in self.GLM.items() if not k.startswith("index")}
        assert kinds(read_geometry(config)) == {"mla": 78, "sparse_indexer": 78}

    def test_scales_of_whole_blocks_only(self) -> None:
        config = {**self.GLM, "index_topk_freq": 1, "index_head_dim": 192}
        assert read_geometry(config).bytes_per_token == 78 * (1_152 + 192 + 4)

    def test_in_fp8(self) -> None:
        config = {**self.GLM, "index_topk_freq": 1}
        assert read_geometry(config, kv_cache_dtype="fp8").bytes_per_token == 78 * (656 + 132)


class TestUnknownFamilies:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"num_experts": 64, "moe_intermediate_size": 512, "num_shared_experts": 1},
            {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 6},
            {"sliding_window": None, "layer_group_size": None, "mamba_d_state": 0},
            {"mlp_layer_types": ["dense"] * 12, "first_k_dense_replace": 1},
        ],
    )
    def test_plain_ones_are_computed_with_a_warning(self, fields: dict[str, Any]) -> None:
        geometry = read_geometry(plain(model_type="somebodys", **fields))
        assert geometry.bytes_per_token == 12 * LAYER
        assert "model_type 'somebodys' is not known" in geometry.warnings[0]

    def test_layers_with_and_without_a_window(self) -> None:
        layer_types = ["sliding_attention", "full_attention"] * 6
        config = plain(model_type="somebodys", layer_types=layer_types, sliding_window=512)
        assert kinds(read_geometry(config)) == {"sliding_window": 6, "full_attention": 6}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("layer_group_size", 4),
            ("attn_type_list", [0, 1] * 6),
            ("full_attention_interval", 4),
            ("hybrid_override_pattern", "M*" * 6),
            ("attention_layer_idx", [3, 7, 11]),
            ("attn_layer_indices", [3, 7, 11]),
            ("linear_attn_config", {"num_heads": 32}),
            ("linear_num_value_heads", 32),
            ("layers_block_type", ["attention"] * 12),
            ("block_configs", [{"attention": {"no_op": True}}]),
            ("layer_types", ["linear_attention", "full_attention"] * 6),
            ("layer_types", ["chunked_attention", "full_attention"] * 6),
            ("mamba_d_state", 128),
            ("ssm_state_size", 128),
            ("conv_L_cache", 3),
            ("short_conv_kernel_size", 4),
            ("sliding_window", 4096),
            ("sliding_window_pattern", 4),
            ("window_size", 512),
            ("attention_chunk_size", 8192),
            ("swa_num_key_value_heads", 4),
            ("global_head_dim", 512),
            ("index_topk", 2048),
            ("sparse_config", {"block_size": 64}),
            ("compress_ratios", [4, 128]),
            ("kv_lora_rank", 512),
            ("qk_rope_head_dim", 64),
            ("v_head_dim", 64),
            ("num_kv_shared_layers", 4),
            ("use_cla", True),
            ("cla_share_factor", 2),
            ("cross_attention_layers", [3]),
            ("encoder_layers", 12),
            ("loop_num", 2),
            ("total_ut_steps", 4),
            ("num_key_value_heads_per_layer", [8] * 12),
            ("per_layer_config", {"3": {"head_dim": 64}}),
            ("param_sink_number", 128),
        ],
    )
    def test_a_field_that_says_there_is_more(self, field: str, value: object) -> None:
        config = plain(model_type="somebodys", **{field: value})
        with pytest.raises(ModelError, match=rf"^config\.json: {field} .*'somebodys' is not known"):
            read_geometry(config)

    @pytest.mark.parametrize("missing", ["num_key_value_heads", "head_dim"])
    @pytest.mark.parametrize("model_type", ["somebodys", "mimo"])
    def test_nested_parts_may_leave_out_a_default_that_is_not_known(
        self, model_type: str, missing: str
    ) -> None:
        config = {"model_type": "x", "text_config": without(missing, model_type=model_type)}
        with pytest.raises(
            ModelError, match=rf"text_config\.{missing} is missing, and its default in model_type"
        ):
            read_geometry(config)
        config = {"model_type": "x", "text_config": plain(model_type=model_type)}
        assert read_geometry(config).bytes_per_token == 12 * LAYER
        # A whole file is written with every field.
        assert read_geometry(without(missing, model_type=model_type)).bytes_per_token > 0

    @pytest.mark.parametrize(
        ("model_type", "because"),
        [
            ("plamo2", "recurrent layers"),
            ("qwen4_exp_text", "recurrent layers"),
            ("hy_v4", "indexes or compresses"),
            ("bert", "an encoder"),
            ("whisper", "an encoder beside its decoder"),
            ("dory", "several times"),
            ("sarvam_mla", "latent projections"),
            ("RefinedWeb", "Falcon in its first form"),
        ],
    )
    def test_families_that_are_refused_by_name(self, model_type: str, because: str) -> None:
        with pytest.raises(ModelError, match=f"this family .*{because}"):
            read_geometry(plain(model_type=model_type))
