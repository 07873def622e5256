"""How the ways that a session can go can be gone on its host, which may have GPUDirect Storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import attrs

from ..engine.adapter import EngineAdapter, Transport
from ..engine.select import Way, adapter_named
from ..gds.cufile import USUAL_FILE
from ..gds.host import GdsHost, Obstacle
from .plan import Decision

_DECIDED = "transport"


@attrs.frozen
class Choice:
    """An adapter, and what its transport needs and means on this host."""

    adapter: EngineAdapter
    devices: tuple[PurePosixPath, ...] = ()
    """Of the host, for the container."""
    host_mounts: tuple[PurePosixPath, ...] = ()
    """Directories and files of the host, for the container to read."""
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
    closed_because: str | None = None
    """Why it cannot be taken on this host. None: it can."""


def _direct(adapter: EngineAdapter, host: GdsHost) -> Choice:
    given = [f"{len(host.devices)} /dev/nvidia-fs*"] if host.devices else []
    given += [str(path) for path in host.mounts]
    return Choice(
        adapter,
        devices=host.devices,
        host_mounts=host.mounts,
        decisions=(
            Decision(_DECIDED, str(Transport.GDS), f"the container gets {', '.join(given)}"),
        ),
    )


def _compatible(adapter: EngineAdapter, host: GdsHost, obstacle: Obstacle) -> Choice:
    """cuFile takes data through host memory by itself, and says so in its own log only."""
    return Choice(
        adapter,
        host_mounts=host.settings_files,
        warnings=(
            "GPUDirect Storage goes through host memory on this node: "
            f"{obstacle.problem}; {obstacle.remedy}",
        ),
    )


def _ordinary(adapter: EngineAdapter, obstacle: Obstacle) -> Choice:
    why = f"no GPUDirect Storage on this node: {obstacle.problem}; to have it, {obstacle.remedy}"
    return Choice(adapter, decisions=(Decision(_DECIDED, str(Transport.POSIX), why),))


def _closed(adapter: EngineAdapter, obstacle: Obstacle) -> Choice:
    return Choice(
        adapter,
        closed_because=(
            f"{adapter.name} reads and writes nothing on this node: {obstacle.problem}, and "
            f"{USUAL_FILE} has allow_compat_mode false; {obstacle.remedy}, or set transport = posix"
        ),
    )


def choices(ways: Sequence[Way], host: GdsHost | None) -> tuple[Choice, ...]:
    """The ways as they can be gone on this host, the better one first.

    Where data cannot go past host memory, ordinary files do better: they take no memory of the
    GPU's. They insist on more of the host's, though, and cuFile's compatible mode does not.

    Args:
        ways: that the versions allow, the better one first.
        host: what this host has for GPUDirect Storage. None: nobody has looked.
    """
    obstacle = None if host is None else host.obstacle
    found: list[Choice] = []
    deferred: list[Choice] = []
    for way in ways:
        adapter = adapter_named(way.adapter)
        if way.transport is Transport.GDS and host is not None:
            if obstacle is None:
                found.append(_direct(adapter, host))
            elif host.refuses_compatible:
                deferred.append(_closed(adapter, obstacle))
            else:
                deferred.append(_compatible(adapter, host, obstacle))
        elif obstacle is not None and deferred:
            found += [_ordinary(adapter, obstacle), *deferred]
            deferred.clear()
        else:
            found.append(Choice(adapter))
    return (*found, *deferred)
