"""Backend.AI's projects."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import attrs
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

#: Their table. The manager's class for it has another name in Backend.AI 26.9 than in 26.4.
PROJECTS = sa.table(
    "groups",
    sa.column("id", sa.Uuid),
    sa.column("name", sa.String),
    sa.column("domain_name", sa.String),
    sa.column("is_active", sa.Boolean),
)


@attrs.frozen
class Project:
    """One of them."""

    id: UUID
    name: str
    domain: str


async def active_projects(db_session: AsyncSession) -> Sequence[Project]:
    """Sorted by domain and name."""
    rows = await db_session.execute(
        sa
        .select(PROJECTS.c.id, PROJECTS.c.name, PROJECTS.c.domain_name)
        .where(PROJECTS.c.is_active)
        .order_by(PROJECTS.c.domain_name, PROJECTS.c.name)
    )
    return [Project(*row) for row in rows]


async def project_names(db_session: AsyncSession, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Names of projects by their ids; those that are gone are left out."""
    rows = await db_session.execute(
        sa.select(PROJECTS.c.id, PROJECTS.c.name).where(PROJECTS.c.id.in_(ids))
    )
    return {row.id: row.name for row in rows}
