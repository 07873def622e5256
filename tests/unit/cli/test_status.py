"""What `status` makes of the manager's answers. tests/cluster asks a real manager."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.cli.status import status_of


def hour_ago() -> str:
    return (datetime.now(UTC) - timedelta(hours=1)).isoformat()


#: Of Backend.AI 26.4.16.
NO_SUCH_ROUTE = {
    "type": "https://api.backend.ai/probs/url-not-found",
    "title": "Unknown URL path.",
    "error_code": "api_read_not-found",
}
NO_SUCH_SESSION = {
    "type": "https://api.backend.ai/probs/object-not-found",
    "title": "No such session.",
    "error_code": "session_read_not-found",
}

PLAN: dict[str, Any] = {
    "kernel_id": "k",
    "kv_cache": True,
    "no_kv_cache_because": None,
    "folder": "my-kv",
    "storage": "/kvcache/ns/808b",
    "namespace": {"name": "808b", "description": {"weights": "x"}},
    "engine": "lmcache-gds",
    "budget": None,
    "environment": {"LMCACHE_GDS_PATH": "/kvcache/ns/808b"},
    "arguments": [],
    "metrics": [],
    "decisions": [
        {"what": "folder", "value": "my-kv", "why": "mounted at /kvcache"},
        {"what": "bytes_per_token", "value": 45056, "why": "read from config.json"},
    ],
    "refused": {},
    "add_by_hand": None,
    "warnings": [],
}
WITHOUT = {**PLAN, "kv_cache": False, "no_kv_cache_because": "the session has no model folder"}


def item(name: str, **figures: float) -> dict[str, Any]:
    """A session as the manager answers with it; numbers are text there."""
    stat = {
        "cpu_util": {"current": "3.0", "unit_hint": "percent"},
        **{f"kvcache_{k}": {"current": str(v), "unit_hint": "percent"} for k, v in figures.items()},
    }
    return {
        "id": f"id-of-{name}",
        "name": name,
        "starts_at": hour_ago(),
        "containers": [{"live_stat": json.dumps(stat)}],
    }


class TestOneSession:
    def test_figures_and_age(self) -> None:
        status = status_of(item("a", util=92.8, mem=4096))
        assert status.figures == {"kvcache_util": 92.8, "kvcache_mem": 4096}
        assert status.age == pytest.approx(3600, abs=60)

    @pytest.mark.parametrize("containers", [[], None, [{"live_stat": None}]])
    def test_without_figures(self, containers: Any) -> None:
        assert status_of({**item("a"), "containers": containers}).figures == {}
        assert status_of(item("a")).figures == {}

    @pytest.mark.parametrize(
        ("starts_at", "age"),
        [(None, None), ("2026-01-01T00:00:00", float), ("2026-01-01T00:00:00+00:00", float)],
    )
    def test_start(self, starts_at: str | None, age: type | None) -> None:
        status = status_of({**item("a", util=1), "starts_at": starts_at})
        assert status.age is None if age is None else isinstance(status.age, float)


@attrs.define
class Manager:
    """Answers the client over HTTP as a manager does."""

    sessions: list[dict[str, Any]]
    plans: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Session id → kernel id → plan."""
    refusal: dict[str, Any] = attrs.field(factory=lambda: NO_SUCH_SESSION)
    """What is said of every other session's plan."""
    refusal_status: int = 404

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self._versions)
        app.router.add_post("/admin/gql", self._graphql)
        app.router.add_get("/kvcache/sessions/{id}/plan", self._plan)
        return app

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "v9.20250722", "manager": "26.4.16"})

    async def _graphql(self, request: web.Request) -> web.Response:
        wanted = (await request.json())["variables"]
        page = self.sessions[wanted["offset"] :][: wanted["limit"]]
        found = {"items": page, "total_count": len(self.sessions)}
        return web.json_response({"data": {"compute_session_list": found}})

    async def _plan(self, request: web.Request) -> web.Response:
        plans = self.plans.get(request.match_info["id"])
        if plans is None:
            return web.json_response(self.refusal, status=self.refusal_status)
        return web.json_response({"kernels": plans})


@pytest.fixture
def manager(serve: Callable[[web.Application], None]) -> Manager:
    manager = Manager([
        item("chat", util=80, engine_util=10, pool_util=95, saved_seconds=12.5, mem=3 * 2**30),
        item("batch", util=0, engine_util=0, mem=2**20),
        item("plain"),
    ])
    serve(manager.app())
    return manager


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kvcache, ["status", *arguments])


@pytest.mark.usefixtures("manager")
class TestAll:
    def test_those_with_figures(self) -> None:
        lines = [" ".join(line.split()) for line in run().stdout.splitlines()]
        assert lines == [
            "session util engine_util saved_seconds mem advice",
            "chat 80.0 % 10.0 % 12.500 s 3.00 GiB the pool is full and the folder serves 80 %: "
            "working as meant",
            "batch 0.0 % 0.0 % - 1.00 MiB hit share 0 % after half an hour: contexts are not "
            "revisited; switch off",
        ]

    def test_json(self) -> None:
        chat, batch = json.loads(run("--json").stdout)
        assert chat["figures"]["kvcache_util"] == 80
        assert chat["advice"] == [
            {
                "key": "works-with-full-pool",
                "weight": "works",
                "text": "the pool is full and the folder serves 80 %: working as meant",
            }
        ]
        assert batch["name"] == "batch"

    def test_none(self, manager: Manager) -> None:
        manager.sessions = [item("plain")]
        assert run().stdout == "No running session has a KV cache that is measured.\n"
        assert run("--json").stdout == "[]\n"

    def test_more_than_a_page(self, manager: Manager) -> None:
        manager.sessions = [item(f"s{i}", util=1) for i in range(201)]
        assert len(json.loads(run("--json").stdout)) == 201


class TestOne:
    @pytest.mark.parametrize("name", ["chat", "id-of-chat"])
    def test_plan_figures_and_advice(self, manager: Manager, name: str) -> None:
        manager.plans["id-of-chat"] = {"k": PLAN}
        text = run(name).stdout
        assert text.startswith(
            "chat (id-of-chat)\n"
            "\n"
            "engine     lmcache-gds\n"
            "folder     my-kv\n"
            "namespace  808b\n"
            "storage    /kvcache/ns/808b\n"
            "\n"
            "decided          value  why\n"
            "folder           my-kv  mounted at /kvcache\n"
            "bytes_per_token  45056  read from config.json\n"
            "\n"
            "kvcache_util"
        )
        assert "share of prompt tokens that the KV folder served" in text
        assert text.endswith("working as meant\n")

    def test_advice_knows_the_plan(self, manager: Manager) -> None:
        manager.sessions.append(item("tight", crowded_out=3))
        manager.plans["id-of-tight"] = {"k": {**PLAN, "host_bytes": 20 * 2**30}}
        assert run("tight").stdout.endswith("raise cpu-tier from 20 GiB to 40 GiB\n")

    def test_refused_ways_and_warnings(self, manager: Manager) -> None:
        plan = {
            **PLAN,
            "refused": {"lmcache-mp": "the image has no LMCache"},
            "warnings": ["it is slow", "it is old"],
        }
        manager.plans["id-of-chat"] = {"k": plan}
        assert (
            "\n\nnot lmcache-mp: the image has no LMCache\n"
            "warning: it is slow\nwarning: it is old\n\n" in run("chat").stdout
        )

    def test_main_kernel_comes_first(self, manager: Manager) -> None:
        manager.plans["id-of-chat"] = {"z": PLAN, "a": WITHOUT}
        assert "lmcache-gds" in run("chat").stdout

    def test_json(self, manager: Manager) -> None:
        manager.plans["id-of-chat"] = {"k": PLAN}
        (chat,) = json.loads(run("chat", "--json").stdout)
        assert chat["plan"] == PLAN
        assert chat["figures"]["kvcache_util"] == 80
        (batch,) = json.loads(run("batch", "--json").stdout)
        assert batch["plan"] is None

    def test_no_kv_cache(self, manager: Manager) -> None:
        manager.plans["id-of-plain"] = {"k": WITHOUT}
        assert run("plain").stdout == (
            "plain (id-of-plain)\n\nno KV cache because the session has no model folder\n"
        )
        (plain,) = json.loads(run("plain", "--json").stdout)
        assert plain["plan"] == WITHOUT
        assert plain["figures"] == {}

    def test_manager_without_the_plugin(self, manager: Manager) -> None:
        manager.refusal = NO_SUCH_ROUTE
        text = run("chat").stdout
        assert "plan: not known, since the manager does not have the plugin: install" in text
        assert "working as meant" in text

    def test_plan_that_no_agent_has_told(self, manager: Manager) -> None:
        manager.plans["id-of-chat"] = {}
        text = run("chat").stdout
        assert "plan: not known, since no agent has told it" in text
        assert "/home/config/kvcache/plan.json" in text
        assert "working as meant" in text

    def test_session_that_just_ended(self, manager: Manager) -> None:
        assert "plan: not known, since the session has just ended" in run("chat").stdout

    def test_neither_plan_nor_figures(self, manager: Manager) -> None:
        manager.plans["id-of-plain"] = {}
        result = run("plain")
        assert result.exit_code == 1
        assert "'plain' has no KV cache that is measured. Its plan: not known" in result.stderr

    def test_session_that_is_none(self, manager: Manager) -> None:
        result = run("nobody")
        assert result.exit_code == 1
        assert "'nobody' is no running session that you may see" in result.stderr

    def test_manager_that_fails(self, manager: Manager) -> None:
        manager.refusal_status = 500
        result = run("chat")
        assert result.exit_code == 1
        assert "the manager refused, or was not reached" in result.stderr


class TestPlanOfASessionsOwnMaking:
    """A session may have written to its plan; a terminal gets text of it and nothing else."""

    @pytest.mark.parametrize(
        "plan",
        [
            {**PLAN, "folder": "a\x1b[31mb"},
            {**PLAN, "decisions": [{"what": "a\x1b[31mb", "value": 1, "why": ""}]},
            {**PLAN, "decisions": [{"what": "", "value": {"a\x1b[31mb": []}, "why": ""}]},
            {**PLAN, "warnings": ["a\x1b[31mb"]},
            {**PLAN, "refused": {"a\x1b[31mb": "a\x1b[31mb"}},
            {**PLAN, "add_by_hand": "a\x1b[31mb"},
            {**PLAN, "no_kv_cache_because": "a\x1b[31mb"},
            {**PLAN, "decisions": [{"a\x1b[31mb": 1}], "warnings": "a\x1b[31mb"},
        ],
    )
    def test_controls(self, manager: Manager, plan: dict[str, Any]) -> None:
        manager.plans["id-of-chat"] = {"k": plan}
        for arguments in (["chat"], ["chat", "--json"]):
            result = run(*arguments)
            assert result.exit_code == 0
            assert all(c.isprintable() or c == "\n" for c in result.stdout)

    @pytest.mark.parametrize("text", ["\x9b31m", "\u202eevil", "\r", "\x07", "\u2028", "\ud800"])
    def test_others(self, manager: Manager, text: str) -> None:
        manager.plans["id-of-plain"] = {"k": {**WITHOUT, "no_kv_cache_because": f"<{text}>"}}
        escaped = text.encode("unicode_escape").decode()
        assert run("plain").stdout.endswith(f"no KV cache because <{escaped}>\n")

    @pytest.mark.parametrize(
        "plan", [{}, {**PLAN, "decisions": 1}, {**PLAN, "namespace": "x"}, {**PLAN, "folder": []}]
    )
    def test_what_is_no_plan(self, manager: Manager, plan: dict[str, Any]) -> None:
        manager.plans["id-of-chat"] = {"k": plan}
        text = run("chat").stdout
        assert "plan: not understood: " in text
        assert text.endswith("working as meant\n")
