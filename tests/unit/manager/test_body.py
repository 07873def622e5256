"""Bodies on their way through a real server."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
import trafaret as t
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ai.backend.kvcache.manager.body import MAX_BODY_BYTES, read_body

CHECK = t.Dict({
    t.Key("name"): t.String,
    t.Key("inner", optional=True): t.Dict({t.Key("size"): t.Null | t.String}),
})


@pytest.fixture
async def client() -> AsyncIterator[TestClient[web.Request, web.Application]]:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(await read_body(request, CHECK))

    app = web.Application()
    app.router.add_post("/", handler)
    async with TestClient(TestServer(app)) as client:
        yield client


type Client = TestClient[web.Request, web.Application]


async def answer(client: Client, content: bytes, **headers: str) -> tuple[int, Any]:
    async with client.post("/", data=content, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def refusal(client: Client, content: bytes, **headers: str) -> str:
    status, problem = await answer(client, content, **headers)
    assert status == HTTPStatus.BAD_REQUEST
    assert problem["error_code"] == "plugin_parsing_invalid-parameters"
    return str(problem["msg"])


class TestTaken:
    async def test_as_the_check_returns_it(self, client: Client) -> None:
        assert await answer(client, b'{"name": "x"}') == (200, {"name": "x"})

    async def test_compressed(self, client: Client) -> None:
        content = gzip.compress(b'{"name": "x"}')
        headers = {"Content-Encoding": "gzip"}
        assert await answer(client, content, **headers) == (200, {"name": "x"})


class TestRefused:
    async def test_no_json(self, client: Client) -> None:
        assert (await refusal(client, b"")).startswith("the body is no usable JSON: Expecting")

    async def test_every_wrong_part_is_named(self, client: Client) -> None:
        content = json.dumps({"inner": {"size": 1}, "other": 2}).encode()
        assert await refusal(client, content) == (
            "name: is required; inner.size: value should be None, and value is not a string; "
            "other: other is not allowed key"
        )

    async def test_no_object(self, client: Client) -> None:
        assert await refusal(client, b"[]") == "the body: value is not a dict"

    async def test_not_compressed_as_it_says(self, client: Client) -> None:
        headers = {"Content-Encoding": "gzip"}
        message = await refusal(client, b'{"name": "x"}', **headers)
        assert message == "the body is not compressed as its headers say"

    @pytest.mark.parametrize("compressed", [False, True])
    async def test_too_large(self, client: Client, compressed: bool) -> None:
        content = b'{"name": "%s"}' % (b"x" * MAX_BODY_BYTES)
        headers = {"Content-Encoding": "gzip"} if compressed else {}
        status, problem = await answer(
            client, gzip.compress(content) if compressed else content, **headers
        )
        assert status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert problem["msg"] == "more than 2097152 bytes"
