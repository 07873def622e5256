"""The figures among the manager's Prometheus queries, by the real command and manager."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.kvcache.metrics.indicators import INDICATORS
from devcluster import command, configuration

BACKEND_AI = Path(sys.executable).with_name("backend.ai")


def presets(action: str, role: str = "admin") -> str:
    environment = configuration.client_environment(role)
    return command.run([BACKEND_AI, "kvcache", "presets", action], env=environment)


@pytest.fixture(autouse=True)
def none_before_and_after() -> Iterator[None]:
    presets("remove")
    yield
    presets("remove")


def test_installing_twice_changes_nothing() -> None:
    count = len(INDICATORS)
    assert presets("install") == f"{count} created, 0 changed, 0 removed, 0 left as they are\n"
    assert presets("install") == f"0 created, 0 changed, 0 removed, {count} left as they are\n"
    listed = presets("list").splitlines()
    assert len(listed) == count
    assert listed[0].split("  ")[0] == "KV cache: util"


def test_removing_leaves_nothing() -> None:
    presets("install")
    assert presets("remove") == f"{len(INDICATORS)} removed\n"
    assert presets("remove") == "0 removed\n"
    assert "The manager has none" in presets("list")


def test_others_are_not_for_users_to_change() -> None:
    with pytest.raises(Exception, match="the manager refused"):
        presets("install", role="user")
