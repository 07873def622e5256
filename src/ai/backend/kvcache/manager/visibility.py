"""Which running sessions a user may see, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.manager.models.utils import ExtendedAsyncSAEngine

from .access import sees_sessions_of
from .roles import changeable_sessions
from .sessions import RunningSession, running_sessions


async def visible_sessions(
    db: ExtendedAsyncSAEngine, roles_count: bool, user: Mapping[str, Any]
) -> Sequence[RunningSession]:
    """As ``access.visible_session`` judges each of them.

    Args:
        db: the manager's.
        roles_count: whether the manager goes by roles that are given to users one by one.
        user: who asks, as the manager's authentication found.
    """
    async with db.begin_readonly_session_read_committed() as db_session:
        sessions = await running_sessions(db_session)
        seen = {
            (owner, domain)
            for owner, domain in {(session.owner, session.domain) for session in sessions}
            if await sees_sessions_of(db, db_session, user, owner, domain)
        }
    others = [session.id for session in sessions if (session.owner, session.domain) not in seen]
    changeable = (
        await changeable_sessions(db, user["uuid"], others)
        if roles_count and others
        else frozenset()
    )
    return [
        session
        for session in sessions
        if (session.owner, session.domain) in seen or session.id in changeable
    ]
