"""``status``: what running sessions' KV caches do, as the manager reports it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import click

from ..metrics.advice import advise
from ..metrics.indicators import INDICATORS
from .figures import figure_text
from .table import table
from .types import Seconds

_PAGE_SIZE = 100

_QUERY = """
query($limit: Int!, $offset: Int!) {
  compute_session_list(limit: $limit, offset: $offset, status: "RUNNING") {
    items { id name starts_at containers { live_stat } }
    total_count
  }
}
"""

_KEYS = frozenset(indicator.key for indicator in INDICATORS)

#: What fits beside each other in the list.
_COLUMNS = ("kvcache_util", "kvcache_engine_util", "kvcache_saved_seconds", "kvcache_mem")


@attrs.frozen
class Status:
    """One session."""

    id: str
    name: str
    age: float | None
    """Seconds since it started."""
    figures: Mapping[str, float]

    @property
    def advice(self) -> tuple[str, ...]:
        return tuple(advice.text for advice in advise(self.figures, self.age))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "age_seconds": self.age,
            "figures": dict(self.figures),
            "advice": list(self.advice),
        }


def _age(starts_at: str | None) -> float | None:
    if not starts_at:
        return None
    started = datetime.fromisoformat(starts_at)
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    return (datetime.now(UTC) - started).total_seconds()


def status_of(item: Mapping[str, Any]) -> Status | None:
    """One session as the manager describes it; None for one without KV cache."""
    figures: dict[str, float] = {}
    for container in item["containers"] or ():
        for key, metric in json.loads(container["live_stat"] or "{}").items():
            if key in _KEYS:
                figures[key] = float(metric["current"])
    if not figures:
        return None
    return Status(str(item["id"]), str(item["name"]), _age(item["starts_at"]), figures)


def _sessions() -> Iterator[Status]:
    """All running sessions with KV cache that the caller may see.

    Raises:
        click.ClickException: the client is not installed, or the manager does not answer.
    """
    try:
        from ai.backend.client.exceptions import BackendError
        from ai.backend.client.session import Session
    except ImportError as e:
        raise click.ClickException(
            f"this command needs the Backend.AI client ({e}); install backend.ai-client"
        ) from e
    offset = 0
    try:
        with Session() as api:
            while True:
                variables = {"limit": _PAGE_SIZE, "offset": offset}
                answer: Any = api.Admin.query(_QUERY, variables)
                page = answer["compute_session_list"]
                yield from filter(None, map(status_of, page["items"]))
                offset += len(page["items"])
                if not page["items"] or offset >= page["total_count"]:
                    return
    except BackendError as e:
        raise click.ClickException(f"the manager refused, or was not reached: {e}") from e


def _of_one(status: Status) -> str:
    rows = [
        (i.key, figure_text(status.figures[i.key], i.unit), i.meaning)
        for i in INDICATORS
        if i.key in status.figures
    ]
    advice = status.advice or ("nothing to say yet",)
    return "\n".join((f"{status.name} ({status.id})", "", table(rows, text=(0, 2)), "", *advice))


def _of_all(statuses: Sequence[Status]) -> str:
    if not statuses:
        return "No running session has a KV cache that is measured."
    units = {indicator.key: indicator.unit for indicator in INDICATORS}
    heads = ("session", *(key.removeprefix("kvcache_") for key in _COLUMNS), "advice")
    rows = [
        (
            status.name,
            *(
                figure_text(status.figures[key], units[key]) if key in status.figures else "-"
                for key in _COLUMNS
            ),
            "; ".join(status.advice),
        )
        for status in statuses
    ]
    return table([heads, *rows], text=(0, len(heads) - 1))


def _shown(session: str | None, as_json: bool) -> str:
    statuses = [s for s in _sessions() if session is None or session in (s.id, s.name)]
    if session is not None and not statuses:
        raise click.ClickException(
            f"{session!r} is no running session whose KV cache is measured; a session's "
            "/home/config/kvcache/plan.json says why it has none"
        )
    if as_json:
        return json.dumps([status.to_json() for status in statuses], indent=2)
    if session is None:
        return _of_all(statuses)
    return "\n\n".join(map(_of_one, statuses))


@click.command()
@click.argument("session", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--watch", type=Seconds(), help="Shows it again and again.")
def status(session: str | None, as_json: bool, watch: float | None) -> None:
    """What the KV caches of running sessions do, and what to think of it.

    SESSION is an id or a name; without one, all that you may see are listed.
    """
    while True:
        shown = _shown(session, as_json)
        if watch is not None and not as_json:
            click.clear()
        click.echo(shown)
        if watch is None:
            return
        time.sleep(watch)
