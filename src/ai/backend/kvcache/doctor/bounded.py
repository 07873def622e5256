"""Programs that may hang, where not even a signal ends them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import attrs

from ..errors import KVCacheError


class ProgramError(KVCacheError):
    """A program did not come to its end."""


@attrs.frozen
class Ended:
    """What a program did."""

    code: int
    output: str


def run_bounded(argv: Sequence[str], seconds: float) -> Ended:
    """Runs a program, and leaves it behind when it takes too long.

    It is killed then, and not waited for: one that waits for a driver or a file server may not
    die before it has its answer.

    Raises:
        FileNotFoundError: there is no such program.
        ProgramError: it cannot be started, or took too long.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ProgramError(f"{argv[0]} cannot be started: {e.strerror}") from e
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as e:
        process.kill()
        raise ProgramError(f"{argv[0]} came to no end within {seconds:.0f} s") from e
    return Ended(process.returncode, output)
