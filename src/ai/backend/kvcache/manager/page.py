"""The files of the WebUI's page, whose stub (``webui/kv-cache.js``) lies on the web server."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import xxhash
from ai.backend.manager.api.rest.middleware.auth import auth_required
from aiohttp import web

from .errors import NoSuchPageFileError

_CONTENT_TYPES: Mapping[str, str] = {".js": "text/javascript", ".css": "text/css"}

#: Name → content. Read once, so that an upgrade under a running manager does not mix two versions.
FILES: Mapping[str, bytes] = {
    file.name: file.read_bytes()
    for file in sorted(
        files("ai.backend.kvcache").joinpath("webui", "page").iterdir(), key=lambda f: f.name
    )
}


def _version(contents: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_64()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


#: Of all files together, since they import each other.
VERSION = _version(FILES)


@auth_required
async def get_page_version(_request: web.Request) -> web.Response:
    """``{"version"}``: which files are the page's now."""
    return web.json_response({"version": VERSION}, headers={"Cache-Control": "no-store"})


@auth_required
async def get_page_file(request: web.Request) -> web.Response:
    """One file of the page, to be kept for ever by whoever asked. 404: it is of another version."""
    name = request.match_info["name"]
    # Not called "version" in the path: the manager would take it for that of its API.
    if request.match_info["digest"] != VERSION or name not in FILES:
        raise NoSuchPageFileError
    return web.Response(
        body=FILES[name],
        content_type=_CONTENT_TYPES[name[name.rindex(".") :]],
        charset="utf-8",
        headers={"Cache-Control": "private, max-age=31536000, immutable"},
    )
