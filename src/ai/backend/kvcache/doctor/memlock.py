"""How much memory a container may pin, which Backend.AI gives it as the agent has it itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..sizes import MIB
from .check import Finding, ok, skipped, warning
from .rdma import DEVICES, read_ports

if TYPE_CHECKING:
    from .host import Host

#: What the agent calls itself.
_TITLE = b"backend.ai: agent"

_LINE = re.compile(r"^Max locked memory\s+(\S+)\s+(\S+)", re.MULTILINE)


@attrs.frozen
class Memlock:
    """A process's limit."""

    soft_bytes: int | None
    """None: there is none."""
    of: str
    """Whose it is."""


def parse_limits(text: str) -> int | None:
    """Bytes that may be locked, of a process's ``limits``; None without a limit.

    Raises:
        ValueError: it does not say.
    """
    match = _LINE.search(text)
    if match is None:
        raise ValueError("no line of locked memory")
    return None if match[1] == "unlimited" else int(match[1])


def _agents(processes: Path) -> list[Path]:
    found: list[Path] = []
    for process in processes.glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(_TITLE):
                found.append(process)
        except OSError:
            continue
    return found


def read_memlock(processes: Path = Path("/proc")) -> Memlock:
    """Of the running agent, or of this process where there is none or it may not be read."""
    candidates = [(process, "the running agent") for process in _agents(processes)]
    for process, whose in (*candidates, (processes / "self", "this shell")):
        try:
            return Memlock(parse_limits((process / "limits").read_text()), whose)
        except (OSError, ValueError):
            continue
    raise FileNotFoundError(f"{processes}/self/limits")


def judge_memlock(limit: Memlock, pins_memory: bool) -> Finding:
    """Whether sessions can pin what they transfer.

    Args:
        pins_memory: whether this host has devices that memory is pinned for: GPUs or RDMA.
    """
    if limit.soft_bytes is None:
        return ok(f"no limit, of {limit.of}")
    if not pins_memory:
        return skipped("nothing on this host pins memory: it has no GPU and no RDMA device")
    return warning(
        f"{limit.soft_bytes / MIB:,.0f} MiB, of {limit.of} and so of containers: transfers by RDMA "
        "may fail",
        "start the agent without it: LimitMEMLOCK=infinity in its systemd unit",
    )


def look_at_memlock(host: Host) -> Finding:
    pins_memory = host.gpus().count > 0 or bool(read_ports(DEVICES))
    return judge_memlock(read_memlock(), pins_memory)
