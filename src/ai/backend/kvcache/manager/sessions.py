"""Running sessions with KV cache, of those that a user may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import sqlalchemy as sa
import trafaret as t
from ai.backend.manager.data.session.types import SessionStatus
from ai.backend.manager.defs import DEFAULT_ROLE
from ai.backend.manager.models.kernel import KernelRow
from ai.backend.manager.models.session import SessionRow
from ai.backend.manager.models.user import UserRow
from sqlalchemy.ext.asyncio import AsyncSession

from ..metrics.advice import advise
from .projects import PROJECTS

#: Longer than any reason that a plan gives. A plan may be its session's own word.
_MAX_TEXT = 4096

_TEXT = t.Null | t.String(allow_blank=True, max_length=_MAX_TEXT)

_PLAN = t.Dict({
    t.Key("kv_cache"): t.Bool,
    t.Key("no_kv_cache_because"): _TEXT,
    t.Key("folder"): _TEXT,
    t.Key("engine"): _TEXT,
    t.Key("folder_cap_bytes", optional=True, default=None): t.Null | t.Int(gte=0),
    t.Key("host_bytes", optional=True, default=None): t.Null | t.Int(gte=0),
}).ignore_extra("*")


@attrs.frozen
class RunningSession:
    """What the database has of it."""

    id: UUID
    name: str | None
    status: SessionStatus
    starts_at: datetime | None
    domain: str
    owner: UUID
    email: str
    project_id: UUID
    project: str
    kernel_ids: tuple[str, ...]
    """The main one first."""
    vfolders: frozenset[str]
    """Names of the VFolders that the manager mounts into it."""

    @property
    def age(self) -> float | None:
        """Seconds."""
        if self.starts_at is None:
            return None
        return max(0.0, (datetime.now(UTC) - self.starts_at).total_seconds())


async def running_sessions(db_session: AsyncSession) -> Sequence[RunningSession]:
    """All there are, the newest first."""
    is_running = SessionRow.status == SessionStatus.RUNNING
    kernels: dict[UUID, list[str]] = {}
    for kernel_id, session_id in await db_session.execute(
        sa
        .select(KernelRow.id, KernelRow.session_id)
        .join(SessionRow, SessionRow.id == KernelRow.session_id)
        .where(is_running)
        .order_by(KernelRow.cluster_role != DEFAULT_ROLE, KernelRow.cluster_idx)
    ):
        kernels.setdefault(session_id, []).append(str(kernel_id))
    rows = await db_session.execute(
        sa
        .select(
            SessionRow.id,
            SessionRow.name,
            SessionRow.status,
            SessionRow.starts_at,
            SessionRow.domain_name,
            SessionRow.user_uuid,
            UserRow.email,
            SessionRow.group_id,
            SessionRow.vfolder_mounts,
            PROJECTS.c.name.label("project"),
        )
        .join(UserRow, UserRow.uuid == SessionRow.user_uuid)
        .join(PROJECTS, PROJECTS.c.id == SessionRow.group_id)
        .where(is_running)
        .order_by(SessionRow.starts_at.desc().nulls_last(), SessionRow.id)
    )
    return [
        RunningSession(
            id=row.id,
            name=row.name,
            status=row.status,
            starts_at=row.starts_at,
            domain=row.domain_name,
            owner=row.user_uuid,
            email=row.email,
            project_id=row.group_id,
            project=row.project,
            kernel_ids=tuple(kernels.get(row.id, ())),
            vfolders=frozenset(mount.name for mount in row.vfolder_mounts or ()),
        )
        for row in rows
    ]


def _first[V](found: Mapping[str, V], kernel_ids: Iterable[str]) -> V | None:
    """The main kernel's, which runs the engine, or else another's."""
    return next((found[kernel_id] for kernel_id in kernel_ids if kernel_id in found), None)


def _short(plan: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a list shows of a plan. None: it is none of ours."""
    try:
        short: Mapping[str, Any] = _PLAN.check(plan)
    except t.DataError:
        return None
    return short


def describe(
    session: RunningSession,
    plans: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Mapping[str, float]],
) -> dict[str, Any] | None:
    """One session of the list; None where it has nothing to do with KV cache.

    Args:
        plans: kernel id → plan.
        figures: kernel id → figures.
    """
    plan = _first(plans, session.kernel_ids)
    measured = _first(figures, session.kernel_ids) or {}
    if plan is None and not measured:
        return None
    age = session.age
    short = plan and _short(plan)
    host_bytes = short["host_bytes"] if short else None
    return {
        "id": str(session.id),
        "name": session.name,
        "status": str(session.status),
        "user": session.email,
        "project": {"id": str(session.project_id), "name": session.project},
        "age_seconds": age,
        "figures": measured,
        "advice": [advice.to_json() for advice in advise(measured, age, host_bytes)],
        "plan": short,
    }
