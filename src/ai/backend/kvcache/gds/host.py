"""What a host has for GPUDirect Storage, and whether data can go past its memory.

A container needs the driver's devices, udev's data and the host's cufile.json. NVIDIA's container
toolkit gives them to whoever has ``NVIDIA_GDS=enabled`` (internal/discover/gds.go), in some of its
modes; here they are known for all.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

import attrs

from .cufile import USUAL_FILE, CufileError, CufileSettings, parse_cufile

#: There while NVIDIA's driver for it is loaded.
DRIVER = Path("/proc/driver/nvidia-fs")
DRIVER_VERSION = DRIVER / "version"

#: By these a process speaks to the driver, /dev/nvidia-fs0 and on.
DEVICES = Path("/dev")
DEVICE_NAMES = "nvidia-fs*"

#: What udev knows of disks. Not all of /run/udev: root in a container could command the host's udev
#: by the socket that lies there.
UDEV = Path("/run/udev/data")

LOAD = (
    "install NVIDIA's package nvidia-gds, then `modprobe nvidia-fs`; for local NVMe, CUDA 12.8 and "
    "later do without it, with use_pci_p2pdma in cufile.json"
)
LOAD_ANEW = "load it anew: `modprobe -r nvidia-fs`, `modprobe nvidia-fs`"
DO_NOT_FORCE = "set it to false in properties"
CORRECT = "correct it, or put NVIDIA's own in its place"


@attrs.frozen
class Obstacle:
    """Why data cannot go past host memory."""

    problem: str
    remedy: str


@attrs.frozen
class GdsHost:
    """What a host has. Paths are the same in a container."""

    has_driver: bool = False
    devices: tuple[PurePosixPath, ...] = ()
    has_udev: bool = False
    has_cufile: bool = False
    """Whether there is a cufile.json, as it is usually placed."""
    cufile: CufileSettings | None = attrs.field(factory=CufileSettings)
    """What it says, or cuFile's defaults without one. None: it cannot be read."""

    @property
    def obstacle(self) -> Obstacle | None:
        """None: data can go past host memory."""
        if self.cufile is None:
            return Obstacle(f"{USUAL_FILE} cannot be read", CORRECT)
        if self.cufile.force_compat_mode:
            return Obstacle(f"{USUAL_FILE} has force_compat_mode", DO_NOT_FORCE)
        if self.cufile.use_pci_p2pdma:
            return None
        if not self.has_driver:
            return Obstacle("nvidia-fs is not loaded", LOAD)
        if not self.devices:
            return Obstacle("nvidia-fs is loaded, and there is no /dev/nvidia-fs*", LOAD_ANEW)
        return None

    @property
    def refuses_compatible(self) -> bool:
        """Whether cuFile reads and writes nothing at all where data cannot go past host memory."""
        settings = self.cufile
        return settings is not None and not (
            settings.allow_compat_mode or settings.force_compat_mode
        )

    @property
    def settings_files(self) -> tuple[PurePosixPath, ...]:
        """What a container needs to read for cuFile to do there as it does on the host."""
        # With a file that cannot be read it does worse than without.
        is_useful = self.has_cufile and self.cufile is not None
        return (PurePosixPath(USUAL_FILE),) if is_useful else ()

    @property
    def mounts(self) -> tuple[PurePosixPath, ...]:
        """What a container needs to read for data to go past host memory."""
        udev = (PurePosixPath(UDEV),) if self.has_udev else ()
        return (*udev, *self.settings_files)


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def look_at_gds(root: Path = Path("/")) -> GdsHost:
    """Looks at this host; reads files of the kernel's and one of the administrator's.

    Args:
        root: where the host's files lie.
    """
    names = [p.name for p in _below(root, DEVICES).glob(DEVICE_NAMES) if _is_device(p)]
    has_cufile, cufile = True, None
    try:
        cufile = parse_cufile(_below(root, USUAL_FILE).read_text(errors="replace"))
    except FileNotFoundError:
        has_cufile, cufile = False, CufileSettings()
    except (OSError, CufileError):
        pass
    return GdsHost(
        has_driver=_below(root, DRIVER_VERSION).exists(),
        devices=tuple(PurePosixPath(DEVICES, name) for name in sorted(names)),
        has_udev=_below(root, UDEV).is_dir(),
        has_cufile=has_cufile,
        cufile=cufile,
    )
