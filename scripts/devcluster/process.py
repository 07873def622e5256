"""Starts and stops long-running programs, and never mistakes another process for one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .command import tail
from .console import SetupError, say
from .paths import digest_of
from .settings import CONFIG, LOGS, RUN

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Service:
    """One program of the cluster: how it is run, and how one knows that it works."""

    name: str
    argv: Sequence[str | Path]
    #: Returns whether the program answers.
    healthy: Callable[[], bool]
    port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: Files whose change calls for a restart.
    inputs: Sequence[Path] = ()
    start_timeout: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout: float = 20.0

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def digest(self) -> str:
        """What this service is run from. A running one with another digest is out of date."""
        environment = json.dumps(dict(self.env), sort_keys=True)
        return digest_of(json.dumps([str(word) for word in self.argv]), environment, *self.inputs)


@dataclass(frozen=True)
class Record:
    """A started process. Its start time tells it from a later one with the same id."""

    pid: int
    started: str
    since: float
    digest: str

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started


def _start_time(pid: int) -> str | None:
    """When a process started, distinct across reboots; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # The name, in parentheses, may itself hold blanks.
    fields = stat.rpartition(")")[2].split()
    state, start_ticks = fields[0], fields[19]
    return None if state == "Z" else f"{boot}/{start_ticks}"


def _record_path(name: str) -> Path:
    return RUN / f"{name}.json"


def recorded(name: str) -> Record | None:
    """The process last started under this name, if it still runs."""
    try:
        record = Record(**json.loads(_record_path(name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.alive else None


def recorded_names() -> list[str]:
    return sorted(path.stem for path in RUN.glob("*.json"))


def start(service: Service) -> subprocess.Popen[bytes] | None:
    """Starts a service that does not run, or runs from outdated input. Does not wait for it."""
    record = recorded(service.name)
    if record is not None:
        if record.digest == service.digest:
            return None
        say(f"{service.name}: its configuration has changed, restarting it")
        stop(service.name, service.stop_signal, service.stop_timeout)
    for folder in (RUN, CONFIG, service.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in service.argv],
            env={**os.environ, **service.env},
            cwd=CONFIG,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = Record(process.pid, _start_time(process.pid) or "", time.time(), service.digest)
    _record_path(service.name).write_text(json.dumps(asdict(record)))
    return process


def wait_until_healthy(service: Service, process: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + service.start_timeout
    while not service.healthy():
        if process is not None and process.poll() is not None:
            raise SetupError(_post_mortem(service, f"ended with code {process.returncode}"))
        if time.monotonic() > deadline:
            raise SetupError(
                _post_mortem(service, f"did not answer within {service.start_timeout:.0f} s")
            )
        time.sleep(_POLL_SECONDS)
    if process is not None:
        # Something else may have answered in its place, on the same port.
        time.sleep(_POLL_SECONDS)
        if process.poll() is not None:
            raise SetupError(_post_mortem(service, f"ended with code {process.returncode}"))


def _post_mortem(service: Service, what: str) -> str:
    try:
        last = tail(service.log.read_text(errors="replace"))
    except OSError:
        last = ""
    return f"{service.name} {what}. Its log, {service.log}, ends:\n{last}"


def stop(name: str, how: signal.Signals = signal.SIGTERM, timeout: float = 20.0) -> bool:
    """Stops a recorded process and all that it started; returns whether one was running."""
    record = recorded(name)
    if record is not None:
        _signal(record.pid, how)
        if not _gone_within(record, timeout):
            say(f"{name}: still running after {timeout:.0f} s, killing it")
        # Its children share its process group; those that outlived it are of no use.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.pid, signal.SIGKILL)
        if not _gone_within(record, timeout):
            raise SetupError(f"{name} (process {record.pid}) cannot be killed.")
    _record_path(name).unlink(missing_ok=True)
    return record is not None


def _signal(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


def _gone_within(record: Record, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while record.alive:
        if time.monotonic() > deadline:
            return False
        # A process of our own stays a zombie until it is asked for.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(record.pid, os.WNOHANG)
        time.sleep(_POLL_SECONDS)
    return True
