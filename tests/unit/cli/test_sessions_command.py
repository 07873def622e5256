"""What `sessions` makes of the manager's list. tests/cluster/test_rest.py asks a real manager."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.metrics.advice import advise

if TYPE_CHECKING:
    from unit.cli.conftest import Answer, Endpoint

PATH = ("GET", "/kvcache/sessions")

#: Of Backend.AI 26.4.16.
NO_SUCH_ROUTE = {
    "type": "https://api.backend.ai/probs/url-not-found",
    "title": "Unknown URL path.",
    "error_code": "api_read_not-found",
}

PLAN: dict[str, Any] = {
    "kv_cache": True,
    "no_kv_cache_because": None,
    "folder": "my-kv",
    "engine": "lmcache-gds",
    "folder_cap_bytes": None,
    "host_bytes": None,
}


def session(
    name: str | None,
    age: float | None,
    plan: dict[str, Any] | None = PLAN,
    *,
    user: str = "a@b.com",
    project: str = "default",
    **figures: float,
) -> dict[str, Any]:
    """One of the list, as docs/api.md has it."""
    measured = {f"kvcache_{key}": value for key, value in figures.items()}
    return {
        "id": f"id-of-{name}",
        "name": name,
        "status": "RUNNING",
        "user": user,
        "project": {"id": f"id-of-{project}", "name": project},
        "age_seconds": age,
        "figures": measured,
        "advice": [advice.to_json() for advice in advise(measured, age)],
        "plan": plan,
    }


def without(reason: str) -> dict[str, Any]:
    return {**PLAN, "kv_cache": False, "no_kv_cache_because": reason, "folder": None}


CHAT = session("chat", 45.4, util=80, pool_util=50, saved_seconds=12.5, mem=3 * 2**30)
BATCH = session("batch", 7200, user="c@d.com", util=0, engine_util=0, mem=2**20)
TINY = session("tiny", 90_000, without("the session has no model folder"), project="research")
SESSIONS = [CHAT, BATCH, TINY]


@attrs.define
class Manager:
    """Lists sessions; after so many times it fails."""

    sessions: list[dict[str, Any]]
    times: int = 1_000

    def answer(self, _: dict[str, Any]) -> Answer:
        self.times -= 1
        return (200, {"sessions": self.sessions}) if self.times >= 0 else (500, {"title": "fault"})


@pytest.fixture
def manager(endpoint: Endpoint) -> Manager:
    manager = Manager(list(SESSIONS))
    endpoint.answers[PATH] = manager.answer
    return manager


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kvcache, ["sessions", *arguments])


def names(*arguments: str) -> list[str]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    return [one["name"] for one in json.loads(result.stdout)]


class TestTable:
    def test_who_uses_what(self, manager: Manager) -> None:
        assert run().stdout == (
            "session  user     project      age  folder  hit share     bytes     saved  advice\n"
            "chat     a@b.com  default     45 s  my-kv      80.0 %  3.00 GiB  12.500 s  the folder "
            "serves 80 % of prompts: working as meant\n"
            "batch    c@d.com  default    2.0 h  my-kv       0.0 %  1.00 MiB         -  hit share "
            "0 % after half an hour: contexts are not revisited; switch off\n"
            "tiny     a@b.com  research  25.0 h  -               -         -         -  no KV "
            "cache because the session has no model folder\n"
            "\n"
            "3 sessions, 2 with KV cache. Bytes are of a namespace, which sessions may share, so "
            "they are not added up.\n"
        )

    def test_plan_that_is_not_known(self, manager: Manager) -> None:
        manager.sessions = [session("a", None, None, util=50, mem=0)]
        head, row, _, count = run().stdout.splitlines()
        assert head.split()[:5] == ["session", "user", "project", "age", "folder"]
        assert row.split()[3:6] == ["-", "-", "50.0"]
        assert count.startswith("1 session, 1 with KV cache.")

    def test_session_without_a_name(self, manager: Manager) -> None:
        manager.sessions = [{**CHAT, "name": None}]
        assert run().stdout.splitlines()[1].startswith("id-of-chat  a@b.com")

    def test_none(self, manager: Manager) -> None:
        manager.sessions = []
        assert run().stdout == "No running session that you may see has asked for KV cache.\n"
        assert run("--json").stdout == "[]\n"

    @pytest.mark.parametrize("text", ["\x1b[31m", "a\nb", "\u202eevil"])
    def test_plan_of_a_sessions_own_making(self, manager: Manager, text: str) -> None:
        manager.sessions = [
            session("a", 1, {**PLAN, "folder": text}, util=1),
            session("b", 1, without(text)),
        ]
        lines = run().stdout.splitlines()
        escaped = text.encode("unicode_escape").decode()
        assert len(lines) == 5
        assert f"  {escaped}  " in lines[1]
        assert lines[2].endswith(f"no KV cache because {escaped}")


class TestChoice:
    def test_json_is_what_the_manager_lists(self, manager: Manager) -> None:
        assert json.loads(run("--json").stdout) == SESSIONS

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--project", "research"), ["tiny"]),
            (("--project", "id-of-research"), ["tiny"]),
            (("--user", "a@b.com"), ["chat", "tiny"]),
            (("--user", "a@b.com", "--project", "default"), ["chat"]),
            (("--user", "c@d.com", "--project", "research"), []),
        ],
    )
    def test_filters(
        self, manager: Manager, arguments: tuple[str, ...], expected: list[str]
    ) -> None:
        assert names(*arguments) == expected

    def test_filter_that_leaves_none(self, manager: Manager) -> None:
        assert run("--user", "x").stdout == "The filter leaves none of 3 sessions.\n"

    @pytest.mark.parametrize(
        ("sort", "expected"),
        [
            # What is not known comes last, also behind 0.
            ("hit-share", ["chat", "batch", "tiny"]),
            ("bytes", ["chat", "batch", "tiny"]),
            ("saved", ["chat", "tiny", "batch"]),
            ("age", ["tiny", "batch", "chat"]),
        ],
    )
    def test_order(self, manager: Manager, sort: str, expected: list[str]) -> None:
        manager.sessions = [TINY, BATCH, CHAT]
        assert names("--sort", sort) == expected
        assert names() == ["tiny", "batch", "chat"]


class TestManager:
    def test_without_the_plugin(self, endpoint: Endpoint) -> None:
        endpoint.answers[PATH] = (404, NO_SUCH_ROUTE)
        result = run()
        assert result.exit_code == 1
        assert result.stderr == (
            "Error: the manager does not have the plugin, which lists sessions: install "
            "backend.ai-kvcache[manager] there and restart it; until then `backend.ai kvcache "
            "status` shows figures\n"
        )

    def test_that_fails(self, manager: Manager) -> None:
        manager.times = 0
        result = run()
        assert result.exit_code == 1
        assert "the manager refused, or was not reached" in result.stderr

    def test_watched(self, manager: Manager) -> None:
        manager.times = 3
        result = run("--watch", "0.001")
        assert result.stdout.count("3 sessions, 2 with KV cache") == 3
        assert result.exit_code == 1
