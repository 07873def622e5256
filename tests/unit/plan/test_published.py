from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.kvcache.plan.plan import Plan
from ai.backend.kvcache.plan.published import MAX_PLAN_BYTES, decode, encode, key_of


def test_key() -> None:
    assert key_of("0b7e") == "kvcache.plan.0b7e"


@pytest.mark.parametrize("text", ["no model", "größer \x1b[31m ‮ \ud800"])
def test_there_and_back(text: str) -> None:
    plan = Plan(kernel_id="k", no_kv_cache_because=text).to_json()
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize(
    "plan",
    [
        {"value": float("nan")},
        {"value": float("-inf")},
        # {"a":""} has 8 bytes, so that this is one too many.
        {"a": "x" * (MAX_PLAN_BYTES - 7)},
    ],
)
def test_what_is_not_stored(plan: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"JSON|bytes"):
        encode(plan)


def test_largest() -> None:
    assert len(encode({"a": "x" * (MAX_PLAN_BYTES - 8)})) == MAX_PLAN_BYTES


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'"plan"',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1',
        b"\xff\xfe{}",
        b"[" * 100_000,
        json.dumps({"a": "x" * MAX_PLAN_BYTES}).encode()[:MAX_PLAN_BYTES],
    ],
)
def test_what_is_no_plan(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(content)
