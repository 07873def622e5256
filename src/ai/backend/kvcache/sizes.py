"""Sizes: integers of bytes inside, text for people outside."""

from __future__ import annotations

import re
from decimal import Decimal

from .errors import SizeError

MIB = 2**20
GIB = 2**30

#: All units are powers of 1024, as everywhere in Backend.AI (ai.backend.common.types, BinarySize).
_UNITS = {"": 1, "k": 2**10, "m": MIB, "g": GIB, "t": 2**40, "p": 2**50}

#: No machine has more; a larger size is a mistake.
MAX_BYTES = 2**60


def parse_size(text: str) -> int:
    """A size such as ``80GiB``, ``24g``, ``512MiB`` or plain bytes, in bytes.

    Raises:
        SizeError: it is none.
    """
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([kmgtp]?)(?:i?b)?\s*", text.lower())
    size = int(Decimal(match[1]) * _UNITS[match[2]]) if match else 0
    if not 0 < size <= MAX_BYTES:
        raise SizeError(
            f"{text[:40]!r} is not a size; write it as 80GiB, 24g, 512MiB or plain bytes"
        )
    return size


def gib(size: int) -> str:
    """A size for people, such as ``24 GiB`` or ``1.5 GiB``."""
    return f"{size / GIB:.2f}".rstrip("0").rstrip(".") + " GiB"
