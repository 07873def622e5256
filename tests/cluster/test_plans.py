"""Plans of running sessions on their road from the agent over the manager to who may see them."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import attrs
import pytest
from ai.backend.client.exceptions import BackendAPIError

from ai.backend.kvcache.cli.manager import get
from devcluster import command, configuration, lifecycle, settings
from devcluster.client import Client, connect, wait_until

from .conftest import NO_MODEL_FOLDER, RunningSession, new_folders, session_starter
from .projects import OTHER_USER, find_project, project_admin

SECRET = "s3cr3t-of-the-user"


@attrs.frozen
class Sessions:
    """Both are of "user"."""

    with_cache: RunningSession
    without: RunningSession
    """It asked for KV cache and cannot have it."""


@pytest.fixture(scope="module")
def sessions(client: Client, model_folder: tuple[str, Path]) -> Iterator[Sessions]:
    with new_folders(client, model_folder[0]) as folders, session_starter(client) as start:
        environ = {"OPENAI_API_KEY": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
        sessions = Sessions(
            start(folders.mounts, environ=environ), start({folders.kv: "/kvcache"}, environ=environ)
        )
        for session in (sessions.with_cache, sessions.without):
            wait_for_plan(session)
        yield sessions


def plans(session_id: str, role: str = "user") -> dict[str, Any]:
    with connect(role) as client:
        answer: dict[str, Any] = get(client.api, f"/kvcache/sessions/{session_id}/plan")
    assert list(answer) == ["kernels"]
    kernels: dict[str, Any] = answer["kernels"]
    return kernels


def wait_for_plan(session: RunningSession) -> None:
    """It is there at the first tick after the session's start, or after the agent's."""
    patience = 4 * settings.STAT_INTERVAL
    wait_until("The plan", lambda: plans(session.id) or None, patience)


def refusal(session_id: str, role: str) -> tuple[int, Any]:
    with pytest.raises(BackendAPIError) as caught:
        plans(session_id, role)
    return caught.value.status, caught.value.data


def status(session: RunningSession) -> str:
    program = Path(sys.executable).with_name("backend.ai")
    return command.run(
        [program, "kvcache", "status", session.id], env=configuration.client_environment("user")
    )


def store(*arguments: str) -> str:
    return command.run(["redis-cli", "-p", str(settings.PORTS["redis"]), *arguments]).strip()


class TestOwner:
    def test_gets_what_the_session_has(self, sessions: Sessions) -> None:
        session = sessions.with_cache
        assert plans(session.id) == {session.kernel_id: session.plan()}

    def test_sees_plan(self, sessions: Sessions) -> None:
        plan = sessions.with_cache.plan()
        text = status(sessions.with_cache)
        assert f"\nnamespace  {plan['namespace']['name']}\n" in text
        for decision in plan["decisions"]:
            assert decision["why"] in text

    def test_sees_why_there_is_none(self, sessions: Sessions) -> None:
        text = status(sessions.without)
        assert text.endswith(f"\n\nno KV cache because {NO_MODEL_FOLDER}\n")

    def test_nothing_of_the_environment_is_in_it(self, sessions: Sessions) -> None:
        for session in (sessions.with_cache, sessions.without):
            assert SECRET in session.read("/home/config/environ.txt")
            assert SECRET not in json.dumps(plans(session.id))


class TestOthers:
    @pytest.mark.parametrize("role", ["admin", "domain-admin"])
    def test_admins(self, sessions: Sessions, role: str) -> None:
        assert list(plans(sessions.with_cache.id, role)) == [sessions.with_cache.kernel_id]

    def test_member_of_the_project_gets_what_there_is_for_no_session(
        self, sessions: Sessions
    ) -> None:
        status, body = refusal(sessions.with_cache.id, "other-user")
        assert status == HTTPStatus.NOT_FOUND
        assert (status, body) == refusal(str(uuid.uuid4()), "other-user")
        assert (status, body) == refusal("no-session", "other-user")

    def test_admin_of_the_project(self, sessions: Sessions) -> None:
        """Somebody who has the role for the time of this test."""
        default = find_project("default")
        assert default is not None
        with project_admin(default, OTHER_USER):
            assert list(plans(sessions.with_cache.id, "other-user"))

    def test_unsigned(self, sessions: Sessions) -> None:
        url = f"{settings.manager_url()}/kvcache/sessions/{sessions.with_cache.id}/plan"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, timeout=10)
        assert caught.value.code == HTTPStatus.UNAUTHORIZED
        assert json.load(caught.value)["error_code"] == "user_auth_unauthorized"


class TestStore:
    def test_what_is_no_plan_is_left_out(self, sessions: Sessions) -> None:
        key = f"kvcache.plan.{sessions.without.kernel_id}"
        stored = store("--raw", "get", key)
        store("set", key, "[" * 100_000, "ex", "60")
        assert plans(sessions.without.id) == {}
        store("set", key, stored, "ex", "60")
        assert plans(sessions.without.id) == {sessions.without.kernel_id: sessions.without.plan()}

    def test_what_was_lost_comes_back_with_the_agent(self, sessions: Sessions) -> None:
        key = f"kvcache.plan.{sessions.with_cache.kernel_id}"
        assert 0 < int(store("ttl", key)) <= 3600
        assert store("del", key) == "1"
        assert plans(sessions.with_cache.id) == {}
        lifecycle.restart("agent")
        wait_for_plan(sessions.with_cache)
        assert plans(sessions.with_cache.id)[sessions.with_cache.kernel_id]["kv_cache"] is True
