"""How wide a model's layers are: what decides the memory of one forward pass.

These figures do not change what a cached block means. They are only used to estimate what an engine
takes besides weights and KV cache, so a field that is missing or odd counts as 0 here and never
refuses a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import ModelError
from .fields import Fields
from .text import text_fields

_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
_EXPERTS_OF_A_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
)
_VISION_PARTS = ("vision_config", "vision_encoder", "visual")


@attrs.frozen
class Widths:
    """Elements of one token at the wide places of a model, before it is divided over GPUs."""

    hidden: int = 0
    feed_forward: int = 0
    """Of one dense feed-forward layer."""
    heads: int = 0
    """Of all query heads together."""
    vocabulary: int = 0
    experts_of_a_token: int = 0
    """How many experts work on one token. 0: the model has none."""
    expert: int = 0
    """The inner width of one expert."""
    vision_hidden: int = 0
    """Of the tower that reads images. 0: there is none, or nothing is said of it."""
    vision_feed_forward: int = 0


def _size(fields: Fields | None, *names: str) -> int:
    """The first of the fields that holds a size. Some families give one for each layer."""
    if fields is None:
        return 0
    for name in names:
        value = fields.values.get(name)
        if isinstance(value, list) and value:
            value = max((v for v in value if type(v) is int), default=None)
        if type(value) is int and 0 < value < 2**31:
            return value
    return 0


def _vision(outer: Fields) -> Fields | None:
    for name in _VISION_PARTS:
        value = outer.values.get(name)
        if isinstance(value, Mapping):
            return Fields(value, outer.file, f"{name}.")
    return None


def read_widths(config: Mapping[str, Any], file: str = "config.json") -> Widths:
    """The widths that a configuration describes, as far as it does."""
    try:
        fields, outer = text_fields(config, file)
    except ModelError:
        return Widths()
    hidden, heads = _size(fields, *_HIDDEN), _size(fields, *_HEADS)
    feed_forward = _size(fields, *_INTERMEDIATE) or 4 * hidden
    # A latent head asks with a part without position and a rotary part (MLA).
    latent = _size(fields, "qk_nope_head_dim") + _size(fields, "qk_rope_head_dim")
    head = latent or _size(fields, "head_dim") or (hidden // heads if heads else 0)
    experts = _size(fields, *_EXPERTS_OF_A_TOKEN)
    vision = _vision(outer)
    return Widths(
        hidden=hidden,
        feed_forward=feed_forward,
        heads=heads * head,
        vocabulary=_size(fields, "vocab_size", "padded_vocab_size"),
        experts_of_a_token=experts,
        expert=(_size(fields, "moe_intermediate_size") or feed_forward) if experts else 0,
        vision_hidden=_size(vision, "hidden_size", "embed_dim", "width"),
        vision_feed_forward=_size(vision, "intermediate_size"),
    )
