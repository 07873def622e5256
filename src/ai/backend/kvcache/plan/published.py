"""A plan on its way from the agent that carried it out to whoever asks the manager for it.

Both ends meet in Backend.AI's own store (Valkey), where a plan lies under its kernel's id. It was
read from a session's configuration folder, so it may be the session's word: who shows it to a
person shows it as text and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

#: A plan has some kilobytes.
MAX_PLAN_BYTES = 2**20


def key_of(kernel_id: str) -> str:
    """Where a kernel's plan is stored."""
    return f"kvcache.plan.{kernel_id}"


def encode(plan: Mapping[str, Any]) -> bytes:
    """A plan as it is stored.

    Raises:
        ValueError: it is larger than any plan, or holds what JSON has no word for.
    """
    content = json.dumps(plan, allow_nan=False, separators=(",", ":")).encode()
    if len(content) > MAX_PLAN_BYTES:
        raise ValueError(f"the plan has more than {MAX_PLAN_BYTES} bytes")
    return content


def decode(content: bytes) -> dict[str, Any]:
    """A plan that was stored, or written to plan.json.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        plan = json.loads(content, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    if not isinstance(plan, dict):
        raise ValueError("it is no JSON object")
    return plan


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
