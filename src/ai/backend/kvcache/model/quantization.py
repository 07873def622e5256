"""How many bits a quantized model's weights take."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import attrs

from .fields import Fields

#: Weights that share one scale (and one zero point) where the file does not say how many.
_GROUP = 128

#: Scales in 16 bits.
_SCALE_BITS = 16


@attrs.frozen
class Quantization:
    """Bits of one weight. Embeddings, norms and the output projection are never quantized."""

    name: str
    linear_bits: Fraction
    expert_bits: Fraction


def _grouped(bits: int, group: int, zero_points: bool) -> Fraction:
    shared = _SCALE_BITS + (bits if zero_points else 0)
    return Fraction(bits) + (Fraction(shared, group) if group > 0 else 0)


def _of_compressed_tensors(fields: Fields) -> Fraction | None:
    groups = fields.part("config_groups")
    for name in groups.values if groups else ():
        group = groups.part(name) if groups else None
        weights = group.part("weights") if group else None
        if weights is not None and weights.has("num_bits"):
            size = weights.values.get("group_size")
            return _grouped(
                weights.required("num_bits"), size if type(size) is int else 0, zero_points=False
            )
    return None


#: ModelOpt's algorithms. NVFP4 has a scale of one byte for 16 weights.
_MODELOPT_BITS: Mapping[str, Fraction] = {
    "FP8": Fraction(8),
    "FP8_PB_WO": Fraction(8),
    "FP8_PER_CHANNEL_PER_TOKEN": Fraction(8),
    "NVFP4": Fraction(9, 2),
    "W4A16_AWQ": _grouped(4, _GROUP, zero_points=False),
    "W4A8_AWQ": _grouped(4, _GROUP, zero_points=False),
}

#: Methods whose bits follow from their name: NF4 with one float32 for 64 weights, MXFP4 with one
#: byte for 32.
_METHOD_BITS: Mapping[str, Fraction] = {
    "fp8": Fraction(8),
    "fbgemm_fp8": Fraction(8),
    "mxfp4": Fraction(17, 4),
}

_WITH_BITS = frozenset({"auto-round", "auto_round", "awq", "gptq", "gptq_marlin", "hqq", "intel"})


def _bits(fields: Fields, method: str) -> Fraction | None:
    if method in _METHOD_BITS:
        return _METHOD_BITS[method]
    if method in _WITH_BITS:
        size = fields.values.get("group_size", _GROUP)
        return _grouped(
            fields.positive("bits", "w_bit") or 4,
            size if type(size) is int else 0,
            zero_points=True,
        )
    if method == "bitsandbytes":
        return Fraction(9, 2) if fields.flag("load_in_4bit", False) else Fraction(8)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _of_compressed_tensors(fields)
    if method.startswith("modelopt"):
        inner = fields.part("quantization") or fields
        return _MODELOPT_BITS.get(str(inner.values.get("quant_algo")).upper())
    return None


def quantization_of(fields: Fields, outer: Fields, dtype_bits: int) -> Quantization:
    """How the weights are stored.

    Args:
        fields: of the text model.
        outer: of the whole model.
        dtype_bits: of a weight that is not quantized.

    Returns:
        A method that is not known counts as no quantization, and its name says so.
    """
    plain = Fraction(dtype_bits)
    part = outer.part("quantization_config") or fields.part("quantization_config")
    if part is None:
        return Quantization("not quantized", plain, plain)
    method = str(part.values.get("quant_method", "")).lower()
    bits = _bits(part, method)
    if bits is None:
        return Quantization(f"{method or 'unnamed'} quantization counted as none", plain, plain)
    # OpenAI's MXFP4 checkpoints quantize their experts alone.
    return Quantization(method, plain if method == "mxfp4" else bits, bits)
