"""Runs one program to its end, and says what it printed when it fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .console import SetupError

#: A program and its arguments.
Argv = list[str | Path]
#: How much of a failed program's output a person needs to see.
TAIL_LINES = 25


def tail(text: str, lines: int = TAIL_LINES) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Returns the program's standard output; `env` is added to this program's own."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise SetupError(f"The program {words[0]} is not on this machine.") from None
    if done.returncode != 0:
        raise SetupError(
            f"`{' '.join(words)}` failed with exit code {done.returncode}:\n"
            f"{tail(done.stdout + done.stderr)}"
        )
    return done.stdout


def succeeds(argv: Sequence[str | Path], *, timeout: float = 10.0) -> bool:
    """Whether the program exists, ends in time and returns 0. Its output does not matter."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
