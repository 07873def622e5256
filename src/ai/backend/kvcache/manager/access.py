"""Who may see what, as the manager itself judges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from ai.backend.manager.defs import DEFAULT_ROLE
from ai.backend.manager.errors.kernel import SessionNotFound
from ai.backend.manager.models.kernel import KernelRow
from ai.backend.manager.models.rbac import (
    PredefinedRole,
    UserScope,
    get_predefined_roles_in_scope,
)
from ai.backend.manager.models.rbac.context import ClientContext
from ai.backend.manager.models.session import SessionRow
from ai.backend.manager.models.utils import ExtendedAsyncSAEngine
from sqlalchemy.ext.asyncio import AsyncSession

from .roles import changeable_sessions

#: Not a project's members, nor monitors: a plan says more than a list of sessions does.
_SEEING = frozenset({PredefinedRole.OWNER, PredefinedRole.ADMIN})


async def visible_session(
    db: ExtendedAsyncSAEngine, roles_count: bool, user: Mapping[str, Any], session_id: str
) -> list[str]:
    """The ids of a session's kernels, the main one first.

    Its owner sees it, admins of its domain and project, and superadmins.

    Args:
        db: the manager's.
        roles_count: whether the manager goes by roles that are given to users one by one.
        user: who asks, as the manager's authentication found.
        session_id: as it stands in the request.

    Raises:
        SessionNotFound: there is none, or it is not for this user to see: both look the same.
    """
    try:
        wanted = UUID(session_id)
    except ValueError:
        raise SessionNotFound from None
    async with db.begin_readonly_session_read_committed() as db_session:
        session = await db_session.scalar(sa.select(SessionRow).where(SessionRow.id == wanted))
        if session is None:
            raise SessionNotFound
        is_visible = await sees_sessions_of(
            db, db_session, user, session.user_uuid, session.domain_name
        )
        kernel_ids = await db_session.scalars(
            sa
            .select(KernelRow.id)
            .where(KernelRow.session_id == wanted)
            .order_by(KernelRow.cluster_role != DEFAULT_ROLE, KernelRow.cluster_idx)
        )
        found = [str(kernel_id) for kernel_id in kernel_ids]
    if not is_visible and not (
        roles_count and await changeable_sessions(db, user["uuid"], [wanted])
    ):
        raise SessionNotFound
    return found


async def sees_sessions_of(
    db: ExtendedAsyncSAEngine,
    db_session: AsyncSession,
    user: Mapping[str, Any],
    owner: UUID,
    domain: str,
) -> bool:
    """Whether a user sees what another one runs in a domain, by their place alone."""
    roles = await get_predefined_roles_in_scope(
        ClientContext(db, user["domain_name"], user["uuid"], user["role"]),
        UserScope(owner, domain),
        db_session,
    )
    return not roles.isdisjoint(_SEEING)
