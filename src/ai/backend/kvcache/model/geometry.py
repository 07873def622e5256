"""The shape of a model's KV cache: what a token of context costs.

This module knows the plain transformer decoder, in which every layer keeps keys and values of
every token (multi-head, grouped-query and multi-query attention). A model with anything else in
it (latent attention, sliding windows, recurrent layers) is refused with its name, since a number
that is wrong for it would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import ModelError

#: ``model_type`` values whose decoder is plain, by their implementation in Transformers.
PLAIN_DECODERS = frozenset({
    "granite",
    "llama",
    "ministral3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
})

#: Bytes of one element, by the names that ``config.json`` and vLLM's ``--dtype`` use.
DTYPE_BYTES: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float": 4,
    "float32": 4,
}

#: Bytes of one cached element, by vLLM's ``--kv-cache-dtype`` (config/cache.py, CacheDType).
KV_DTYPE_BYTES: Mapping[str, int] = {
    **DTYPE_BYTES,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}

_MAX_LAYERS = 10_000


@attrs.frozen
class Geometry:
    """The KV cache of one model, before it is divided over GPUs."""

    model_type: str
    layers: int
    kv_heads: int
    head_dim: int
    compute_dtype: str
    """What the layers compute in."""
    dtype: str
    """What keys and values are stored as."""
    element_bytes: int
    max_model_len: int
    """Tokens: the longest context the model's own configuration allows."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers: a key and a value for every KV head."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes * self.layers

    def bytes_per_token_per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes of one token on the GPU that holds most of it.

        Tensor parallelism divides the KV heads and repeats them once there are fewer than
        ranks (vLLM, config/model.py, get_num_kv_heads); pipeline parallelism divides the
        layers, and some stage holds the rounded-up share.

        Raises:
            ModelError: the KV heads cannot be divided so.
        """
        if self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads:
            raise ModelError(
                f"{self.kv_heads} KV heads cannot be divided over a tensor-parallel size of "
                f"{tensor_parallel}; choose one that divides {self.kv_heads} or is a multiple of it"
            )
        heads = max(1, self.kv_heads // tensor_parallel)
        layers = -(-self.layers // pipeline_parallel)
        return 2 * heads * self.head_dim * self.element_bytes * layers


def _positive(config: Mapping[str, Any], field: str) -> int | None:
    """The field as a positive integer; None when it is absent, null or 0."""
    value = config.get(field)
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelError(f"config.json: {field} = {value!r} is not a positive integer")
    return value


def _required(config: Mapping[str, Any], field: str) -> int:
    value = _positive(config, field)
    if value is None:
        raise ModelError(f"config.json: {field} is missing")
    return value


def _dtype(config: Mapping[str, Any], outer: Mapping[str, Any], requested: str) -> str:
    """What the model computes in: ``--dtype``, else its own, as vLLM's ``auto`` resolves it."""
    if requested != "auto":
        dtype = requested
    else:
        dtype = str(
            config.get("dtype")
            or config.get("torch_dtype")
            or outer.get("dtype")
            or outer.get("torch_dtype")
            or "float32"
        )
        if DTYPE_BYTES.get(dtype) == 4:
            # vLLM's auto runs float32 checkpoints in 16 bits (config/model.py).
            dtype = "bfloat16"
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"dtype {dtype!r} is unknown; known are {', '.join(sorted(DTYPE_BYTES))}")
    return dtype


def _refuse_unplain(config: Mapping[str, Any], model_type: str) -> None:
    if model_type not in PLAIN_DECODERS:
        raise ModelError(
            f"config.json: model_type {model_type!r} is not known to keep plain keys and values "
            f"of every token; known are {', '.join(sorted(PLAIN_DECODERS))}"
        )
    if _positive(config, "sliding_window") and config.get("use_sliding_window", True):
        raise ModelError(
            f"config.json: sliding_window = {config['sliding_window']} is not supported yet"
        )


def read_geometry(
    config: Mapping[str, Any], *, dtype: str = "auto", kv_cache_dtype: str = "auto"
) -> Geometry:
    """The geometry that a model's ``config.json`` describes.

    Args:
        config: the parsed file; the text part of a multimodal model is found by itself.
        dtype: vLLM's ``--dtype``.
        kv_cache_dtype: vLLM's ``--kv-cache-dtype``.

    Raises:
        ModelError: a field is missing, nonsense, or of a kind of model not covered.
    """
    outer = config
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = inner
    model_type = config.get("model_type", outer.get("model_type"))
    if not isinstance(model_type, str) or not model_type:
        raise ModelError("config.json: model_type is missing")
    _refuse_unplain(config, model_type)
    layers = _required(config, "num_hidden_layers")
    if layers > _MAX_LAYERS:
        raise ModelError(f"config.json: num_hidden_layers = {layers} is not a real model's")
    heads = _required(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads") or heads
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads = {heads} is no multiple of "
            f"num_key_value_heads = {kv_heads}"
        )
    head_dim = _positive(config, "head_dim")
    if head_dim is None:
        hidden = _required(config, "hidden_size")
        if hidden % heads:
            raise ModelError(
                f"config.json: hidden_size = {hidden} is no multiple of "
                f"num_attention_heads = {heads}, and head_dim is not given"
            )
        head_dim = hidden // heads
    model_dtype = _dtype(config, outer, dtype)
    kv_dtype = model_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ModelError(
            f"kv-cache-dtype {kv_dtype!r} is unknown; known are {', '.join(sorted(KV_DTYPE_BYTES))}"
        )
    return Geometry(
        model_type=model_type,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        compute_dtype=model_dtype,
        dtype=kv_dtype,
        element_bytes=KV_DTYPE_BYTES[kv_dtype],
        max_model_len=_required(config, "max_position_embeddings"),
    )
