"""What a person sees while long work runs: a step, what it does, how long it took."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class SetupError(Exception):
    """The set-up cannot go on. The message says what is wrong and what to do about it."""


#: A program that one of ours starts goes on counting where that one was.
ELAPSED_VARIABLE = "DEVCLUSTER_ELAPSED_SECONDS"

_started = time.monotonic() - float(os.environ.get(ELAPSED_VARIABLE, "0"))


def elapsed_seconds() -> float:
    """Seconds since the first of our programs started."""
    return time.monotonic() - _started


def say(message: str) -> None:
    print(f"[{elapsed_seconds():6.1f} s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announces a step, then how long it took. A failing step is named before the error."""
    say(f"{title} ...")
    began = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{title}: FAILED after {time.monotonic() - began:.1f} s")
        raise
    say(f"{title}: done in {time.monotonic() - began:.1f} s")
