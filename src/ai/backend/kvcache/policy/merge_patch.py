"""Changes to a JSON document as RFC 7396 (JSON Merge Patch) writes them."""

from __future__ import annotations

from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """The changed document; neither of the two is changed itself.

    Args:
        target: a JSON value.
        patch: what to say anew: objects are merged name by name, null takes a name away, anything
            else replaces.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
