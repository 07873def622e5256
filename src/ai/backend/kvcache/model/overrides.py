"""Changes that an engine's arguments make to a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import TEXT_PARTS

#: Two names of the same field (Transformers, configuration_utils.py, rope_scaling).
_SAME = {"rope_scaling": "rope_parameters", "rope_parameters": "rope_scaling"}

#: Parts that are configurations of their own. Every other object is a value.
_PARTS = (*TEXT_PARTS, "attn_config")


def _set(config: dict[str, Any], name: str, value: Any) -> None:
    config.pop(_SAME.get(name, ""), None)
    config[name] = value


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Inside of a part, an object is merged with the one that it meets."""
    result = dict(config)
    for name, value in changes.items():
        met = result.get(name, result.get(_SAME.get(name, "")))
        if isinstance(value, Mapping) and isinstance(met, Mapping):
            value = _merged(met, value)
        _set(result, name, value)
    return result


def override(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration as vLLM changes it before it builds the model.

    As in vLLM (config/model.py, __post_init__, _apply_dict_overrides, _update_nested), an object
    for a part is merged with the part, and any other object, such as rotary scalings, takes the
    place of the old one.

    Args:
        config: the parsed file.
        changes: ``--hf-overrides``.
    """
    result = dict(config)
    for name, value in changes.items():
        if name not in _PARTS or not isinstance(value, Mapping):
            _set(result, name, value)
            continue
        # Transformers calls the part for text text_config, whatever the file calls it, and makes
        # one of files that describe it beside the others.
        written = name if name in result else next((n for n in TEXT_PARTS if n in result), None)
        if name == "text_config" and written is None:
            result = _merged(result, value)
            continue
        part = result.get(written or name)
        result[written or name] = _merged(part, value) if isinstance(part, Mapping) else value
    return result
