"""What `up`, `down` and `reset` do, in order."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import (
    apt,
    configuration,
    database,
    docker,
    environments,
    etcd,
    images,
    process,
    services,
    webgateway,
    webserver,
)
from .console import SetupError, say, step
from .paths import CLONE, STATE
from .probes import port_taken
from .process import Service
from .settings import LOGS, RUN, VENV

_AGENT_TIMEOUT_SECONDS = 60.0


@contextmanager
def exclusive() -> Iterator[None]:
    """Lets one command at a time change this clone's cluster; a second one waits.

    The lock is on the script itself, which outlives `reset`, and ends with this process.
    """
    with (CLONE / "scripts" / "cluster").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another command is changing this cluster; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up() -> None:
    """Brings the whole cluster up, doing only what is not done yet."""
    apt.require_root()
    apt.ensure()
    environments.appproxy()
    environments.overlay()
    configuration.write()
    ensure_docker()
    database.initialize()
    _start(services.stores())
    database.prepare()
    etcd.write()
    images.ensure_small()
    for group in services.daemons():
        _start(group)
    _wait_for_agent()
    images.register()


def web() -> None:
    """Adds the WebUI to a cluster that is up."""
    webgateway.prepare()
    webserver.prepare()
    for group in services.web():
        _start(group)


def down() -> None:
    """Stops everything that was started, sessions' containers included, and checks that."""
    apt.require_root()
    _retire_sessions()
    known = {service.name: service for service in services.everything()}
    order = [*reversed(known), *(set(process.recorded_names()) - set(known))]
    for name in order:
        if name == "dockerd" and docker.answers():
            removed = docker.remove_own_containers()
            if removed:
                say(f"{removed} containers of sessions removed")
        _stop(name, known.get(name))
    left = [f"{name} (see {RUN})" for name in process.recorded_names()]
    if docker.answers():
        left += docker.own_containers()
    if left:
        raise SetupError(f"Still there after stopping everything: {', '.join(left)}")


def reset() -> None:
    """Back to a fresh clone. What the cache holds stays, so the next `up` is quick."""
    down()
    shutil.rmtree(STATE, ignore_errors=True)


def restart(name: str) -> None:
    """Stops one service and starts it again: the agent, say, after a change of the plugin."""
    service = find(name)
    _stop(name, service)
    _start([service])


def find(name: str) -> Service:
    table = {service.name: service for service in services.everything()}
    if name not in table:
        raise SetupError(f"There is no service {name}; there are {', '.join(table)}.")
    return table[name]


def ensure_docker() -> None:
    """Starts dockerd only if none answers."""
    if not docker.answers():
        _start([services.dockerd()])


def _retire_sessions() -> None:
    """Best effort: what is left over is removed with its containers."""
    if not find("manager").healthy():
        return
    with step("Ending sessions"):
        environment = {**os.environ, "PYTHONPATH": str(CLONE / "scripts")}
        command = [str(VENV / "bin/python"), "-m", "devcluster.retire"]
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    if ended.returncode != 0:
        say(f"Not all sessions ended by themselves: {ended.stderr.decode()[-300:].strip()}")


def _stop(name: str, service: Service | None) -> None:
    if service is None:
        stopped = process.stop(name)
    else:
        stopped = process.stop(name, service.stop_signal, service.stop_timeout)
    if stopped:
        say(f"{name} stopped")


def _start(group: Sequence[Service]) -> None:
    """Starts what does not run yet, all at once, and waits for all of it."""
    for service in group:
        if process.recorded(service.name) is None and service.port and port_taken(service.port):
            raise SetupError(
                f"Port {service.port}, which {service.name} needs, is taken by another program: "
                f"`ss -ltnp 'sport = :{service.port}'` shows which. "
                "The cluster of another clone? Stop it with its own `./scripts/cluster down`."
            )
    started = [(service, process.start(service)) for service in group]
    fresh = [service.name for service, handle in started if handle is not None]
    if not fresh:
        for service, handle in started:
            process.wait_until_healthy(service, handle)
        return
    with step(f"Starting {', '.join(fresh)}"):
        for service, handle in started:
            process.wait_until_healthy(service, handle)


def _wait_for_agent() -> None:
    deadline = time.monotonic() + _AGENT_TIMEOUT_SECONDS
    while not services.agent_is_known():
        if time.monotonic() > deadline:
            raise SetupError(
                f"The manager has not heard from the agent for {_AGENT_TIMEOUT_SECONDS:.0f} s. "
                f"Their logs: {LOGS / 'agent.log'}, {LOGS / 'manager.log'}"
            )
        time.sleep(0.5)
