"""Roles that Backend.AI gives to users one by one, such as a project's admin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import batched
from uuid import UUID

from ai.backend.manager.models.utils import ExtendedAsyncSAEngine

#: Fewer than a query to PostgreSQL may have parameters; each id is two of them.
_IDS_AT_A_TIME = 5_000


async def changeable_sessions(
    db: ExtendedAsyncSAEngine, user_id: UUID, session_ids: Sequence[UUID]
) -> frozenset[UUID]:
    """Those of the sessions that one of a user's roles lets them change.

    Changing is what distinguishes a project's admins: its members may read each other's sessions.
    """
    try:
        from ai.backend.common.data.permission.types import OperationType, RBACElementType
        from ai.backend.manager.data.permission.role import (
            BulkPermissionCheckInput,
            PermissionResolutionKey,
        )
        from ai.backend.manager.repositories.permission_controller.repository import (
            PermissionControllerRepository,
        )
    except ImportError:
        # Of 26.4. Later managers keep roles in another way, which is not read here.
        return frozenset()
    repository = PermissionControllerRepository(db)
    changeable: set[UUID] = set()
    for ids in batched(session_ids, _IDS_AT_A_TIME):
        keys = [
            PermissionResolutionKey(
                user_id=user_id,
                element_type=RBACElementType.SESSION,
                entity_id=str(session_id),
                subject_entity_type=RBACElementType.SESSION,
            )
            for session_id in ids
        ]
        allowed = await repository.check_bulk_permission_with_scope_chain(
            BulkPermissionCheckInput(keys, OperationType.UPDATE)
        )
        changeable.update(UUID(key.entity_id) for key, may in allowed.items() if may)
    return frozenset(changeable)
