from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.agent import leases as leases_module
from ai.backend.kvcache.agent.leases import LeaseKeeper
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.folder.lease import holders
from ai.backend.kvcache.folder.namespace import namespace_of
from ai.backend.kvcache.folder.prepare import prepare_namespace

NAMESPACE = namespace_of({"weights": "x"})


@pytest.fixture
def keeper() -> Iterator[LeaseKeeper]:
    with ThreadPoolExecutor(1) as executor:
        yield LeaseKeeper(executor)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, str]:
    for kernel_id in ("k1", "k2"):
        prepare_namespace(tmp_path, NAMESPACE, Owner(), kernel_id, {})
    return tmp_path, NAMESPACE.name


async def tick(keeper: LeaseKeeper, running: dict[str, tuple[Path, str]], *alive: str) -> None:
    keeper.keep(running, alive or running)
    if keeper._round is not None:
        await keeper._round


def forget_touches(folder: Path) -> None:
    for lease in (folder / ".kvcache/leases" / NAMESPACE.name).iterdir():
        os.utime(lease, (1000, 1000))


async def test_ended_session_releases(keeper: LeaseKeeper, place: tuple[Path, str]) -> None:
    await tick(keeper, {"k1": place, "k2": place})
    await tick(keeper, {"k1": place})
    assert holders(*place, time.time()) == ("k1",)


async def test_session_that_cannot_be_measured_now_keeps_its_lease(
    keeper: LeaseKeeper, place: tuple[Path, str]
) -> None:
    await tick(keeper, {"k1": place, "k2": place})
    await tick(keeper, {"k1": place}, "k1", "k2")
    assert holders(*place, time.time()) == ("k1", "k2")


async def test_touched_once_a_minute(
    keeper: LeaseKeeper, place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await tick(keeper, {"k1": place, "k2": place})
    forget_touches(place[0])
    await tick(keeper, {"k1": place, "k2": place})
    assert holders(*place, time.time()) == ()
    monkeypatch.setattr(leases_module, "TOUCH_INTERVAL_SECONDS", 0.0)
    await tick(keeper, {"k1": place, "k2": place})
    assert holders(*place, time.time()) == ("k1", "k2")


async def test_folder_that_is_gone_is_no_fault(
    keeper: LeaseKeeper, place: tuple[Path, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await tick(keeper, {"k1": (tmp_path / "gone", NAMESPACE.name), "k2": place})
    assert holders(*place, time.time()) == ("k1", "k2")
    assert "kernel k1: its lease cannot be kept" in caplog.text


class HungExecutor(Executor):
    """A file server that hangs: what is given to it never ends. That cannot be caused otherwise."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        return Future()


async def test_file_server_that_hangs_gets_one_job(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "TOUCH_INTERVAL_SECONDS", 0.0)
    executor = HungExecutor()
    keeper = LeaseKeeper(executor)
    for _ in range(3):
        keeper.keep({"k1": place}, ["k1"])
    assert executor.jobs == 1
