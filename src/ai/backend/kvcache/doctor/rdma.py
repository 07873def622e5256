"""RDMA devices, by which network storage reaches GPUs and memory directly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .check import Finding, ok, skipped, warning

if TYPE_CHECKING:
    from .host import Host

DEVICES = Path("/sys/class/infiniband")


@attrs.frozen
class Port:
    """One port of a device, in the kernel's words."""

    name: str
    """Device and number, such as ``mlx5_0/1``."""
    state: str
    """Such as ``4: ACTIVE``."""
    rate: str
    """Such as ``400 Gb/sec (4X NDR)``."""
    link: str
    """``InfiniBand`` or ``Ethernet``."""

    @property
    def is_active(self) -> bool:
        return self.state.endswith("ACTIVE")


def read_ports(devices: Path) -> list[Port]:
    """All ports that the kernel knows."""

    def text(port: Path, name: str) -> str:
        try:
            return (port / name).read_text().strip()
        except OSError:
            return "unknown"

    return [
        Port(
            f"{port.parent.parent.name}/{port.name}",
            text(port, "state"),
            text(port, "rate"),
            text(port, "link_layer"),
        )
        for port in sorted(devices.glob("*/ports/*"))
    ]


def judge_ports(ports: list[Port]) -> Finding:
    """Whether there is a way for RDMA."""
    if not ports:
        return skipped("this host has no RDMA device, so network storage is reached by TCP")
    active = [port for port in ports if port.is_active]
    if not active:
        said = ", ".join(f"{port.name} ({port.state})" for port in ports)
        return warning(
            f"no port is active: {said}",
            "look at its cable and switch; on InfiniBand also at the subnet manager",
        )
    return ok(", ".join(f"{port.name} {port.link} {port.rate}" for port in active))


def look_at_ports(host: Host) -> Finding:
    return judge_ports(read_ports(DEVICES))
