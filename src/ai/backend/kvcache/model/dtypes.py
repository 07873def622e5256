"""What one element takes, by the names that models and vLLM use."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

import attrs

from ..errors import ModelError
from .fields import Fields

#: What layers can compute in: ``dtype`` in ``config.json`` and vLLM's ``--dtype``.
DTYPE_BYTES: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float": 4,
    "float32": 4,
}


@attrs.frozen
class KvDtype:
    """How keys and values are stored."""

    bits: int
    """Of one element."""
    scale_bytes: int = 0
    """Beside each head's keys, and again beside its values."""
    scale_block: int = 0
    """Elements that share one more byte of scale; 0: none do."""

    def side_bytes(self, elements: int) -> int:
        """Bytes of one head's keys, or of its values, of one token."""
        blocks = elements // self.scale_block if self.scale_block else 0
        return -(-elements * self.bits // 8) + self.scale_bytes + blocks


#: By vLLM's ``--kv-cache-dtype`` (config/cache.py, CacheDType; utils/torch_utils.py). Scales of
#: whole tensors lie with the weights. Per-token-head formats keep a float32 beside each head
#: (v1/attention/backends/triton_attn.py), nvfp4 a byte for 16 elements (nvfp4_kv_cache_full_dim).
KV_DTYPES: Mapping[str, KvDtype] = {
    **{name: KvDtype(8 * size) for name, size in DTYPE_BYTES.items()},
    "fp8": KvDtype(8),
    "fp8_e4m3": KvDtype(8),
    "fp8_e5m2": KvDtype(8),
    "fp8_inc": KvDtype(8),
    "fp8_ds_mla": KvDtype(8),
    "int8": KvDtype(8),
    "fp8_per_token_head": KvDtype(8, scale_bytes=4),
    "int8_per_token_head": KvDtype(8, scale_bytes=4),
    "int4_per_token_head": KvDtype(4, scale_bytes=4),
    "nvfp4": KvDtype(4, scale_block=16),
    "nvfp4_4over6": KvDtype(4, scale_block=16),
    "nvfp4_ds_mla": KvDtype(4, scale_block=16),
}

#: Formats that exist for latent attention alone.
LATENT_ONLY = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})


def compute_dtype(fields: Fields, outer: Fields, requested: str) -> str:
    """What the model computes in: ``--dtype``, else its own, as vLLM's ``auto`` resolves it.

    What a multimodal file says of the whole model wins over what it says of the part for text
    (vLLM, transformers_utils/model_arch_config_convertor.py, get_torch_dtype).

    Raises:
        ModelError: the name is unknown.
    """
    if requested != "auto":
        name = requested
    else:
        name = next(
            (
                str(f.values[field])
                for f in (outer, fields)
                for field in ("dtype", "torch_dtype")
                if f.has(field)
            ),
            "float32",
        ).removeprefix("torch.")
        if DTYPE_BYTES.get(name) == 4:
            # vLLM's auto runs float32 checkpoints in 16 bits (config/model.py).
            name = "bfloat16"
    if name not in DTYPE_BYTES:
        raise ModelError(
            f"dtype {reprlib.repr(name)} is unknown; known are {', '.join(sorted(DTYPE_BYTES))}"
        )
    return name


def _declared_kv_dtype(fields: Fields, outer: Fields) -> str | None:
    """The KV cache's type where the checkpoint was quantized with one.

    As vLLM reads it: utils/torch_utils.py, get_kv_cache_quant_algo_string (ModelOpt), and
    model_executor/layers/attention/attention.py (kv_cache_scheme).
    """
    quantization = outer.part("quantization_config") or fields.part("quantization_config")
    if quantization is None:
        return None
    for part in (quantization.part("quantization"), quantization):
        if part is None:
            continue
        algorithm = part.values.get("kv_cache_quant_algo")
        if isinstance(algorithm, str) and algorithm.lower() in ("fp8", "nvfp4"):
            return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}[algorithm.lower()]
        scheme = part.values.get("kv_cache_scheme")
        if isinstance(scheme, Mapping):
            return "nvfp4" if scheme.get("num_bits") == 4 else "fp8_e4m3"
    return None


def kv_dtype(fields: Fields, outer: Fields, requested: str, computed: str) -> str:
    """What keys and values are stored as: ``--kv-cache-dtype``, with ``auto`` resolved.

    Raises:
        ModelError: the name is unknown.
    """
    if requested == "auto":
        return _declared_kv_dtype(fields, outer) or computed
    if requested not in KV_DTYPES:
        raise ModelError(
            f"kv-cache-dtype {reprlib.repr(requested)} is unknown; "
            f"known are auto, {', '.join(sorted(KV_DTYPES))}"
        )
    return requested
