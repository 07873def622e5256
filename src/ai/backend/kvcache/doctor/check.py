"""What a check is and finds, and how many of them are run at the same time."""

from __future__ import annotations

import importlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..errors import KVCacheError

if TYPE_CHECKING:
    from .host import Host


class Role(StrEnum):
    """What a host is to Backend.AI."""

    AGENT = "agent"
    MANAGER = "manager"
    CLIENT = "client"


class Status(StrEnum):
    """What became of a check."""

    OK = "ok"
    WARNING = "warning"
    """Sessions get KV cache, though not as well as they could."""
    FAILED = "failed"
    """Something is missing that is needed."""
    SKIPPED = "skipped"
    """Of no use on this host, or not to be found out there."""


class RepairError(KVCacheError):
    """Something could not be put right. The message says why, and holds nothing secret."""


type Repair = Callable[[], str]
"""Puts something right and says what it did. Raises RepairError."""


@attrs.frozen
class Finding:
    """What a check found. Make it with one of the four functions below."""

    status: Status
    text: str
    remedy: str | None = None
    repair: Repair | None = attrs.field(default=None, eq=False, repr=False)


def ok(text: str) -> Finding:
    return Finding(Status.OK, text)


def warning(text: str, remedy: str) -> Finding:
    return Finding(Status.WARNING, text, remedy)


def failed(text: str, remedy: str, repair: Repair | None = None) -> Finding:
    return Finding(Status.FAILED, text, remedy, repair)


def skipped(why: str) -> Finding:
    return Finding(Status.SKIPPED, why)


#: More than any check takes by its own limits, so that this is the last resort.
DEFAULT_SECONDS = 25.0


@attrs.frozen
class Check:
    """One thing to look at."""

    name: str
    """For programs and people, such as ``allocation-order``."""
    roles: frozenset[Role]
    look: Callable[[Host], Finding]
    needed: bool = True
    """Whether it has failed, not only warned, where it comes to no end."""
    seconds: float = DEFAULT_SECONDS
    imports: Callable[[Host], Sequence[str]] = lambda _: ()
    """Modules of Backend.AI's that it uses there. They are slow, and refer to each other in
    circles, so they are imported one after the other before any check starts and its time begins.
    """


@attrs.frozen
class Result:
    """A check and what it found."""

    check: Check
    finding: Finding
    repaired: str | None = None
    """What was done about it."""
    not_repaired: str | None = None
    """Why nothing could be done about it."""


def _fault(check: Check, error: Exception) -> Finding:
    """An error that a check did not expect. Its text is not shown: it may hold a secret."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"a fault of this check: {type(error).__name__} in {Path(last.filename).name}:"
    make = failed if check.needed else warning
    return make(f"{text}{last.lineno}", "report it, with this line, to the plugin's makers")


def _look(check: Check, host: Host) -> Finding:
    try:
        return check.look(host)
    except Exception as e:
        return _fault(check, e)


def _late(check: Check) -> Finding:
    make = failed if check.needed else warning
    return make(
        f"no end after {check.seconds:.0f} s",
        "find out what hangs: the network, a file system, a driver",
    )


def _import(checks: Sequence[Check], host: Host) -> None:
    for name in dict.fromkeys(name for check in checks for name in check.imports(host)):
        # What is missing or broken is for the check to say.
        with suppress(Exception):
            importlib.import_module(name)


def run_checks(checks: Sequence[Check], host: Host) -> Iterator[Result]:
    """Runs all at the same time; gives each result as soon as it is there.

    Each check has a thread that nobody waits for: one that hangs keeps neither the others nor the
    program.
    """
    _import(checks, host)
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def run(check: Check) -> None:
        results.put(Result(check, _look(check, host)))

    started = time.monotonic()
    for check in checks:
        threading.Thread(target=run, args=(check,), daemon=True, name=check.name).start()
    waiting = {check.name: check for check in checks}
    while waiting:
        next_to_late = min(waiting.values(), key=lambda check: check.seconds)
        try:
            left = started + next_to_late.seconds - time.monotonic()
            result = results.get(timeout=max(0.0, left))
        except queue.Empty:
            result = Result(next_to_late, _late(next_to_late))
        if waiting.pop(result.check.name, None) is not None:
            yield result


def repair(result: Result, host: Host) -> Result:
    """Puts right what the check can put right, and looks again."""
    if result.finding.repair is None:
        return result
    try:
        done = result.finding.repair()
    except RepairError as e:
        return attrs.evolve(result, not_repaired=str(e))
    (again,) = run_checks([result.check], host)
    return attrs.evolve(again, repaired=done)
