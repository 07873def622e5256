"""What GPUDirect Storage stands on: NVIDIA's driver, its devices, udev, cuFile's configuration.

Without any of it sessions keep their KV cache too: cuFile takes data through host memory then, and
says so only in its own log. So there is nothing here that is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..gds.cufile import CufileError, CufileSettings, parse_cufile, usual_file
from ..gds.host import (
    CORRECT,
    DEVICE_NAMES,
    DEVICES,
    DO_NOT_FORCE,
    DRIVER,
    DRIVER_VERSION,
    LOAD,
    LOAD_ANEW,
    UDEV,
)
from .check import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from .host import Host

_NO_GPU = skipped("this host has no GPU of NVIDIA's")

_VERSION = re.compile(r"version:\s*(\d+)\.(\d+)")

_SLOWER = "GPUDirect Storage goes through host memory"


def parse_version(text: str) -> tuple[int, int] | None:
    """The driver's version, of ``/proc/driver/nvidia-fs/version``."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def judge_driver(version: str | None, modules: str) -> Finding:
    """Whether it is loaded.

    Args:
        version: what its file of that name holds; None where there is none.
        modules: of storage that know it, a line each.
    """
    if version is None:
        return warning(f"nvidia-fs is not loaded: {_SLOWER}", LOAD)
    parsed = parse_version(version)
    if parsed is None:
        return warning(
            f"nvidia-fs states a version that is not understood: {version.strip()[:40]!r}",
            "install a released version of it",
        )
    names = ", ".join(line.partition(":")[0] for line in modules.splitlines() if ":" in line)
    return ok(f"nvidia-fs {parsed[0]}.{parsed[1]}; storage that knows it: {names or 'none'}")


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def look_at_driver(host: Host) -> Finding:
    if not host.gpus().count:
        return _NO_GPU
    return judge_driver(_text_of(DRIVER_VERSION), _text_of(DRIVER / "modules") or "")


def judge_devices(count: int, driver_is_loaded: bool) -> Finding:
    """Whether containers can be given the driver's devices."""
    if not driver_is_loaded:
        return skipped("nvidia-fs is not loaded")
    if not count:
        return warning(
            f"nvidia-fs is loaded, and there is no /dev/nvidia-fs*: {_SLOWER}", LOAD_ANEW
        )
    return ok(f"{count} /dev/nvidia-fs*; sessions with GPUDirect Storage get them")


def look_at_devices(host: Host) -> Finding:
    if not host.gpus().count:
        return _NO_GPU
    count = len(list(DEVICES.glob(DEVICE_NAMES)))
    return judge_devices(count, DRIVER_VERSION.exists())


def judge_udev(is_there: bool) -> Finding:
    """Whether cuFile can learn what a disk is."""
    if not is_there:
        return warning(
            f"there is no {UDEV}, by which cuFile knows local disks: {_SLOWER} on them",
            "start udev",
        )
    return ok(f"{UDEV} is there")


def look_at_udev(host: Host) -> Finding:
    return judge_udev(UDEV.is_dir()) if host.gpus().count else _NO_GPU


def judge_cufile(path: Path, settings: CufileSettings, driver_is_loaded: bool) -> Finding:
    """Whether it lets cuFile work on this host."""
    said = ", ".join((
        f"allow_compat_mode {str(settings.allow_compat_mode).lower()}",
        f"use_pci_p2pdma {str(settings.use_pci_p2pdma).lower()}",
        f"{len(settings.rdma_addresses)} in rdma_dev_addr_list",
    ))
    direct = driver_is_loaded or settings.use_pci_p2pdma
    if settings.force_compat_mode:
        return warning(f"{path} has force_compat_mode: {_SLOWER}", DO_NOT_FORCE)
    if not settings.allow_compat_mode and not direct:
        return failed(
            f"{path} has allow_compat_mode false, and nvidia-fs is not loaded: cuFile reads and "
            "writes nothing at all",
            "load nvidia-fs, or set allow_compat_mode to true in properties",
        )
    return ok(f"{path}: {said}")


def look_at_cufile(host: Host) -> Finding:
    if not host.gpus().count:
        return _NO_GPU
    path = usual_file()
    text = _text_of(path)
    if text is None:
        return ok(f"no {path}, so cuFile has its defaults")
    try:
        settings = parse_cufile(text)
    except CufileError as e:
        return warning(f"{path} {e}", CORRECT)
    return judge_cufile(path, settings, DRIVER_VERSION.exists())
