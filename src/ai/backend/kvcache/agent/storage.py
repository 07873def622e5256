"""Where a folder lies on this host, as its storage proxy says.

An answer is good for minutes: a folder does not move. While a proxy does not answer, the sessions
that start are told so at once, and do not each wait for it again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from ai.backend.common.etcd import AsyncEtcd

from ..errors import FolderError
from ..policy.place import Place
from ..policy.storage_proxy import TOKEN_HEADER, StorageProxy, read_storage_proxy

#: For asking etcd and the proxy, together. A session's start waits for it.
ASK_TIMEOUT_SECONDS = 4.0

#: One try of the proxy; a second one follows.
_TRY_SECONDS = 1.8

_TRIES = 2

ANSWER_SECONDS = 300.0
FAILURE_SECONDS = 10.0


@attrs.frozen
class _Answer:
    path: Path | None
    failure: str
    good_until: float


class StorageProxies:
    """Asks them, each time with the address and the secret that etcd has then."""

    def __init__(self, connect_etcd: Callable[[], AsyncEtcd]) -> None:
        self._connect_etcd = connect_etcd
        self._answers: dict[Place, _Answer] = {}
        self._locks: dict[Place, asyncio.Lock] = {}

    async def path_of(self, place: Place) -> Path:
        """The folder as a path of this host, which may not be there on this node.

        Raises:
            FolderError: it cannot be learnt, or there is no such folder.
        """
        async with self._locks.setdefault(place, asyncio.Lock()):
            answer = self._answers.get(place)
            if answer is None or answer.good_until <= time.monotonic():
                answer = self._answers[place] = await self._ask(place)
        if answer.path is None:
            raise FolderError(answer.failure)
        return answer.path

    async def _ask(self, place: Place) -> _Answer:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                path = await self._mount_path(place)
        except FolderError as e:
            return _Answer(None, str(e), time.monotonic() + FAILURE_SECONDS)
        except TimeoutError:
            failure = (
                f"etcd or the storage proxy {place.host.proxy!r} did not answer within "
                f"{ASK_TIMEOUT_SECONDS:.0f} s"
            )
            return _Answer(None, failure, time.monotonic() + FAILURE_SECONDS)
        return _Answer(path, "", time.monotonic() + ANSWER_SECONDS)

    async def _proxy(self, name: str) -> StorageProxy:
        try:
            async with self._connect_etcd() as etcd:
                found: Any = await etcd.get_prefix(f"volumes/proxies/{name}")
        except Exception as e:
            # Whatever its client raises, which has no base of its own.
            raise FolderError(f"etcd cannot be asked for the storage proxy {name!r}: {e!r}") from e
        proxy = read_storage_proxy(name, found)
        if proxy is None:
            raise FolderError(
                f"etcd has no volumes/proxies/{name} with manager_api and secret; correct the "
                "policy's folder or the storage proxy's entry"
            )
        return proxy

    async def _mount_path(self, place: Place) -> Path:
        proxy = await self._proxy(place.host.proxy)
        timeout = aiohttp.ClientTimeout(total=_TRY_SECONDS)
        connector = aiohttp.TCPConnector(ssl=proxy.verify)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            for left in reversed(range(_TRIES)):
                try:
                    return await self._try(http, proxy, place)
                except (aiohttp.ClientError, TimeoutError) as e:
                    if not left:
                        raise FolderError(
                            f"the storage proxy {place.host.proxy!r} does not answer ({e!r})"
                        ) from e
        raise AssertionError("not reached")

    async def _try(self, http: aiohttp.ClientSession, proxy: StorageProxy, place: Place) -> Path:
        body = {"volume": place.host.volume, "vfid": place.vfid, "subpath": "."}
        async with http.get(
            f"{proxy.address.rstrip('/')}/folder/mount",
            json=body,
            headers={TOKEN_HEADER: proxy.secret},
            # The secret is for this address alone.
            allow_redirects=False,
        ) as response:
            if response.status == 200:
                return _path_in(await response.read(), place)
            if response.status in (401, 403):
                raise FolderError(
                    f"the storage proxy {place.host.proxy!r} refuses the secret that etcd has for "
                    f"it (volumes/proxies/{place.host.proxy}/secret)"
                )
            if response.status in (400, 404, 410):
                raise FolderError(
                    f"the storage proxy {place.host.proxy!r} knows no folder {place}; "
                    "`backend.ai kvcache policy provision` makes one"
                )
            raise aiohttp.ClientError(f"status {response.status}")


def _path_in(content: bytes, place: Place) -> Path:
    """The path that an answer holds.

    Raises:
        FolderError: it holds none.
    """
    try:
        path = Path(json.loads(content)["path"])
    except (ValueError, RecursionError, LookupError, TypeError):
        path = None
    if path is None or not path.is_absolute():
        raise FolderError(
            f"the storage proxy {place.host.proxy!r} answers with no path for {place}; is "
            f"volumes/proxies/{place.host.proxy}/manager_api in etcd its address?"
        )
    return path
