"""What a start changes in a model's configuration: ``--hf-overrides`` in all its forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import StartCommandError
from .amounts import human_readable

_SHOWN = 40
_DEEPEST = 20


class Overrides:
    """The overrides of a start, given one by one.

    As vLLM takes them (utils/argparse_utils.py, FlexibleArgumentParser.parse_args, 0.20.2 to 0.33):
    the last JSON object wins over earlier ones; values with a dotted name are put together to one
    object, which wins over JSON wherever it stands.
    """

    def __init__(self) -> None:
        self._whole: Mapping[str, Any] = {}
        self._dotted: dict[str, Any] = {}

    @property
    def merged(self) -> Mapping[str, Any]:
        """What the engine is left with."""
        return self._dotted or self._whole

    def give(self, name: str, value: str) -> None:
        """Adds one option.

        Args:
            name: what stands behind the option's first dot; empty for the whole object.
            value: JSON; of a dotted name, any text.

        Raises:
            StartCommandError: it is no JSON object.
        """
        if name:
            names = name.removesuffix("+").split(".")
            if len(names) > _DEEPEST:
                raise StartCommandError(f"{name[:_SHOWN]} has more than {_DEEPEST} levels")
            change = _dotted_value(name, value)
            for level in reversed(names):
                change = {level: change}
            _merge(self._dotted, change)
            return
        try:
            whole = json.loads(value)
        except (ValueError, RecursionError) as e:
            raise StartCommandError(
                f"the overrides of the model's configuration ({value[:_SHOWN]}) are not valid JSON"
            ) from e
        if not isinstance(whole, dict):
            raise StartCommandError(
                f"the overrides of the model's configuration ({value[:_SHOWN]}) are no JSON object"
            )
        self._whole = whole


def _dotted_value(name: str, value: str) -> Any:
    if name.endswith("+"):
        return value.split(",")
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        number = human_readable(value)
        return value if number is None else number


def _merge(target: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Sets values level by level; lists of the same name are joined."""
    for name, value in changes.items():
        old = target.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            target[name] = old + value
        else:
            target[name] = value
