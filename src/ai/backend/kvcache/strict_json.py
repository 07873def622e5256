"""JSON that anybody may have written: taken as it is meant, or refused with a reason."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

#: A policy has three levels, the deepest published model description seven.
MAX_DEPTH = 32


def parse(content: bytes) -> Any:
    """What the content says.

    Raises:
        ValueError: it is no JSON in UTF-8, has a number that is not finite or text that cannot be
            written as UTF-8, or is nested more deeply than MAX_DEPTH.
    """
    text = content.decode()
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"it is nested more deeply than {MAX_DEPTH} levels") from None
    _check_depth(value)
    if "\\u" in text:
        # Half of a surrogate pair, which the database, the log and other programs would not take.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more deeply than {MAX_DEPTH} levels")
