"""What `status` makes of the manager's answers. tests/cluster asks a real manager."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.cli.status import status_of

HOUR_AGO = (datetime.now(UTC) - timedelta(hours=1)).isoformat()


def item(name: str, **figures: float) -> dict[str, Any]:
    """A session as the manager answers with it; numbers are text there."""
    stat = {
        "cpu_util": {"current": "3.0", "unit_hint": "percent"},
        **{f"kvcache_{k}": {"current": str(v), "unit_hint": "percent"} for k, v in figures.items()},
    }
    return {
        "id": f"id-of-{name}",
        "name": name,
        "starts_at": HOUR_AGO,
        "containers": [{"live_stat": json.dumps(stat)}],
    }


class TestOneSession:
    def test_figures_and_age(self) -> None:
        status = status_of(item("a", util=92.8, mem=4096))
        assert status is not None
        assert status.figures == {"kvcache_util": 92.8, "kvcache_mem": 4096}
        assert status.age == pytest.approx(3600, abs=60)

    @pytest.mark.parametrize("containers", [[], None, [{"live_stat": None}]])
    def test_without_kv_cache(self, containers: Any) -> None:
        assert status_of({**item("a"), "containers": containers}) is None
        assert status_of(item("a")) is None

    @pytest.mark.parametrize(
        ("starts_at", "age"),
        [(None, None), ("2026-01-01T00:00:00", float), ("2026-01-01T00:00:00+00:00", float)],
    )
    def test_start(self, starts_at: str | None, age: type | None) -> None:
        status = status_of({**item("a", util=1), "starts_at": starts_at})
        assert status is not None
        assert status.age is None if age is None else isinstance(status.age, float)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    items = [
        item("chat", util=80, engine_util=10, pool_util=95, saved_seconds=12.5, mem=3 * 2**30),
        item("batch", util=0, engine_util=0, mem=2**20),
    ]
    found = [status for one in items if (status := status_of(one))]
    # The command has taken the module's name in the package.
    module = sys.modules[status_of.__module__]
    monkeypatch.setattr(module, "_sessions", lambda: iter(found))

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(kvcache, ["status", *arguments])

    return invoke


class TestCommand:
    def test_all(self, run: Any) -> None:
        lines = [" ".join(line.split()) for line in run().stdout.splitlines()]
        assert lines == [
            "session util engine_util saved_seconds mem advice",
            "chat 80.0 % 10.0 % 12.500 s 3.00 GiB the pool is full and the folder serves 80 %: "
            "working as meant",
            "batch 0.0 % 0.0 % - 1.00 MiB hit share 0 % after half an hour: contexts are not "
            "revisited; switch off",
        ]

    @pytest.mark.parametrize("name", ["chat", "id-of-chat"])
    def test_one(self, run: Any, name: str) -> None:
        text = run(name).stdout
        assert text.startswith("chat (id-of-chat)\n")
        assert "share of prompt tokens that the KV folder served" in text
        assert text.endswith("working as meant\n")

    def test_json(self, run: Any) -> None:
        chat, batch = json.loads(run("--json").stdout)
        assert chat["figures"]["kvcache_util"] == 80
        assert chat["advice"] == ["the pool is full and the folder serves 80 %: working as meant"]
        assert batch["name"] == "batch"

    def test_session_that_is_none(self, run: Any) -> None:
        result = run("nobody")
        assert result.exit_code == 1
        assert "'nobody' is no running session" in result.stderr
        assert "plan.json" in result.stderr
