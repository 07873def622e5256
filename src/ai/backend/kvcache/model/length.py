"""The longest context that a model's own configuration allows."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import attrs
from packaging.version import Version

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

#: Wins over all of them, however large it is (same function: Command-R).
_WINS = "model_max_length"

_LONG_ROPE = ("longrope", "su")


@attrs.frozen
class _Rule:
    """What a version of vLLM makes of rotary scalings.

    config/model.py, _get_and_verify_max_len.
    """

    since: Version
    scaled_already: frozenset[str]
    """Scalings whose factor the stated length has in it already."""
    yarn_starts_at_original: bool
    """Whether YaRN's factor is applied to ``original_max_position_embeddings``."""


#: Oldest first. Read in vLLM 0.15.0, 0.17.0, 0.20.2, 0.22.0, 0.25.1, 0.26.0 and 0.29.0 (the first
#: rule), and in 0.30.0 to 0.33.0 (the second).
_RULES = (
    _Rule(Version("0"), frozenset({*_LONG_ROPE, "llama3"}), yarn_starts_at_original=True),
    _Rule(
        Version("0.30.0"),
        frozenset({*_LONG_ROPE, "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}),
        yarn_starts_at_original=False,
    ),
)


def longest_contexts(fields: Fields, vllm: Version | None) -> tuple[int, ...]:
    """Tokens, as vLLM derives them.

    Args:
        fields: the part that describes the text model.
        vllm: the version that counts; None where it is not known.

    Returns:
        One length; several, in rising order, where the version is not known and decides; none where
        the configuration states no length.

    Raises:
        ModelError: a length or its scaling is nonsense.
    """
    lengths = [length for name in _MAX_LENGTH if (length := fields.positive(name)) is not None]
    if not lengths:
        return ()
    stated = fields.positive(_WINS) or min(lengths)
    rules = _RULES if vllm is None else [r for r in _RULES if r.since <= vllm][-1:]
    return tuple(sorted({_scaled(fields, stated, rule) for rule in rules}))


def _scaled(fields: Fields, stated: int, rule: _Rule) -> int:
    length, factor = stated, 1.0
    for scaling in _scalings(fields):
        kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
        if kind in _LONG_ROPE:
            return fields.positive("original_max_position_embeddings") or stated
        if kind in rule.scaled_already:
            continue
        # The last of several counts, as in vLLM: all are meant to be the same.
        factor = _factor(scaling, factor)
        if kind == "yarn" and rule.yarn_starts_at_original:
            length = scaling.positive("original_max_position_embeddings") or stated
    if "gemma3" in str(fields.values.get("model_type")):
        # Its length has every scaling in it (same function of vLLM).
        return stated
    return int(length * factor)


def _scalings(fields: Fields) -> list[Fields]:
    """The rotary scalings: one, or one for each kind of layer."""
    # Transformers, modeling_rope_utils.py: the old name wins where a file has both.
    whole = fields.part("rope_scaling") or fields.part("rope_parameters")
    if whole is None:
        return []
    kinds = [name for name, value in whole.values.items() if isinstance(value, Mapping)]
    return [part for name in kinds if (part := whole.part(name)) is not None] or [whole]


def _factor(scaling: Fields, otherwise: float) -> float:
    if "factor" not in scaling.values:
        return otherwise
    factor: Any = scaling.values["factor"]
    if factor is None:
        return 1.0
    if type(factor) not in (int, float) or not 0 < factor < 2**20:
        raise scaling.error("factor", f"= {reprlib.repr(factor)} is not a positive number")
    return float(factor)
