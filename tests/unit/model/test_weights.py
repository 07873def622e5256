from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.catalog import find_in_catalog
from ai.backend.kvcache.model.config import read_json
from ai.backend.kvcache.model.files import list_model
from ai.backend.kvcache.model.weights import Weights, count_parameters, estimate_weights, weigh

#: 2 layers of (4 x 64 x 64 of attention + 3 x 64 x 256) and 2 x 1,000 x 64 of embeddings.
TINY: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
TINY_LAYERS = 131_072
TINY_EMBEDDINGS = 128_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for shard in range(2):
        (directory / f"model-{shard}.safetensors").write_bytes(bytes(1_000_000))
    return directory


def weights_of(directory: Path) -> Weights | None:
    return weigh(list_model(directory, directory))


class TestWeigh:
    def test_sizes_of_the_files(self, model: Path) -> None:
        assert weights_of(model) == Weights(2_000_000, "sizes of 2 weight files")

    def test_index_wins(self, model: Path) -> None:
        index = {"metadata": {"total_size": 137_438_953_472}, "weight_map": {}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        assert weights_of(model) == Weights(
            137_438_953_472, "metadata.total_size of model.safetensors.index.json"
        )

    @pytest.mark.parametrize("metadata", [None, {}, {"total_size": -1}, {"total_size": "big"}, []])
    def test_index_that_says_nothing(self, model: Path, metadata: object) -> None:
        (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata}))
        assert weights_of(model) == Weights(2_000_000, "sizes of 2 weight files")

    @pytest.mark.parametrize("second", ["pytorch_model.bin", "consolidated.safetensors"])
    def test_second_copy_is_not_counted_twice(self, model: Path, second: str) -> None:
        (model / second).write_bytes(bytes(2_000_000))
        assert weights_of(model) == Weights(2_000_000, "sizes of 2 weight files")

    def test_mistrals_own_copy_alone(self, tmp_path: Path) -> None:
        (tmp_path / "consolidated.safetensors").write_bytes(bytes(500))
        assert weights_of(tmp_path) == Weights(500, "sizes of 1 weight files")

    def test_no_weights(self, tmp_path: Path) -> None:
        assert weights_of(tmp_path) is None

    def test_dangling_and_odd_entries_are_no_weights(self, model: Path) -> None:
        (model / "gone.safetensors").symlink_to(model / "nowhere")
        (model / "loop.safetensors").symlink_to(model / "loop.safetensors")
        (model / "directory.safetensors").mkdir()
        os.mkfifo(model / "fifo.safetensors")
        assert weights_of(model) == Weights(2_000_000, "sizes of 2 weight files")


class TestCount:
    # Published sizes, in billions, of the text model.
    @pytest.mark.parametrize(
        ("name", "billions"),
        [
            ("llama-3.1-8b", 8.03),
            ("llama-3.1-70b", 70.6),
            ("llama-3.1-405b", 406),
            ("llama-3.2-3b", 3.21),  # tied embeddings
            ("llama-4-scout", 108),  # 16 experts and a shared one in every layer
            ("llama-4-maverick", 401),  # 128 experts in every second layer
            ("mixtral-8x7b", 46.7),
            ("mixtral-8x22b", 141),
            ("mistral-large-2411", 123),
            ("qwen2.5-72b", 72.7),
            ("qwen3-8b", 8.19),
            ("qwen3-30b-a3b", 30.5),
            ("qwen3-235b-a22b", 235),
            ("qwen3-coder-480b-a35b", 480),
            ("qwen3-next-80b-a3b", 79.7),
            ("deepseek-v3", 671),
            ("deepseek-v2-lite", 15.7),
            ("kimi-k2", 1026),
            ("gpt-oss-20b", 20.9),
            ("gpt-oss-120b", 116.8),
            ("gemma-2-27b", 27.2),
            ("gemma-3-27b", 27.0),
            ("glm-4.5", 353),
            ("glm-4.5-air", 106.9),
            ("phi-4", 14.7),
            ("command-r-plus", 104),
            ("command-a", 111),
            ("minimax-m2", 229),
            ("falcon-40b", 41.3),
            ("granite-4.0-h-small", 32.2),
            ("jamba-1.5-mini", 51.6),
            ("nemotron-nano-9b-v2", 8.89),
            ("smollm3-3b", 3.08),
            ("ernie-4.5-300b-a47b", 300),
        ],
    )
    def test_published_models(self, name: str, billions: float) -> None:
        counted = count_parameters(find_in_catalog(name).config).total
        assert counted / 1e9 == pytest.approx(billions, rel=0.01)

    def test_dense(self) -> None:
        parameters = count_parameters(TINY)
        assert parameters.linear == TINY_LAYERS
        assert parameters.embeddings == TINY_EMBEDDINGS
        assert parameters.experts == 0

    def test_tied_embeddings(self) -> None:
        parameters = count_parameters({**TINY, "tie_word_embeddings": True})
        assert parameters.embeddings == TINY_EMBEDDINGS // 2

    def test_experts(self) -> None:
        # 8 experts of 3 x 64 x 32, a shared one and a router of 64 x 8, in the second layer alone
        config = {
            **TINY, "model_type": "deepseek_v2", "n_routed_experts": 8, "n_shared_experts": 1,
            "moe_intermediate_size": 32, "first_k_dense_replace": 1, "kv_lora_rank": None,
            "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
        }  # fmt: skip
        parameters = count_parameters(config)
        assert parameters.experts == 49_152
        # attention twice, one dense layer, the shared expert, the router
        assert parameters.linear == 2 * 16_384 + 49_152 + 6_144 + 512

    @pytest.mark.parametrize(
        "fields",
        [
            {"decoder_sparse_step": 2},  # the second layer
            {"mlp_only_layers": [0]},
            {"first_k_dense_replace": 1},
            {"mlp_layer_types": ["dense", "sparse"]},
            {"expert_layer_period": 2, "expert_layer_offset": 1},
        ],
    )
    def test_experts_in_one_layer_of_two(self, fields: dict[str, Any]) -> None:
        config = {
            **TINY, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32,
            **fields,
        }  # fmt: skip
        assert count_parameters(config).experts == 4 * 6_144


class TestEstimate:
    @pytest.mark.parametrize(
        ("quantization", "layer_bits"),
        [
            (None, 16),
            ({"quant_method": "fp8"}, 8),
            # 4 bits, and a 16-bit scale and a 4-bit zero point for 128 weights
            ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.15625),
            ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 8.75),
            ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
            (
                {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}
                    },
                },
                4.125,
            ),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
            ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8),
            # of which only experts are quantized, and this model has none
            ({"quant_method": "mxfp4"}, 16),
            ({"quant_method": "somebodys"}, 16),
        ],
    )
    def test_quantization(self, quantization: object, layer_bits: float) -> None:
        estimated = estimate_weights({**TINY, "quantization_config": quantization})
        assert estimated.total_bytes == TINY_LAYERS * layer_bits / 8 + TINY_EMBEDDINGS * 2

    def test_experts_of_mxfp4(self, data: Path) -> None:
        # The checkpoint has 60.8 GiB (openai/gpt-oss-120b, README).
        config = read_json(data, data / "models" / "gpt-oss-120b.config.json")
        assert estimate_weights(config).total_bytes / 2**30 == pytest.approx(60.8, rel=0.01)

    def test_names_its_source(self) -> None:
        assert estimate_weights(TINY, "tiny.json").source == (
            "estimated from tiny.json: 0.0 billion parameters, bfloat16, not quantized"
        )
        unknown = {**TINY, "quantization_config": {"quant_method": "somebodys"}}
        assert "somebodys quantization counted as none" in estimate_weights(unknown).source

    @pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "intermediate_size"])
    def test_nonsense_names_the_field(self, field: str) -> None:
        with pytest.raises(ModelError, match=f"{field} = -1"):
            estimate_weights({**TINY, field: -1})
