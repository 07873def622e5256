"""Numbers as engines read them from their command line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ..errors import StartCommandError

#: vLLM 0.15 to 0.33, utils/argparse_utils.py, human_readable_int.
_DECIMAL: Mapping[str, int] = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Mapping[str, int] = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

#: In characters. Longer ones are nonsense, and Python refuses to read thousands of digits.
_LONGEST = 40


def human_readable(value: str) -> int | None:
    """A number such as 32K, 1.5k or 4096; None where vLLM would not take it.

    A small letter is a power of 1000 and allows decimals; a capital one is a power of 1024 and does
    not.
    """
    if len(value) > _LONGEST:
        return None
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmgt])", value.strip()):
        return int(float(match[1]) * _DECIMAL[match[2]])
    if match := re.fullmatch(r"([0-9]+)([KMGT])", value.strip()):
        return int(match[1]) * _BINARY[match[2]]
    return _integer(value)


def _integer(value: str) -> int | None:
    try:
        return int(value) if len(value) <= _LONGEST else None
    except ValueError:
        return None


def _positive(name: str, value: str, number: int | None, kind: str) -> int:
    if number is None or number < 1:
        raise StartCommandError(f"{name} {value[:_LONGEST]!r} is not {kind}")
    return number


def whole_number(name: str, value: str) -> int:
    """The value of an option that takes a plain number.

    Raises:
        StartCommandError: it is no whole number above zero.
    """
    return _positive(name, value, _integer(value), "a positive whole number")


def amount(name: str, value: str) -> int:
    """The value of an option that takes letters such as K behind the number as well.

    Raises:
        StartCommandError: vLLM would not take it, or it is not above zero.
    """
    kind = "a positive number such as 32768, 32K or 32.7k"
    return _positive(name, value, human_readable(value), kind)


def fraction(name: str, value: str) -> float:
    """The value of an option that takes a number with decimals.

    Raises:
        StartCommandError: it is no number, or below zero.
    """
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise StartCommandError(f"{name} {value[:_LONGEST]!r} is not a number of 0 or more")
    return number


def utilization(name: str, value: str | None) -> str | None:
    """A part of the GPU's memory, as it was written. None: not said.

    Raises:
        StartCommandError: it is not between 0 and 1.
    """
    if value is None:
        return None
    try:
        is_valid = 0 < float(value) <= 1
    except ValueError:
        is_valid = False
    if not is_valid:
        raise StartCommandError(f"{name} {value[:_LONGEST]!r} is not between 0 and 1, such as 0.9")
    return value
