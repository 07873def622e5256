from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.folder.lease import STALE_SECONDS, holders, release, touch
from ai.backend.kvcache.folder.namespace import namespace_of
from ai.backend.kvcache.folder.prepare import prepare_namespace

NAMESPACE = namespace_of({"weights": "x"})
NAME = NAMESPACE.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_namespace(tmp_path, NAMESPACE, Owner(), "kernel-1", {})
    return tmp_path


def held(folder: Path) -> tuple[str, ...]:
    return holders(folder, NAME, time.time())


def test_prepared_session_holds_its_namespace(folder: Path) -> None:
    assert held(folder) == ("kernel-1",)


def test_several_sessions(folder: Path) -> None:
    touch(folder, NAME, "kernel-2")
    assert held(folder) == ("kernel-1", "kernel-2")
    release(folder, NAME, "kernel-1")
    assert held(folder) == ("kernel-2",)


def test_released_twice(folder: Path) -> None:
    release(folder, NAME, "kernel-1")
    release(folder, NAME, "kernel-1")
    assert held(folder) == ()


def test_crashed_agents_lease_is_stale(folder: Path) -> None:
    lease = folder / ".kvcache/leases" / NAME / "kernel-1"
    then = time.time() - STALE_SECONDS - 1
    os.utime(lease, (then, then))
    assert held(folder) == ()
    touch(folder, NAME, "kernel-1")
    assert held(folder) == ("kernel-1",)


def test_never_used(tmp_path: Path) -> None:
    assert holders(tmp_path, NAME, time.time()) == ()


def test_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        touch(tmp_path / "gone", NAME, "kernel-1")


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("")
    os.utime(victim, (1000, 1000))
    (folder / ".kvcache/leases" / NAME / "kernel-2").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        touch(folder, NAME, "kernel-2")
    assert victim.stat().st_mtime == 1000
