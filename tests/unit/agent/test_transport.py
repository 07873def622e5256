from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.kvcache.agent import transport
from ai.backend.kvcache.agent.transport import EffectiveTransport, effective_transport
from ai.backend.kvcache.engine.adapter import Transport


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's file system."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").touch()
    return tmp_path


@pytest.fixture
def container(root: Path) -> Iterator[int]:
    """The id of a real process that has it as its root."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a process another root")
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chroot(root)
        os.write(sending, b".")
        signal.pause()
    os.read(receiving, 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the driver's own folder, which only a machine with one has."""
    folder = tmp_path / "driver"
    monkeypatch.setattr(transport, "DRIVER", folder)
    return folder


def test_ordinary_files() -> None:
    assert effective_transport(Transport.POSIX, 0) is EffectiveTransport.POSIX


@pytest.mark.parametrize(
    ("has_driver", "has_device", "expected"),
    [
        (True, True, EffectiveTransport.GDS),
        (True, False, EffectiveTransport.GDS_COMPATIBLE),
        (False, True, EffectiveTransport.GDS_COMPATIBLE),
        (False, False, EffectiveTransport.GDS_COMPATIBLE),
    ],
)
def test_gds(
    has_driver: bool,
    has_device: bool,
    expected: EffectiveTransport,
    container: int,
    root: Path,
    driver: Path,
) -> None:
    if has_driver:
        driver.mkdir()
    if has_device:
        (root / "dev/nvidia-fs0").touch()
    assert effective_transport(Transport.GDS, container) is expected


def test_container_that_has_ended() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(FileNotFoundError):
        effective_transport(Transport.GDS, pid)
