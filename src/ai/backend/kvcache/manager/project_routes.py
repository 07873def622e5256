"""The routes at which superadmins see projects and their KV folders."""

from __future__ import annotations

from uuid import UUID

from ai.backend.manager.api.rest.middleware.auth import superadmin_required
from aiohttp import web

from ..errors import PolicyError
from ..policy.policy import Policy
from .errors import PolicyUnusableError
from .policy_store import PolicyStore, StoredPolicy
from .projects import active_projects, project_names
from .services import FOLDER_USAGES


def _usable(stored: StoredPolicy) -> Policy:
    try:
        return stored.policy()
    except PolicyError as e:
        raise PolicyUnusableError(str(e)) from e


@superadmin_required
async def list_projects(request: web.Request) -> web.Response:
    """``{"projects": [...]}``, those that are active, with what applies to their sessions."""
    manager = request.app["_root_app"]
    stored = await PolicyStore(manager["_etcd"]).read()
    policy = _usable(stored)
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


@superadmin_required
async def list_folders(request: web.Request) -> web.Response:
    """``{"folders": [...]}``, one for each project that has one of its own."""
    manager = request.app["_root_app"]
    policy = _usable(await PolicyStore(manager["_etcd"]).read())
    places = {
        project: said["folder"] for project, said in policy.projects.items() if "folder" in said
    }
    async with manager["_db"].begin_readonly_session_read_committed() as db_session:
        names = await project_names(db_session, list(map(UUID, places)))
    usages = await request.app[FOLDER_USAGES].of(list(places.values()))
    return web.json_response({
        "folders": [
            {
                "project": {"id": project, "name": names.get(UUID(project))},
                "place": str(place),
                "cap_bytes": policy.settings_for(None, project).folder_cap_bytes,
                "used_bytes": usage.used_bytes,
                "files": usage.files,
            }
            for (project, place), usage in zip(places.items(), usages, strict=True)
        ]
    })
