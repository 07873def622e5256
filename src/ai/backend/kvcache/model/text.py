"""The part of a model's configuration that describes the text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .families import DEFAULTS
from .fields import Fields
from .layers import MAX_LAYERS
from .mistral import as_hugging_face

#: Where multimodal models keep the description of the part that writes text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def text_fields(config: Mapping[str, Any], file: str = "config.json") -> tuple[Fields, Fields]:
    """(the part of a configuration that describes the text model, the whole of it).

    Raises:
        ModelError: a part is no object.
    """
    outer = Fields(as_hugging_face(config, file), file)
    inner = outer
    while (part := _text_part(inner)) is not None:
        inner = part
    model_type = inner.text("model_type") or outer.text("model_type") or ""
    values = {**DEFAULTS.get(model_type, {}), **inner.values, "model_type": model_type}
    # Of old families, some name their attention in a part of its own.
    attention = inner.part("attn_config")
    if attention is not None and attention.has("kv_n_heads"):
        values["kv_n_heads"] = attention.values["kv_n_heads"]
    return attrs.evolve(inner, values=values), outer


def _text_part(fields: Fields) -> Fields | None:
    for name in _TEXT_PARTS:
        part = fields.part(name)
        if part is not None and part.values:
            return part
    return None


def layer_count(fields: Fields) -> int:
    """How many layers the model has.

    Raises:
        ModelError: it does not say, or no model has that many.
    """
    # Nemotron-H counts its layers by listing them, and other fields may say something else.
    letters = fields.values.get("hybrid_override_pattern")
    listed = fields.values.get("layers_block_type")
    if isinstance(letters, str) and letters:
        count = len(letters)
    elif isinstance(listed, list) and not fields.has("num_hidden_layers"):
        count = len(listed)
    else:
        count = fields.required(*_LAYERS)
    if count > MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"= {count} is not a real model's")
    return count
