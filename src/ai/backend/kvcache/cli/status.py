"""``status``: what running sessions' KV caches are and do, as the manager reports it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import attrs
import click

from ..metrics.advice import Advice, advise
from ..metrics.indicators import INDICATORS
from .figures import cell_text, figure_text
from .manager import INSTALL, connection, get, has_no_plugin
from .session_plan import SessionPlan
from .table import table
from .watch import show, watch_option

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

_IN_THE_SESSION = "in the session it is /home/config/kvcache/plan.json"

_NO_PLUGIN = f"since the manager does not have the plugin: {INSTALL}; {_IN_THE_SESSION}"

_NOT_TOLD = (
    "since no agent has told it; agents do so within a minute, for sessions that asked for KV "
    f"cache; {_IN_THE_SESSION}"
)

_ENDED = "since the session has just ended"

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
    host_bytes: int | None = None
    """Of the plan, where it is known."""

    @property
    def advice(self) -> tuple[Advice, ...]:
        return advise(self.figures, self.age, self.host_bytes)

    @property
    def advice_texts(self) -> tuple[str, ...]:
        return tuple(advice.text for advice in self.advice)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "age_seconds": self.age,
            "figures": dict(self.figures),
            "advice": [advice.to_json() for advice in self.advice],
        }


def _age(starts_at: str | None) -> float | None:
    if not starts_at:
        return None
    started = datetime.fromisoformat(starts_at)
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    return (datetime.now(UTC) - started).total_seconds()


def status_of(item: Mapping[str, Any]) -> Status:
    """One session as the manager describes it; without figures where none is measured."""
    figures: dict[str, float] = {}
    for container in item["containers"] or ():
        for key, metric in json.loads(container["live_stat"] or "{}").items():
            if key in _KEYS:
                figures[key] = float(metric["current"])
    return Status(str(item["id"]), str(item["name"]), _age(item["starts_at"]), figures)


def _sessions(api: Any) -> Iterator[Status]:
    """All running sessions that the caller may see."""
    offset = 0
    while True:
        variables = {"limit": _PAGE_SIZE, "offset": offset}
        page: Any = api.Admin.query(_QUERY, variables)["compute_session_list"]
        yield from map(status_of, page["items"])
        offset += len(page["items"])
        if not page["items"] or offset >= page["total_count"]:
            return


def _plan(api: Any, session_id: str) -> SessionPlan:
    """The plan of a session's main kernel, which runs the engine."""
    from ai.backend.client.exceptions import BackendAPIError

    try:
        kernels: Mapping[str, Any] = get(api, f"/kvcache/sessions/{session_id}/plan")["kernels"]
    except BackendAPIError as e:
        if e.status != HTTPStatus.NOT_FOUND:
            raise
        return SessionPlan(None, _NO_PLUGIN if has_no_plugin(e) else _ENDED)
    return SessionPlan(next(iter(kernels.values()), None), _NOT_TOLD)


def _of_one(status: Status, plan: SessionPlan) -> str:
    rows = [
        (i.key, figure_text(status.figures[i.key], i.unit), i.meaning)
        for i in INDICATORS
        if i.key in status.figures
    ]
    parts = [f"{status.name} ({status.id})", plan.text()]
    if rows:
        parts += [
            table(rows, text=(0, 2)),
            "\n".join(status.advice_texts or ("nothing to say yet",)),
        ]
    return "\n\n".join(parts)


def _of_all(statuses: Sequence[Status]) -> str:
    if not statuses:
        return "No running session has a KV cache that is measured."
    heads = ("session", *(key.removeprefix("kvcache_") for key in _COLUMNS), "advice")
    rows = [
        (
            status.name,
            *(cell_text(status.figures, key) for key in _COLUMNS),
            "; ".join(status.advice_texts),
        )
        for status in statuses
    ]
    return table([heads, *rows], text=(0, len(heads) - 1))


def _shown_all(as_json: bool) -> str:
    with connection() as api:
        statuses = [status for status in _sessions(api) if status.figures]
    if as_json:
        return json.dumps([status.to_json() for status in statuses], indent=2)
    return _of_all(statuses)


def _shown_one(session: str, as_json: bool) -> str:
    with connection() as api:
        found = [
            (attrs.evolve(status, host_bytes=plan.host_bytes), plan)
            for status in _sessions(api)
            if session in (status.id, status.name)
            for plan in (_plan(api, status.id),)
        ]
    if not found:
        raise click.ClickException(f"{session!r} is no running session that you may see")
    known = [(status, plan) for status, plan in found if status.figures or plan.content is not None]
    if not known:
        raise click.ClickException(
            f"{session!r} has no KV cache that is measured. Its {found[0][1].text()}"
        )
    if as_json:
        answer = [{**status.to_json(), "plan": plan.content} for status, plan in known]
        return json.dumps(answer, indent=2)
    return "\n\n".join(_of_one(status, plan) for status, plan in known)


@click.command()
@click.argument("session", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@watch_option
def status(session: str | None, as_json: bool, watch: float | None) -> None:
    """What the KV caches of running sessions do, and what to think of it.

    SESSION is an id or a name, and is shown with its plan: what was decided for it and why. Without
    one, all that you may see are listed.
    """
    make = partial(_shown_all if session is None else partial(_shown_one, session), as_json)
    show(make, watch, clear=not as_json)
