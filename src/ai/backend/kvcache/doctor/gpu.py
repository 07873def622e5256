"""NVIDIA's GPUs of this host."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .bounded import ProgramError, run_bounded
from .check import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from .host import Host

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
#: Display controllers: for a screen, and for nothing but computing.
_GPU_CLASSES = ("0x0300", "0x0302")

#: With the driver at rest it takes seconds; where a GPU has fallen off, for ever.
SMI_SECONDS = 10.0

_SMI = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,driver_version",
    "--format=csv,noheader",
)


@attrs.frozen
class GpuFacts:
    """What the bus and the driver say."""

    count: int
    """GPUs of NVIDIA's on the PCI bus."""
    listing: str | None = None
    """What nvidia-smi printed; None where it is not there or did not end well."""
    problem: str | None = None
    """What nvidia-smi said instead."""


def _count(devices: Path) -> int:
    found = 0
    for device in devices.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_GPU_CLASSES)
    return found


def look_at_gpus() -> GpuFacts:
    count = _count(_PCI)
    try:
        ended = run_bounded(_SMI, SMI_SECONDS)
    except FileNotFoundError:
        return GpuFacts(count)
    except ProgramError as e:
        return GpuFacts(count, problem=str(e))
    if ended.code != 0:
        first = next(iter(ended.output.strip().splitlines()), f"status {ended.code}")
        return GpuFacts(count, problem=f"nvidia-smi says: {first}")
    # Where the bus is hidden, as in some containers and virtual machines, the driver knows better.
    lines = len(ended.output.strip().splitlines())
    return GpuFacts(max(count, lines), listing=ended.output)


def judge_gpus(facts: GpuFacts) -> Finding:
    """Whether the GPUs of this host can be used."""
    if not facts.count:
        return skipped("this host has no GPU of NVIDIA's")
    if facts.problem is not None:
        return failed(
            f"{facts.count} on the bus, and {facts.problem}",
            "repair the driver: reboot after an upgrade, or install it anew",
        )
    if facts.listing is None:
        return warning(
            f"{facts.count} on the bus, and no nvidia-smi",
            "install NVIDIA's driver, unless these GPUs are not for sessions",
        )
    kinds: Counter[str] = Counter()
    for line in facts.listing.strip().splitlines():
        name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
        kinds[f"{name} with {memory}, driver {driver}"] += 1
    return ok("; ".join(f"{count} x {kind}" for kind, count in kinds.items()))


def look_at_driver(host: Host) -> Finding:
    return judge_gpus(host.gpus())
