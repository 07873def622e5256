"""Mistral's own description of a model, ``params.json``, in the words of ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Fields
from .layers import MAX_LAYERS

#: As vLLM translates them (transformers_utils/configs/mistral.py).
_NAMES: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
}

_EXPERTS: Mapping[str, str] = {
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "first_k_dense_replace": "first_k_dense_replace",
}

#: What such a file leaves out is not there, whatever Transformers' class for Mistral models says.
_WITHOUT_DEFAULTS = ("num_key_value_heads", "head_dim", "sliding_window")

#: What Mistral's files mean where they state no length.
_UNSTATED_LENGTH = 128_000


def as_hugging_face(config: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """The same description with Hugging Face's names; returned as it is where it has them already.

    Raises:
        ModelError: a part is nonsense.
    """
    if "dim" not in config or "n_layers" not in config or "num_hidden_layers" in config:
        return config
    fields = Fields(config, file)
    translated = {_NAMES.get(name, name): value for name, value in config.items()}
    translated.setdefault("model_type", "mistral")
    translated.setdefault("tie_word_embeddings", False)
    translated.setdefault("dtype", "bfloat16")
    # vLLM reads this file with no class of Transformers, so that none of its defaults count.
    translated |= {name: None for name in _WITHOUT_DEFAULTS if name not in translated}
    scaling = fields.part("yarn")
    if scaling is not None and scaling.values:
        translated["rope_parameters"] = {**scaling.values, "rope_type": "yarn"}
    translated.setdefault(
        "max_position_embeddings", fields.positive("max_seq_len") or _UNSTATED_LENGTH
    )
    experts = fields.part("moe")
    if experts is not None:
        translated |= {
            new: experts.values[old] for old, new in _EXPERTS.items() if experts.has(old)
        }
    quantization = fields.part("quantization")
    if quantization is not None:
        method = quantization.values.get("quant_method") or "fp8"
        translated["quantization_config"] = {**quantization.values, "quant_method": method}
    windows = config.get("sliding_window")
    if isinstance(windows, list):
        translated |= _windows(fields, windows)
    return translated


def _windows(fields: Fields, windows: list[Any]) -> dict[str, Any]:
    """A list of windows is repeated over the layers; null is a layer without one."""
    sizes = {w for w in windows if type(w) is int and w > 0}
    if not windows or len(sizes) > 1 or any(w is not None and w not in sizes for w in windows):
        raise fields.error("sliding_window", "is a list of something else than one size and nulls")
    layers = fields.required("n_layers")
    return {
        "sliding_window": next(iter(sizes), None),
        "layer_types": [
            "full_attention" if windows[i % len(windows)] is None else "sliding_attention"
            for i in range(min(layers, MAX_LAYERS + 1))
        ],
    }
