"""The WebUI's page, through a real server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ai.backend.kvcache.manager.page import FILES, VERSION, get_page_file, get_page_version

# The manager's own way of marking a request.
pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")

WEBUI = Path(__file__).parents[3] / "src/ai/backend/kvcache/webui"

type Client = TestClient[web.Request, web.Application]


@web.middleware
async def sign(request: web.Request, handler: Any) -> web.StreamResponse:
    """What the manager's middleware says of a request that is signed."""
    request["is_authorized"] = "X-Signed" in request.headers
    response: web.StreamResponse = await handler(request)
    return response


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = web.Application(middlewares=[sign])
    app.router.add_get("/ui", get_page_version)
    app.router.add_get("/ui/{digest}/{name}", get_page_file)
    async with TestClient(TestServer(app)) as client:
        yield client


SIGNED = {"X-Signed": "yes"}


async def test_version_is_asked_for_each_time(client: Client) -> None:
    answer = await client.get("/ui", headers=SIGNED)
    assert await answer.json() == {"version": VERSION}
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("page.js", "text/javascript"),
        ("lit-html.js", "text/javascript"),
        ("page.css", "text/css"),
    ],
)
async def test_files_are_kept(client: Client, name: str, content_type: str) -> None:
    answer = await client.get(f"/ui/{VERSION}/{name}", headers=SIGNED)
    assert await answer.read() == (WEBUI / "page" / name).read_bytes()
    assert (answer.content_type, answer.charset) == (content_type, "utf-8")
    assert answer.headers["Cache-Control"] == "private, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path", ["0123456789abcdef/page.js", f"{VERSION}/other.js", f"{VERSION}/..%2Fkv-cache.js"]
)
async def test_no_other_files(client: Client, path: str) -> None:
    answer = await client.get(f"/ui/{path}", headers=SIGNED)
    assert answer.status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("path", ["/ui", f"/ui/{VERSION}/page.js"])
async def test_nothing_for_those_who_are_not_logged_in(client: Client, path: str) -> None:
    assert (await client.get(path)).status == HTTPStatus.UNAUTHORIZED


def test_files_find_each_other() -> None:
    for name, content in FILES.items():
        for imported in re.findall(r"""(?:from|import) '\./([^']+)'""", content.decode()):
            assert imported in FILES, name
    (stylesheet,) = re.findall(r"new URL\('([^']+)'", FILES["page.js"].decode())
    assert stylesheet in FILES
