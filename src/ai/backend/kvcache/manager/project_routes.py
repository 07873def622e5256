"""The route at which superadmins see projects."""

from __future__ import annotations

from ai.backend.manager.api.rest.middleware.auth import superadmin_required
from aiohttp import web

from .policy_store import PolicyStore
from .projects import active_projects


@superadmin_required
async def list_projects(request: web.Request) -> web.Response:
    """``{"projects": [...]}``, those that are active, with what applies to their sessions."""
    manager = request.app["_root_app"]
    stored = await PolicyStore(manager["_etcd"]).read()
    policy = stored.usable()
    said = stored.document.get("projects", {})
    async with manager["_db"].begin_readonly_session_read_committed() as db_session:
        projects = await active_projects(db_session)
    return web.json_response({
        "projects": [
            {
                "id": str(project.id),
                "name": project.name,
                "domain": project.domain,
                "mode": policy.settings_for(None, str(project.id)).mode,
                "said": said.get(str(project.id), {}),
            }
            for project in projects
        ]
    })
