"""Where the client's manager is not there."""

from __future__ import annotations

import pytest

from ai.backend.kvcache.doctor.check import Role, Status, ok, skipped
from ai.backend.kvcache.doctor.host import Host
from ai.backend.kvcache.doctor.manager_api import look_at_manager
from ai.backend.kvcache.doctor.slot_type import judge_row, look_at_slot_type

CLIENT, AGENT = (Host(frozenset({role}), "") for role in (Role.CLIENT, Role.AGENT))


@pytest.fixture
def endpoint(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"http://127.0.0.1:{closed_port}"
    monkeypatch.setenv("BACKEND_ENDPOINT", address)
    monkeypatch.setenv("BACKEND_ENDPOINT_TYPE", "api")
    monkeypatch.setenv("BACKEND_ACCESS_KEY", "a")
    monkeypatch.setenv("BACKEND_SECRET_KEY", "s")
    return address


def test_nobody_said_which() -> None:
    # By default the client would ask a public one.
    assert look_at_manager(CLIENT).status is Status.SKIPPED
    assert look_at_slot_type(CLIENT).status is Status.SKIPPED


def test_not_there(endpoint: str) -> None:
    finding = look_at_manager(CLIENT)
    assert finding.status is Status.FAILED
    assert finding.text == f"{endpoint}: nothing listens there"
    assert finding.remedy == (
        "open the way to it, or correct BACKEND_ENDPOINT, or endpoint in ~/.backend.ai/config.toml"
    )


@pytest.mark.usefixtures("endpoint")
def test_only_a_client_needs_the_client() -> None:
    text = "the manager was not reached: nothing listens there"
    finding = look_at_slot_type(CLIENT)
    assert (finding.status, finding.text) == (Status.FAILED, text)
    assert look_at_slot_type(AGENT) == skipped(text)


def test_the_row() -> None:
    assert judge_row(True) == ok("the manager knows kvcache.device")
    finding = judge_row(False)
    assert finding.status is Status.FAILED
    assert finding.repair is None
