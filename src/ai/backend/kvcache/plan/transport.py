"""Which way a session's contexts may go, by what its host has for GPUDirect Storage."""

from __future__ import annotations

from pathlib import PurePosixPath

import attrs

from ..engine.adapter import EngineAdapter, Transport
from ..engine.command import Program
from ..engine.select import TRANSPORTS, Wish, select
from ..engine.versions import Versions
from ..errors import DeclinedError
from ..gds.cufile import USUAL_FILE
from ..gds.host import GdsHost, Obstacle
from .plan import Decision
from .session import Session

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


def choices(
    session: Session, program: Program, device: str | None, versions: Versions, wish: Wish
) -> tuple[Choice, ...]:
    """The adapters that a session may get, the better one first.

    Where data cannot go past host memory, ordinary files do better: they take no memory of the
    GPU's. They insist on more of the host's, though, and cuFile's compatible mode does not.

    Args:
        device: Backend.AI's name of the GPUs' kind. None: no GPUs.

    Raises:
        DeclinedError: none fits, or the only one would read and write nothing on this host.
    """
    adapter = select(program, device, versions, wish)
    host = session.gds
    if TRANSPORTS[adapter.name] is not Transport.GDS or host is None:
        return (Choice(adapter),)
    obstacle = host.obstacle
    if obstacle is None:
        return (_direct(adapter, host),)
    compatible = () if host.refuses_compatible else (_compatible(adapter, host, obstacle),)
    if wish == Wish():
        files = select(program, device, versions, Wish(transport=Transport.POSIX))
        return (_ordinary(files, obstacle), *compatible)
    if not compatible:
        raise DeclinedError(
            f"{adapter.name} reads and writes nothing on this node: {obstacle.problem}, and "
            f"{USUAL_FILE} has allow_compat_mode false; {obstacle.remedy}, or set transport = posix"
        )
    return compatible
