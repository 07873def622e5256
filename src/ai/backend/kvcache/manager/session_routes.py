"""The route at which users see their sessions, and admins those of others."""

from __future__ import annotations

import asyncio

from ai.backend.manager.api.rest.middleware.auth import auth_required
from aiohttp import web

from .figures import figures_of
from .plans import plans_of
from .services import PROMETHEUS
from .sessions import describe
from .visibility import visible_sessions


@auth_required
async def list_sessions(request: web.Request) -> web.Response:
    """``{"sessions": [...]}``, those that have a plan or figures, the newest first."""
    manager = request.app["_root_app"]
    sessions = await visible_sessions(
        manager["_db"],
        manager["_config_provider"].config.manager.rbac.enforcement_enabled,
        request["user"],
    )
    kernel_ids = [kernel_id for session in sessions for kernel_id in session.kernel_ids]
    plans, figures = await asyncio.gather(
        plans_of(manager["_valkey_stat"], kernel_ids),
        figures_of(request.app[PROMETHEUS], kernel_ids),
    )
    described = (describe(session, plans, figures) for session in sessions)
    return web.json_response({"sessions": [one for one in described if one is not None]})
