"""What a model type takes where its file leaves a field out.

Transformers writes the part for text of a multimodal model without the fields that have their
default value, and some publishers shorten their files by hand. ``defaults.json`` has the defaults
of the configuration classes of Transformers 5.19.0, with which vLLM reads such files;
tests/engine/test_model_figures.py compares it with the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

#: Defaults that are not in Transformers' classes as plain values: computed there, or of classes of
#: vLLM's own and of models themselves.
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    # vLLM, transformers_utils/configs/bailing_moe_v3_vl.py; model_executor/models/
    # bailing_moe_linear.py and bailing_moe_v3.py (latent attention), layers/mamba/mamba_utils.py
    # (kda_state_shape: the convolution).
    "bailing_hybrid": {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    # vLLM, transformers_utils/configs/chatglm.py.
    "chatglm": {
        "num_layers": 28, "hidden_size": 4096, "kv_channels": 128, "num_attention_heads": 32,
        "multi_query_attention": False, "multi_query_group_num": 1, "seq_length": 2048,
    },
    # Transformers, models/dbrx/configuration_dbrx.py, DbrxAttentionConfig.
    "dbrx": {"kv_n_heads": 1},
    # Transformers, models/gemma4/configuration_gemma4.py: of layers without a window.
    "gemma4_text": {"global_head_dim": 512},
    "gemma4_unified_text": {"global_head_dim": 512},
    # The model's own configuration_internlm2.py: as many KV heads as ask, and equal heads.
    "internlm2": {},
    # vLLM, model_executor/models/iquest_loopcoder.py.
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": 64},
    # vLLM 0.20.2, model_executor/models/ouro.py.
    "ouro": {"total_ut_steps": 4},
    # vLLM, transformers_utils/configs/qwen3_asr.py.
    "qwen3_asr_text": {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128000,
    },
    # vLLM, transformers_utils/configs/step3_vl.py.
    "step3_text": {
        "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64,
        "num_attention_groups": 1, "head_dim": 256, "max_seq_len": 65536,
    },
}  # fmt: skip

#: The model types of parts for text that vLLM's own classes make (transformers_utils/configs/).
_OTHER_TEXT_TYPES: Mapping[str, str] = {
    "deepseek_vl_v2": "deepseek_v2",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v2",
    "midashenglm": "qwen2_5_omni_text",
    "moss_transcribe_diarize": "qwen3",
    "step3_vl": "step3_text",
}

#: Model types that Transformers reads as another (models/exaone4_5/configuration_exaone4_5.py).
_READ_AS: Mapping[str, str] = {"exaone4_5_text": "exaone4"}

#: Fields that say the same under several names. A default gives way to any of them.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": (
        "num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads", "kv_n_heads",
        "multi_query_group_num", "num_attention_groups", "num_query_groups",
    ),
    "head_dim": ("head_dim", "hidden_size_per_head", "kv_channels", "attention_head_dim"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
}  # fmt: skip


@cache
def _file() -> Mapping[str, Any]:
    text = files(__package__).joinpath("defaults.json").read_text("utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content


def text_type(whole: str) -> str | None:
    """The model type of a part for text that does not state its own; None where it is not known.

    Args:
        whole: the model type of the configuration that it is a part of.
    """
    found: str | None = _file()["text_types"].get(whole)
    return found or _OTHER_TEXT_TYPES.get(whole)


def has_defaults(model_type: str) -> bool:
    """Whether it is known what counts where a file of this family leaves a field out."""
    return _READ_AS.get(model_type, model_type) in _file()["defaults"] or model_type in _OTHERS


def with_defaults(values: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The fields of a file, and the defaults of its model type for those that it leaves out.

    A field that is null was not left out: it has no value, and most classes then compute one.
    """
    of_types = _file()["defaults"]
    # Of old files, some describe the text model beside the others and not in a part of its own.
    read_as = _READ_AS.get(model_type, model_type)
    own = of_types.get(read_as) or of_types.get(text_type(model_type), {})
    defaults = {**own, **_OTHERS.get(model_type, {})}
    if "kv_lora_rank" in defaults:
        # Latent attention: these classes overwrite it with qk_rope_head_dim.
        defaults.pop("head_dim", None)
    for names in ALIASES.values():
        if any(values.get(name) is not None for name in names):
            for name in names:
                defaults.pop(name, None)
    return {**defaults, **values}


#: Of a file that leaves one of these out, people are told what counts in its place.
_DECIDING = (*ALIASES["layers"], *ALIASES["heads"], *ALIASES["hidden"], "max_position_embeddings")


def left_out(values: Mapping[str, Any], completed: Mapping[str, Any]) -> dict[str, Any]:
    """Of the fields that decide the size of a cache, those that come from the defaults."""
    return {n: completed[n] for n in _DECIDING if n in completed and n not in values}
