"""The routes at which superadmins read and change the policy."""

from __future__ import annotations

from typing import Any

import trafaret as t
from ai.backend.manager.api.rest.middleware.auth import superadmin_required
from aiohttp import web

from ..policy.describe import DESCRIPTIONS
from ..policy.merge_patch import merge
from .body import read_body
from .policy_store import PolicyStore, StoredPolicy

_SETTINGS = [description.to_json() for description in DESCRIPTIONS]

_OBJECT = t.Mapping(t.String(allow_blank=True), t.Any)
_VERSION = t.String(max_length=64)

_PUT = t.Dict({t.Key("version"): _VERSION, t.Key("policy"): _OBJECT})
_PATCH = t.Dict({
    t.Key("version", optional=True, default=None): t.Null | _VERSION,
    t.Key("patch"): _OBJECT,
})


def _store(request: web.Request) -> PolicyStore:
    return PolicyStore(request.app["_root_app"]["_etcd"])


def _answer(stored: StoredPolicy) -> web.Response:
    return web.json_response({
        "version": stored.version,
        "policy": stored.document,
        "problem": stored.problem,
        "settings": _SETTINGS,
    })


@superadmin_required
async def get_policy(request: web.Request) -> web.Response:
    """``{"version", "policy", "problem", "settings"}``, as the OpenAPI document describes it."""
    return _answer(await _store(request).read())


@superadmin_required
async def put_policy(request: web.Request) -> web.Response:
    """Another policy in the place of the one of that version."""
    body: dict[str, Any] = await read_body(request, _PUT)
    return _answer(await _store(request).change(lambda _: body["policy"], body["version"]))


@superadmin_required
async def patch_policy(request: web.Request) -> web.Response:
    """The stored policy with some changes, as RFC 7396 writes them."""
    body: dict[str, Any] = await read_body(request, _PATCH)
    stored = await _store(request).change(
        lambda document: merge(document, body["patch"]), body["version"]
    )
    return _answer(stored)
