"""The manager's own client against a server that answers as a storage proxy does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any

import attrs
import pytest
from ai.backend.manager.config.unified import VolumesConfig
from ai.backend.manager.errors.common import ServiceUnavailable
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.kvcache.manager import provisioned
from ai.backend.kvcache.manager.errors import InvalidRequestError
from ai.backend.kvcache.manager.provisioned import ProvisionedFolders
from ai.backend.kvcache.policy.place import Host, provisioned_place

SECRET = "of-the-proxy"
PLACE = provisioned_place(Host("local", "volume1"), "2de2b969-1d04-48a6-af16-0bc8adb3c831")

#: What a storage proxy of 26.4.16 answers for a folder that is not there, with status 400.
NO_FOLDER = {
    "type": "https://api.backend.ai/probs/storage/vfolder/not-found",
    "title": "VFolder not found",
    "error_code": "vfolder_read_not-found",
}


#: What it answers where allow-auto-quota-scope-creation is false.
NO_QUOTA_SCOPE = {
    "type": "https://api.backend.ai/probs/storage/quota/scope/not-found",
    "title": "Quota Scope Not Found",
    "error_code": "quota-scope_read_not-found",
}


@attrs.define
class Proxy:
    """Has folders, and removes one a while after it was told to."""

    folders: set[str] = attrs.field(factory=set)
    created: list[str] = attrs.field(factory=list)
    removal_seconds: float = 0.0
    is_broken: bool = False
    makes_quota_scopes: bool = True
    comes_second: bool = False
    """Whether somebody else makes each folder a moment before."""

    async def volumes(self, request: web.Request) -> web.Response:
        assert request.headers["X-BackendAI-Storage-Auth-Token"] == SECRET
        if self.is_broken:
            return web.Response(status=500, text="Server got itself in trouble")
        return web.json_response({"volumes": [{"name": "volume1"}, {"name": "fast"}]})

    async def mount(self, request: web.Request) -> web.Response:
        vfid = (await request.json())["vfid"]
        if vfid not in self.folders:
            return web.json_response(NO_FOLDER, status=HTTPStatus.BAD_REQUEST)
        return web.json_response({"path": "/somewhere"})

    async def create(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        if not self.makes_quota_scopes:
            return web.json_response(NO_QUOTA_SCOPE, status=HTTPStatus.NOT_FOUND)
        is_there = body["vfid"] in self.folders or self.comes_second
        self.folders.add(body["vfid"])
        if is_there:
            return web.Response(status=500, text="Server got itself in trouble")
        self.created.append(body["vfid"])
        return web.Response(status=204)

    async def delete(self, request: web.Request) -> web.Response:
        vfid = (await request.json())["vfid"]
        asyncio.get_running_loop().call_later(self.removal_seconds, self.folders.discard, vfid)
        return web.Response(status=204)


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


type Make = Callable[..., ProvisionedFolders]


@pytest.fixture
async def make_folders(proxy: Proxy) -> AsyncIterator[Make]:
    app = web.Application()
    app.router.add_get("/volumes", proxy.volumes)
    app.router.add_get("/folder/mount", proxy.mount)
    app.router.add_post("/folder/create", proxy.create)
    app.router.add_post("/folder/delete", proxy.delete)
    async with TestServer(app) as server:
        address = str(server.make_url("/"))

        def make(**volumes: Any) -> ProvisionedFolders:
            local = {
                "client_api": address,
                "manager_api": address,
                "secret": SECRET,
                "ssl_verify": False,
            }
            return ProvisionedFolders(
                VolumesConfig.model_validate({"proxies": {"local": local}, **volumes})
            )

        yield make


@pytest.fixture
def folders(make_folders: Make) -> ProvisionedFolders:
    return make_folders(default_host="local:fast")


class TestHost:
    def test_as_named_or_the_default(self, folders: ProvisionedFolders) -> None:
        assert folders.host("local:volume1") == Host("local", "volume1")
        assert folders.host(None) == Host("local", "fast")

    def test_no_default(self, make_folders: Make) -> None:
        with pytest.raises(InvalidRequestError, match="has no default storage host"):
            make_folders().host(None)

    @pytest.mark.parametrize(
        ("text", "message"),
        [("volume1", "must be a storage host"), ("vast:fast", "no storage proxy 'vast', only loc")],
    )
    def test_unusable(self, folders: ProvisionedFolders, text: str, message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            folders.host(text)


class TestMake:
    async def test_once(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        assert await folders.make(PLACE) is True
        assert await folders.make(PLACE) is False
        assert proxy.created == [PLACE.vfid]

    async def test_twice_at_the_same_time(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        proxy.comes_second = True
        assert await folders.make(PLACE) is False

    async def test_no_such_volume(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        place = attrs.evolve(PLACE, host=Host("local", "slow"))
        with pytest.raises(InvalidRequestError, match="no volume 'slow', only fast, volume1"):
            await folders.make(place)
        assert proxy.created == []

    async def test_no_quota_scope(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        proxy.makes_quota_scopes = False
        with pytest.raises(InvalidRequestError, match="allow-auto-quota-scope-creation") as raised:
            await folders.make(PLACE)
        assert PLACE.vfid.partition("/")[0] in str(raised.value)

    async def test_broken_proxy(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        proxy.is_broken = True
        with pytest.raises(ServiceUnavailable, match="the storage proxy 'local' fails"):
            await folders.make(PLACE)

    async def test_no_proxy(self, proxy: Proxy) -> None:
        closed = "http://127.0.0.1:1"
        local = {"client_api": closed, "manager_api": closed, "secret": SECRET}
        folders = ProvisionedFolders(VolumesConfig.model_validate({"proxies": {"local": local}}))
        with pytest.raises(ServiceUnavailable, match="the storage proxy 'local' fails"):
            await folders.make(PLACE)


class TestRemove:
    async def test_waits_for_it(self, proxy: Proxy, folders: ProvisionedFolders) -> None:
        proxy.removal_seconds = 0.2
        await folders.make(PLACE)
        assert await folders.remove(PLACE) is True
        assert proxy.folders == set()

    async def test_what_is_not_there(self, folders: ProvisionedFolders) -> None:
        assert await folders.remove(PLACE) is True

    async def test_that_takes_long(
        self, proxy: Proxy, folders: ProvisionedFolders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provisioned, "_REMOVAL_LOOK_SECONDS", 0.0)
        proxy.removal_seconds = 60.0
        await folders.make(PLACE)
        assert await folders.remove(PLACE) is False
