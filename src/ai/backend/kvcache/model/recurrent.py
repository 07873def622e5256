"""The state of recurrent layers, by the fields that describe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .dtypes import DTYPE_BYTES
from .families import KNOWN
from .fields import Fields
from .layers import LayerCache, LayerKind, State


def _recurrent_bytes(fields: Fields, default: str) -> int:
    """Bytes of one element of the recurrent state, which some families keep in more precision."""
    name = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype") or default
    if name not in DTYPE_BYTES:
        raise fields.error("mamba_ssm_dtype", f"= {name!r} is unknown")
    return DTYPE_BYTES[name]


def _gated_delta(fields: Fields, dtype: str) -> LayerCache:
    value_heads = fields.required("linear_num_value_heads")
    key_heads = fields.required("linear_num_key_heads")
    key_dim = fields.required("linear_key_head_dim")
    value_dim = fields.required("linear_value_head_dim")
    look_back = fields.required("linear_conv_kernel_dim") - 1
    return LayerCache(
        LayerKind.LINEAR,
        state=State(
            channels=2 * key_heads * key_dim + value_heads * value_dim,
            channel_bytes=look_back * DTYPE_BYTES[dtype],
            recurrent_bytes=value_heads * value_dim * key_dim * _recurrent_bytes(fields, dtype),
            heads=value_heads,
        ),
    )


def _kimi_delta(fields: Fields, dtype: str) -> LayerCache:
    part = fields.part("linear_attn_config") or fields
    return _delta(fields, part, part.required("num_heads"), dtype)


def _bailing(fields: Fields, dtype: str) -> LayerCache:
    # vLLM, model_executor/models/bailing_moe_v3.py; bailing_moe_linear.py is the older one.
    if "BailingMoeV3ForCausalLM" in fields.architectures():
        return _delta(fields, fields, fields.required("num_attention_heads"), dtype)
    return _lightning(fields, dtype)


def _delta(fields: Fields, part: Fields, heads: int, dtype: str) -> LayerCache:
    head_dim = part.required("head_dim")
    look_back = part.required("short_conv_kernel_size") - 1
    return LayerCache(
        LayerKind.LINEAR,
        state=State(
            channels=3 * heads * head_dim,
            channel_bytes=look_back * DTYPE_BYTES[dtype],
            # vLLM keeps this state in float32 (mamba_utils.py, kda_state_dtype).
            recurrent_bytes=heads * head_dim * head_dim * _recurrent_bytes(fields, "float32"),
            heads=heads,
        ),
    )


def _lightning(fields: Fields, dtype: str) -> LayerCache:
    heads = fields.required("num_attention_heads")
    head_dim = fields.positive("head_dim") or fields.required("hidden_size") // heads
    return LayerCache(
        LayerKind.LINEAR,
        state=State(
            channels=0,
            channel_bytes=0,
            recurrent_bytes=heads * head_dim * head_dim * DTYPE_BYTES[dtype],
            heads=heads,
        ),
    )


#: Mamba's sizes, by family.
STATE_SIZE = ("ssm_state_size", "mamba_d_state", "state_size")
_CONVOLUTION = ("conv_kernel", "mamba_d_conv")

#: The heads of Mamba 2, by family. Mamba 1 has none.
MAMBA_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
MAMBA_HEAD_DIM = ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
MAMBA_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")


def _mamba1(fields: Fields, dtype: str) -> LayerCache:
    expand = fields.positive("mamba_expand", "expand")
    inner = (
        expand * fields.required("hidden_size") if expand else fields.required("intermediate_size")
    )
    return LayerCache(
        LayerKind.MAMBA,
        state=State(
            channels=inner,
            channel_bytes=(fields.required(*_CONVOLUTION) - 1) * DTYPE_BYTES[dtype],
            recurrent_bytes=inner * fields.required(*STATE_SIZE) * _recurrent_bytes(fields, dtype),
            heads=0,
        ),
    )


def _mamba2(fields: Fields, dtype: str) -> LayerCache:
    plain = fields.text("model_type") == "mamba2"
    heads = fields.required(*MAMBA_HEADS, *(("num_heads",) if plain else ()))
    head_dim = fields.required(*MAMBA_HEAD_DIM, *(("head_dim",) if plain else ()))
    state = fields.required(*STATE_SIZE)
    # Nemotron-H computes its state in float32 unless the file says otherwise
    # (vLLM, model_executor/models/config.py).
    precision = "float32" if fields.text("model_type") == "nemotron_h" else dtype
    return LayerCache(
        LayerKind.MAMBA,
        state=State(
            channels=heads * head_dim,
            channel_bytes=(fields.required(*_CONVOLUTION) - 1) * DTYPE_BYTES[dtype],
            recurrent_bytes=heads * head_dim * state * _recurrent_bytes(fields, precision),
            heads=heads,
            groups=fields.positive(*MAMBA_GROUPS) or 1,
            group_channels=2 * state,
        ),
    )


def _short_convolution(fields: Fields, dtype: str) -> LayerCache:
    return LayerCache(
        LayerKind.CONVOLUTION,
        state=State(
            channels=fields.positive("conv_dim") or fields.required("hidden_size"),
            channel_bytes=(fields.required("conv_L_cache") - 1) * DTYPE_BYTES[dtype],
            recurrent_bytes=0,
            heads=0,
        ),
    )


#: The first of these fields that a file has says which recurrence its layers have.
_BY_FIELD: Mapping[str, Callable[[Fields, str], LayerCache]] = {
    "linear_num_value_heads": _gated_delta,
    "linear_attn_config": _kimi_delta,
    **dict.fromkeys(MAMBA_HEADS, _mamba2),
    "conv_L_cache": _short_convolution,
    "mamba_d_state": _mamba1,
    "state_size": _mamba1,
}

_BY_MODEL_TYPE: Mapping[str, Callable[[Fields, str], LayerCache]] = {
    "bailing_hybrid": _bailing,
    "bailing_moe_linear": _lightning,
    "mamba2": _mamba2,
    "minimax": _lightning,
    "minimax_text_01": _lightning,
}


def recurrent_cache(fields: Fields, model_type: str, dtype: str) -> LayerCache:
    """What a recurrent layer of this model keeps.

    Args:
        fields: the model's.
        model_type: its family.
        dtype: what its layers compute in.

    Raises:
        ModelError: the fields describe no recurrence that is known.
    """
    read = _BY_MODEL_TYPE.get(model_type) or next(
        (reader for field, reader in _BY_FIELD.items() if fields.has(field)), None
    )
    if read is None:
        known = "this family" if model_type in KNOWN else f"model_type {model_type!r}"
        raise fields.error("layer_types", f"has recurrent layers, and no field of {known} says how")
    return read(fields, dtype)
