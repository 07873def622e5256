"""The longest context that a model's own configuration allows."""

from __future__ import annotations

import reprlib

from .fields import Fields

#: The longest context, by every name that vLLM looks for; the smallest of them counts
#: (transformers_utils/model_arch_config_convertor.py, derive_max_model_len_and_key).
_MAX_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)

#: Rotary scalings whose factor ``max_position_embeddings`` has in it already
#: (vLLM, config/model.py, _get_and_verify_max_len).
_SCALED_ALREADY = frozenset({
    "deepseek_llama_scaling", "deepseek_yarn", "llama3", "longrope", "su", "yarn",
})  # fmt: skip


def longest_context(fields: Fields, outer: Fields) -> int | None:
    """Tokens, as vLLM derives them.

    Returns:
        None where the configuration states no length.

    Raises:
        ModelError: a length or its scaling is nonsense.
    """
    lengths = [length for name in _MAX_LENGTH if (length := fields.positive(name)) is not None]
    if not lengths:
        return None
    length = min(lengths)
    scaling = fields.part("rope_scaling") or fields.part("rope_parameters")
    if scaling is None:
        return length
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if kind == "longrope":
        return fields.positive("original_max_position_embeddings") or length
    factor = scaling.values.get("factor")
    model_type = str(outer.values.get("model_type"))
    if factor is None or kind in _SCALED_ALREADY or "gemma3" in model_type:
        return length
    if type(factor) not in (int, float) or not 0 < factor < 2**20:
        raise scaling.error("factor", f"= {reprlib.repr(factor)} is not a positive number")
    return int(length * factor)
