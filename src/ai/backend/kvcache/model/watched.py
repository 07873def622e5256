"""Models that compute otherwise by what an engine was told of lengths and of generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .text import TEXT_PARTS

#: Kinds of rotary embeddings whose factors follow the longest length of a context, not the
#: positions (vLLM, model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py).
_LENGTH_DEPENDENT = frozenset({"longrope", "su"})

#: Models whose attention has a temperature that follows the longest length, unless the
#: generation's configuration says it (vLLM, model_executor/models/llama4.py).
_TEMPERED = ("llama4",)


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name in TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            yield from _parts(part)


def _rope_kinds(part: Mapping[str, Any]) -> Iterator[str]:
    for name in ("rope_scaling", "rope_parameters"):
        described = part.get(name)
        if not isinstance(described, Mapping):
            continue
        # One for all layers, or one for each kind of layer.
        for rope in (described, *described.values()):
            if isinstance(rope, Mapping):
                yield from (str(rope[key]) for key in ("rope_type", "type") if key in rope)


def watches_length(config: Mapping[str, Any]) -> bool:
    """Whether a model's layers compute otherwise with another longest length of a context.

    Args:
        config: the model's configuration, with the user's changes.
    """
    return any(
        str(part.get("model_type", "")).startswith(_TEMPERED)
        or _LENGTH_DEPENDENT & set(_rope_kinds(part))
        for part in _parts(config)
    )
