"""Tiny models of random weights, made by the tools that an engine image carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .command import run

#: Arguments of `make_tiny_model`: small enough to start fast, and large enough to time prefill.
FUNCTION_MODEL = ("--layers", "4", "--hidden", "256")
#: Both in float32: processors without bfloat16 instructions are three times slower in that.
TIMING_MODEL = ("--layers", "12", "--hidden", "768", "--heads", "12", "--kv-heads", "4")


def make_tiny_model(target: Path, arguments: Sequence[str], *, image: str) -> None:
    """Writes a tiny model to `target`, with the numpy and the tokenizers of an engine image."""
    target.mkdir(parents=True, exist_ok=True)
    tools = Path(__file__).resolve().parents[1]
    run([
        *("docker", "run", "--rm", "--network", "none"),
        *("--volume", f"{tools}:/tools:ro", "--volume", f"{target.resolve()}:/target"),
        *("--env", "PYTHONPATH=/tools", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *(image, "python3", "-m", "devcluster.tinymodel", "/target", *arguments),
    ])
