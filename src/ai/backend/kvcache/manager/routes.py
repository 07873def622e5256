"""The routes under ``/kvcache``: each asks who may, fetches, and answers."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.manager.api.rest.middleware.auth import auth_required
from ai.backend.manager.api.rest.types import WebRequestHandler
from aiohttp import web

from .access import visible_session
from .folder_routes import list_folders, make_folder, remove_folder
from .openapi import DOCUMENT
from .page import get_page_file, get_page_version
from .plan_routes import make_plan
from .plans import plans_of
from .policy_routes import get_policy, patch_policy, put_policy
from .project_routes import list_projects
from .session_routes import list_sessions


@auth_required
async def session_plans(request: web.Request) -> web.Response:
    """``{"kernels": {kernel id: plan}}``, the session's main kernel first.

    Kernels whose agents have told of no plan are left out. 404 for a session that the caller may
    not see, as for one that is not there.
    """
    manager = request.app["_root_app"]
    kernel_ids = await visible_session(
        manager["_db"],
        manager["_config_provider"].config.manager.rbac.enforcement_enabled,
        request["user"],
        request.match_info["session_id"],
    )
    return web.json_response({"kernels": await plans_of(manager["_valkey_stat"], kernel_ids)})


@auth_required
async def openapi(_request: web.Request) -> web.Response:
    """What all of these take and give."""
    return web.json_response(DOCUMENT)


#: (method, path, handler)
ROUTES: Sequence[tuple[str, str, WebRequestHandler]] = (
    ("GET", "/policy", get_policy),
    ("PUT", "/policy", put_policy),
    ("PATCH", "/policy", patch_policy),
    ("GET", "/sessions", list_sessions),
    ("GET", "/sessions/{session_id}/plan", session_plans),
    ("GET", "/folders", list_folders),
    ("POST", "/folders", make_folder),
    ("DELETE", "/folders/{host}/{project}", remove_folder),
    ("GET", "/projects", list_projects),
    ("POST", "/plan", make_plan),
    ("GET", "/ui", get_page_version),
    ("GET", "/ui/{digest}/{name}", get_page_file),
    ("GET", "/openapi.json", openapi),
)
