"""The part of a KV folder that only compatible engines share.

Engines name cached blocks by the model's *path* and the tokens' hash. In Backend.AI every model
is mounted at the same path, so two models, or one model in two precisions, would read each
other's blocks and answer wrongly. Everything that a block's meaning depends on is therefore
described, and the description's hash names the directory that the engine is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import xxhash


@attrs.frozen
class Namespace:
    """A description and what follows from it."""

    description: Mapping[str, Any]
    name: str
    """32 hex digits: xxh3_128 of the canonical description."""

    @property
    def hash_seed(self) -> int:
        """A PYTHONHASHSEED: the same on every node and after every restart, 1 … 2³² - 1."""
        return int(self.name[:8], 16) or 1


def canonical(description: Mapping[str, Any]) -> bytes:
    """The one spelling of a description: sorted keys, no spaces, ASCII."""
    return json.dumps(
        description, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def namespace_of(description: Mapping[str, Any]) -> Namespace:
    """The namespace of a description made of JSON values."""
    return Namespace(description, xxhash.xxh3_128_hexdigest(canonical(description)))
