"""JSON that anybody may have written: taken as it is meant, or refused with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

#: A policy has three levels, the deepest published model description seven.
MAX_DEPTH = 32

_TOO_DEEP = f"it is nested more deeply than {MAX_DEPTH} levels"


def parse(content: bytes) -> Any:
    """What the content says.

    Raises:
        ValueError: it is no JSON in UTF-8, has a number that is not finite, has text that databases
            or logs do not take (halves of surrogate pairs, NUL), or is nested more deeply than
            MAX_DEPTH.
    """
    try:
        value = json.loads(content.decode(), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check(value)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _check(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        for text in level:
            if isinstance(text, str):
                _check_text(text)
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list) else ()


def _check_text(text: str) -> None:
    text.encode()
    if "\0" in text:
        raise ValueError(f"{text[:40]!r} has a NUL character")
