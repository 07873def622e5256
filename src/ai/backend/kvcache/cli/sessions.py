"""``sessions``: who uses KV cache and what it brings, as the manager lists it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from .figures import age_text, cell_text
from .manager import INSTALL, connection, get, has_no_plugin
from .session_plan import printable
from .table import table
from .watch import show, watch_option

type Session = Mapping[str, Any]
"""As docs/api.md has it."""

_NO_PLUGIN = (
    f"the manager does not have the plugin, which lists sessions: {INSTALL}; until then "
    "`backend.ai kvcache status` shows figures"
)

_NOT_ADDED_UP = "Bytes are of a namespace, which sessions may share, so they are not added up."

#: Figures beside each other: heads → keys of INDICATORS.
_FIGURES: Mapping[str, str] = {
    "hit share": "kvcache_util",
    "bytes": "kvcache_mem",
    "saved": "kvcache_saved_seconds",
}
_HEADS = ("session", "user", "project", "age", "folder", *_FIGURES, "advice")
_TEXT_COLUMNS = (0, 1, 2, 4, 8)


def _figure(key: str) -> Callable[[Session], float | None]:
    return lambda session: session["figures"].get(key)


_ORDERS: Mapping[str, Callable[[Session], float | None]] = {
    **{head.replace(" ", "-"): _figure(key) for head, key in _FIGURES.items()},
    "age": lambda session: session["age_seconds"],
}


def _listed() -> list[Session]:
    """All running sessions with a plan or figures that the caller may see."""
    with connection() as api:
        from ai.backend.client.exceptions import BackendAPIError

        try:
            sessions: list[Session] = get(api, "/kvcache/sessions")["sessions"]
        except BackendAPIError as e:
            if has_no_plugin(e):
                raise click.ClickException(_NO_PLUGIN) from e
            raise
    return sessions


def _is_wanted(session: Session, project: str | None, user: str | None) -> bool:
    return project in (None, *session["project"].values()) and user in (None, session["user"])


def _ordered(sessions: Sequence[Session], sort: str | None) -> list[Session]:
    """The largest first; what is not known comes last."""
    if sort is None:
        return list(sessions)

    def place(session: Session) -> tuple[bool, float]:
        value = _ORDERS[sort](session)
        return value is None, -(value or 0.0)

    return sorted(sessions, key=place)


def _has_kv_cache(session: Session) -> bool:
    """Where the plan is not known, the figures say so."""
    return session["plan"] is None or session["plan"]["kv_cache"]


def _said(session: Session) -> str:
    if not _has_kv_cache(session):
        return f"no KV cache because {session['plan']['no_kv_cache_because']}"
    return "; ".join(advice["text"] for advice in session["advice"])


def _row(session: Session) -> tuple[str, ...]:
    age = session["age_seconds"]
    plan = session["plan"] or {}
    cells = (
        session["name"] or session["id"],
        session["user"],
        session["project"]["name"],
        "-" if age is None else age_text(age),
        plan.get("folder") or "-",
        *(cell_text(session["figures"], key) for key in _FIGURES.values()),
        _said(session),
    )
    # A plan may be its session's own word.
    return tuple(map(printable, cells))


def _table(sessions: Sequence[Session]) -> str:
    with_kv_cache = sum(map(_has_kv_cache, sessions))
    count = f"{len(sessions)} session{'s' if len(sessions) > 1 else ''}"
    rows = table([_HEADS, *map(_row, sessions)], text=_TEXT_COLUMNS)
    return f"{rows}\n\n{count}, {with_kv_cache} with KV cache. {_NOT_ADDED_UP}"


def _none(listed: int) -> str:
    if listed:
        return f"The filter leaves none of {listed} sessions."
    return "No running session that you may see has asked for KV cache."


def _shown(project: str | None, user: str | None, sort: str | None, as_json: bool) -> str:
    listed = _listed()
    wanted = _ordered([s for s in listed if _is_wanted(s, project, user)], sort)
    if as_json:
        return json.dumps(wanted, indent=2)
    return _table(wanted) if wanted else _none(len(listed))


@click.command()
@click.option("--project", metavar="ID|NAME", help="Those of one project.")
@click.option("--user", metavar="EMAIL", help="Those of one user.")
@click.option("--sort", type=click.Choice(list(_ORDERS)), help="The largest first, not the newest.")
@click.option("--json", "as_json", is_flag=True, help="For programs: as the REST interface has it.")
@watch_option
def sessions(
    project: str | None, user: str | None, sort: str | None, as_json: bool, watch: float | None
) -> None:
    """Who uses KV cache, in which folder, and what it brings.

    All running sessions that you may see and that have asked for KV cache, the newest first. Where
    one has none, its plan's reason stands in place of advice. The manager needs the plugin.
    """
    show(partial(_shown, project, user, sort, as_json), watch, clear=not as_json)
