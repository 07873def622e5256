from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ai.backend.kvcache.doctor.check import (
    Check,
    Finding,
    RepairError,
    Role,
    Status,
    failed,
    ok,
    repair,
    run_checks,
)
from ai.backend.kvcache.doctor.host import Host
from ai.backend.kvcache.doctor.once import Once

AGENT = frozenset({Role.AGENT})
HOST = Host(AGENT, "of a test")


class TestRunChecks:
    def test_all_are_run_at_the_same_time(self) -> None:
        # Each waits for the other, so one after the other would never end.
        both = threading.Barrier(2)

        def meet(_: Host) -> Finding:
            both.wait(10)
            return ok("met")

        checks = [Check("one", AGENT, meet), Check("other", AGENT, meet)]
        results = {r.check.name: r.finding for r in run_checks(checks, HOST)}
        assert results == {"one": ok("met"), "other": ok("met")}

    def test_one_that_hangs_keeps_nothing(self) -> None:
        forever = threading.Event()

        def hang(_: Host) -> Finding:
            forever.wait()
            return ok("never")

        checks = [
            Check("hangs", AGENT, hang, seconds=0.2),
            Check("rdma", AGENT, hang, needed=False, seconds=0.1),
            Check("quick", AGENT, lambda _: ok("there")),
        ]
        results = {r.check.name: r.finding for r in run_checks(checks, HOST)}
        forever.set()
        assert results["quick"] == ok("there")
        assert (results["hangs"].status, results["hangs"].text) == (
            Status.FAILED,
            "no end after 0 s",
        )
        assert results["rdma"].status is Status.WARNING

    def test_a_program_ends_though_a_check_hangs(self) -> None:
        program = """
import threading
from ai.backend.kvcache.doctor.check import Check, Role, run_checks
from ai.backend.kvcache.doctor.host import Host
from ai.backend.kvcache.doctor.loops import run
import asyncio

async def look_up():
    # As asyncio looks up names, in a thread of its own.
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(0.1):
        await loop.run_in_executor(None, threading.Event().wait)

def hang(_):
    try:
        run(look_up())
    except TimeoutError:
        threading.Event().wait()

agent = frozenset({Role.AGENT})
(result,) = run_checks([Check("hangs", agent, hang, seconds=0.5)], Host(agent, ""))
print(result.finding.status)
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert ended.stdout == "failed\n"

    def test_a_fault_is_told_without_what_it_holds(self) -> None:
        def break_down(_: Host) -> Finding:
            raise RuntimeError("postgresql://user:hunter2@db/backend")

        (result,) = run_checks([Check("breaks", AGENT, break_down)], HOST)
        assert result.finding.status is Status.FAILED
        assert "RuntimeError in test_runner.py:" in result.finding.text
        assert "hunter2" not in repr(result)

    def test_modules_are_imported_before_any_starts(self) -> None:
        # A module of Python's that nothing here needs.
        sys.modules.pop("colorsys", None)

        def look(_: Host) -> Finding:
            return ok(str("colorsys" in sys.modules))

        check = Check("uses", AGENT, look, imports=lambda _: ("colorsys", "not_to_be_found"))
        (result,) = run_checks([check], HOST)
        assert result.finding == ok("True")


class TestRepair:
    def test_looks_again(self) -> None:
        state = ["broken"]

        def put_right() -> str:
            state[0] = "whole"
            return "made whole"

        def look(_: Host) -> Finding:
            return ok("whole") if state == ["whole"] else failed("broken", "mend it", put_right)

        (result,) = run_checks([Check("thing", AGENT, look)], HOST)
        again = repair(result, HOST)
        assert (again.finding, again.repaired) == (ok("whole"), "made whole")
        assert repair(again, HOST) is again

    def test_says_why_it_could_not(self) -> None:
        def refuse() -> str:
            raise RepairError("the disk is full")

        check = Check("thing", AGENT, lambda _: failed("broken", "mend it", refuse))
        (result,) = run_checks([check], HOST)
        again = repair(result, HOST)
        assert again.not_repaired == "the disk is full"
        assert again.finding.status is Status.FAILED


class TestOnce:
    def test_is_made_once_for_all(self) -> None:
        made: list[int] = []

        def make() -> int:
            made.append(1)
            return len(made)

        once = Once(make)
        threads = [threading.Thread(target=once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert once() == 1

    def test_a_failure_is_everybodys(self) -> None:
        made: list[int] = []

        def break_down() -> int:
            made.append(1)
            raise OSError("gone")

        once = Once(break_down)
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                once()
        assert made == [1]
