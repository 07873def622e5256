"""The routes at which superadmins see, make and remove the KV folders of projects."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trafaret as t
from ai.backend.manager.api.rest.middleware.auth import superadmin_required
from aiohttp import web

from ..policy.place import Place, is_provisioned, provisioned_place
from .body import read_body
from .errors import FolderInUseError, InvalidRequestError
from .plans import plans_of
from .policy_store import PolicyStore
from .projects import project_names
from .services import FOLDER_USAGES, PROVISIONED_FOLDERS
from .sessions import running_sessions

_PROJECT = t.String(max_length=64)
_HOST = t.String(max_length=160)
_MAKE = t.Dict({
    t.Key("project"): _PROJECT,
    t.Key("host", optional=True, default=None): t.Null | _HOST,
})


def _project_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as e:
        raise InvalidRequestError(f"project = {text!r}: is no id of a project") from e


@superadmin_required
async def list_folders(request: web.Request) -> web.Response:
    """``{"folders": [...]}``, one for each project that has one of its own."""
    manager = request.app["_root_app"]
    policy = (await PolicyStore(manager["_etcd"]).read()).usable()
    places: dict[str, Place] = {
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
                "provisioned": is_provisioned(place, project),
                "cap_bytes": policy.settings_for(None, project).folder_cap_bytes,
                "used_bytes": usage.used_bytes,
                "files": usage.files,
            }
            for (project, place), usage in zip(places.items(), usages, strict=True)
        ]
    })


@superadmin_required
async def make_folder(request: web.Request) -> web.Response:
    """``{"place", "made"}``: where the project's provisioned folder is, and whether it is new.

    The policy is not changed: it names the folder when whoever asked writes it there.
    """
    body: dict[str, Any] = await read_body(request, _MAKE)
    project = _project_id(body["project"])
    manager = request.app["_root_app"]
    async with manager["_db"].begin_readonly_session_read_committed() as db_session:
        if not await project_names(db_session, [project]):
            raise InvalidRequestError(f"project = '{project}': there is no such project")
    folders = request.app[PROVISIONED_FOLDERS]
    place = provisioned_place(folders.host(body["host"]), str(project))
    return web.json_response({"place": str(place), "made": await folders.make(place)})


@superadmin_required
async def remove_folder(request: web.Request) -> web.Response:
    """``{"place", "gone"}``: a project's provisioned folder is removed, with all that lies in it.

    ``gone`` is false where the storage proxy goes on removing it. The project may be gone itself.
    """
    project = _project_id(request.match_info["project"])
    folders = request.app[PROVISIONED_FOLDERS]
    host = folders.host(request.match_info["host"])
    place = provisioned_place(host, str(project))
    await _check_unused(request, place, project)
    return web.json_response({"place": str(place), "gone": await folders.remove(place)})


async def _check_unused(request: web.Request, place: Place, project: UUID) -> None:
    """Removing what is in use would make sessions' requests fail.

    The manager knows the VFolders that it mounts. A session whose plan names another folder has one
    that the policy gave to it, and that may be this one.

    Raises:
        FolderInUseError: the policy names the folder, or sessions of the project run with KV cache.
    """
    manager = request.app["_root_app"]
    policy = (await PolicyStore(manager["_etcd"]).read()).usable()
    if any(named.place == place for named in policy.named_folders()):
        raise FolderInUseError("the policy names it; take it out of the policy first")
    async with manager["_db"].begin_readonly_session_read_committed() as db_session:
        sessions = [s for s in await running_sessions(db_session) if s.project_id == project]
    kernels = [kernel for session in sessions for kernel in session.kernel_ids]
    plans = await plans_of(manager["_valkey_stat"], kernels)
    using = [
        str(session.id)
        for session in sessions
        if any(
            plan.get("kv_cache") and plan.get("folder") not in session.vfolders
            for plan in (plans.get(kernel, {}) for kernel in session.kernel_ids)
        )
    ]
    if using:
        raise FolderInUseError(
            f"sessions of the project run with KV cache, and may use it: {', '.join(using)}; end "
            "them first"
        )
