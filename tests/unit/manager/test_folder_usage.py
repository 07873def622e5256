"""The manager's own client against a server that answers as a storage proxy does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
from ai.backend.manager.config.unified import VolumesConfig
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.kvcache.manager import folder_usage
from ai.backend.kvcache.manager.folder_usage import CONCURRENT, FolderUsages, Usage
from ai.backend.kvcache.policy.place import Host, Place

SECRET = "of-the-proxy"


def place(number: int, proxy: str = "local") -> Place:
    vfid = f"project:2de2b969-1d04-48a6-af16-0bc8adb3c831/{number:032x}"
    return Place(Host(proxy, "volume1"), vfid)


FULL, OTHER, MISSING, HANGING = (place(number) for number in range(4))


class Proxy:
    """Counts how often it is asked for which folder."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0

    async def usage(self, request: web.Request) -> web.Response:
        assert request.headers["X-BackendAI-Storage-Auth-Token"] == SECRET
        body = await request.json()
        assert body["volume"] == "volume1"
        vfid = body["vfid"]
        self.asked[vfid] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(60 if vfid == HANGING.vfid else 0.01)
        self.at_once -= 1
        if vfid == MISSING.vfid:
            return web.json_response({"msg": "gone"}, status=HTTPStatus.NOT_FOUND)
        return web.json_response({"file_count": 3, "used_bytes": 14330})


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
async def usages(proxy: Proxy) -> AsyncIterator[FolderUsages]:
    app = web.Application()
    app.router.add_get("/folder/usage", proxy.usage)
    async with TestServer(app) as server:
        address = str(server.make_url("/"))
        local = {
            "client_api": address,
            "manager_api": address,
            "secret": SECRET,
            "ssl_verify": False,
        }
        yield FolderUsages(VolumesConfig.model_validate({"proxies": {"local": local}}))


async def test_as_the_proxy_counts(usages: FolderUsages) -> None:
    assert await usages.of([FULL]) == [Usage(used_bytes=14330, files=3)]


async def test_an_answer_is_good_for_a_while(proxy: Proxy, usages: FolderUsages) -> None:
    await asyncio.gather(usages.of([FULL]), usages.of([FULL, OTHER]), usages.of([OTHER, OTHER]))
    assert proxy.asked == {FULL.vfid: 1, OTHER.vfid: 1}


async def test_but_not_for_ever(
    proxy: Proxy, usages: FolderUsages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_usage, "ANSWER_SECONDS", 0.0)
    await usages.of([FULL])
    await usages.of([FULL])
    assert proxy.asked == {FULL.vfid: 2}


async def test_what_cannot_be_counted_does_not_hide_the_others(
    usages: FolderUsages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_usage, "USAGE_TIMEOUT_SECONDS", 0.5)
    places = [MISSING, HANGING, place(0, proxy="unknown"), FULL]
    assert await usages.of(places) == [Usage(), Usage(), Usage(), Usage(14330, 3)]


async def test_many_folders(proxy: Proxy, usages: FolderUsages) -> None:
    """All are counted, a few at a time."""
    places = [place(number) for number in range(100, 140)]
    assert await usages.of(places) == [Usage(14330, 3)] * 40
    assert proxy.most_at_once == CONCURRENT == 8
