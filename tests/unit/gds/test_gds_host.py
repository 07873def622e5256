"""What a host has for GPUDirect Storage, seen in trees of real files and device nodes."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from ai.backend.kvcache.gds.cufile import CufileSettings
from ai.backend.kvcache.gds.host import GdsHost, look_at_gds

UDEV = PurePosixPath("/run/udev/data")
CUFILE = PurePosixPath("/etc/cufile.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host without anything."""
    for name in ("dev", "etc", "proc/driver", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "dev/null").touch()
    return tmp_path


def load_driver(root: Path) -> None:
    (root / "proc/driver/nvidia-fs").mkdir()
    (root / "proc/driver/nvidia-fs/version").write_text("version: 2.28\n")


def make_device(root: Path, number: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    # /dev/null's numbers: what stands behind a node is not looked at.
    os.mknod(root / f"dev/nvidia-fs{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def write_cufile(root: Path, properties: str) -> None:
    (root / "etc/cufile.json").write_text(f'{{\n// as NVIDIA\'s\n"properties": {{{properties}}}}}')


class TestLook:
    def test_host_without_anything(self, root: Path) -> None:
        assert look_at_gds(root) == GdsHost(False, (), False, False, CufileSettings())

    def test_this_host(self) -> None:
        host = look_at_gds()
        assert host.has_driver == os.path.exists("/proc/driver/nvidia-fs/version")
        assert host.has_udev == os.path.isdir("/run/udev/data")

    def test_host_with_all(self, root: Path) -> None:
        load_driver(root)
        for number in (0, 1, 15):
            make_device(root, number)
        (root / "run/udev/data").mkdir(parents=True)
        write_cufile(root, '"allow_compat_mode": false')
        host = look_at_gds(root)
        assert host.has_driver
        assert host.devices == tuple(
            PurePosixPath(f"/dev/nvidia-fs{number}") for number in (0, 1, 15)
        )
        assert host.mounts == (UDEV, CUFILE)
        assert host.cufile == CufileSettings(allow_compat_mode=False)
        assert host.obstacle is None

    def test_only_devices_are_devices(self, root: Path) -> None:
        # Docker refuses a container that is to get another kind of file as a device.
        (root / "dev/nvidia-fs0").touch()
        (root / "dev/nvidia-fs1").mkdir()
        (root / "dev/nvidia-fs2").symlink_to("nothing")
        assert look_at_gds(root).devices == ()

    def test_file_that_is_a_directory(self, root: Path) -> None:
        # As Docker leaves one where a file was to be mounted that is not there.
        (root / "etc/cufile.json").mkdir()
        host = look_at_gds(root)
        assert (host.cufile, host.mounts) == (None, ())


class TestObstacle:
    def problem(self, root: Path) -> str | None:
        obstacle = look_at_gds(root).obstacle
        return None if obstacle is None else obstacle.problem

    def test_driver(self, root: Path) -> None:
        make_device(root, 0)
        assert self.problem(root) == "nvidia-fs is not loaded"
        load_driver(root)
        assert self.problem(root) is None

    def test_devices(self, root: Path) -> None:
        load_driver(root)
        assert self.problem(root) == "nvidia-fs is loaded, and there is no /dev/nvidia-fs*"
        make_device(root, 0)
        assert self.problem(root) is None

    def test_local_disks_without_the_driver(self, root: Path) -> None:
        write_cufile(root, '"use_pci_p2pdma": true')
        assert self.problem(root) is None

    @pytest.mark.parametrize("more", ["", ', "use_pci_p2pdma": true'])
    def test_forced_through_host_memory(self, root: Path, more: str) -> None:
        load_driver(root)
        make_device(root, 0)
        write_cufile(root, f'"force_compat_mode": true{more}')
        assert self.problem(root) == "/etc/cufile.json has force_compat_mode"

    def test_settings_that_cannot_be_read(self, root: Path) -> None:
        load_driver(root)
        make_device(root, 0)
        write_cufile(root, '"allow_compat_mode": maybe')
        assert self.problem(root) == "/etc/cufile.json cannot be read"
        # A container does better with cuFile's defaults.
        assert look_at_gds(root).mounts == ()


@pytest.mark.parametrize(
    ("properties", "refuses"),
    [
        ("", False),
        ('"allow_compat_mode": true', False),
        ('"allow_compat_mode": false', True),
        ('"allow_compat_mode": false, "force_compat_mode": true', False),
        ("nonsense", False),
    ],
)
def test_compatible_mode(root: Path, properties: str, refuses: bool) -> None:
    assert look_at_gds(root).refuses_compatible is False
    write_cufile(root, properties)
    assert look_at_gds(root).refuses_compatible is refuses
