from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ai.backend.common.etcd import AsyncEtcd
from aiohttp import web

from ai.backend.kvcache.agent import storage
from ai.backend.kvcache.agent.plugin import _connect_etcd
from ai.backend.kvcache.agent.storage import StorageProxies
from ai.backend.kvcache.errors import FolderError
from ai.backend.kvcache.policy.place import Place, parse_place

from .storage_server import SECRET, Etcd, StorageProxy, serve

VFID = "project:2de2b969-1d04-48a6-af16-0bc8adb3c831/cebf99436f3746efb37451f346bdfd50"
PLACE = parse_place(f"local:volume1/{VFID}")
PATH = Path("/vol/ce/bf")


def asking(etcd: Any) -> StorageProxies:
    def connect() -> AsyncEtcd:
        client: AsyncEtcd = etcd
        return client

    return StorageProxies(connect)


@pytest.fixture
async def proxy() -> AsyncIterator[StorageProxy]:
    async with serve() as proxy:
        proxy.folders[VFID] = PATH
        yield proxy


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


async def failure_of(proxies: StorageProxies, place: Place = PLACE) -> str:
    with pytest.raises(FolderError) as caught:
        await proxies.path_of(place)
    return str(caught.value)


class TestAnswer:
    async def test_is_the_folders_path(self, proxy: StorageProxy) -> None:
        assert await asking(proxy.etcd()).path_of(PLACE) == PATH
        assert proxy.asked == [{"volume": "volume1", "vfid": VFID, "subpath": "."}]

    async def test_address_may_end_with_a_slash(self, proxy: StorageProxy) -> None:
        etcd = proxy.etcd(manager_api=f"{proxy.address}/")
        assert await asking(etcd).path_of(PLACE) == PATH

    async def test_is_remembered(self, proxy: StorageProxy) -> None:
        proxies = asking(proxy.etcd())
        for _ in range(3):
            await proxies.path_of(PLACE)
        assert len(proxy.asked) == 1

    async def test_twenty_at_once_ask_once(self, proxy: StorageProxy) -> None:
        proxy.delay_seconds = 0.1
        proxies = asking(proxy.etcd())
        paths = await asyncio.gather(*(proxies.path_of(PLACE) for _ in range(20)))
        assert paths == [PATH] * 20
        assert len(proxy.asked) == 1

    async def test_each_folder_has_its_own(self, proxy: StorageProxy) -> None:
        other = parse_place(f"local:volume1/user:{VFID.partition(':')[2]}")
        proxy.folders[other.vfid] = Path("/vol/other")
        proxies = asking(proxy.etcd())
        assert await proxies.path_of(PLACE) == PATH
        assert await proxies.path_of(other) == Path("/vol/other")

    async def test_second_try_helps(self, proxy: StorageProxy) -> None:
        answers = iter([web.Response(status=502), web.json_response({"path": str(PATH)})])
        proxy.answer = lambda: next(answers)
        assert await asking(proxy.etcd()).path_of(PLACE) == PATH


class TestFailure:
    async def test_folder_that_is_not_there(self, proxy: StorageProxy) -> None:
        proxy.folders.clear()
        failure = await failure_of(asking(proxy.etcd()))
        assert f"knows no folder {PLACE}" in failure
        assert "policy provision" in failure
        assert len(proxy.asked) == 1

    async def test_wrong_secret(self, proxy: StorageProxy) -> None:
        failure = await failure_of(asking(proxy.etcd(secret="another")))
        assert "refuses the secret" in failure
        assert "volumes/proxies/local/secret" in failure
        assert len(proxy.asked) == 1

    async def test_that_takes_five_seconds(self, proxy: StorageProxy) -> None:
        proxy.delay_seconds = 5
        async with asyncio.timeout(4.5):
            failure = await failure_of(asking(proxy.etcd()))
        assert "'local' does not answer (TimeoutError" in failure
        assert len(proxy.asked) == 2

    async def test_closed_port(self, closed_port: int) -> None:
        etcd = Etcd(manager_api=f"http://127.0.0.1:{closed_port}", secret=SECRET)
        assert "'local' does not answer (ClientConnectorError" in await failure_of(asking(etcd))

    @pytest.mark.parametrize(
        "content",
        ["", "{", "[]", "null", "{}", '{"path": 1}', '{"path": null}', '{"path": "."}', "[" * 9999]
    )  # fmt: skip
    @pytest.mark.parametrize("content_type", ["application/json", "text/html"])
    async def test_answer_that_is_none(
        self, proxy: StorageProxy, content: str, content_type: str
    ) -> None:
        proxy.answer = lambda: web.Response(text=content, content_type=content_type)
        assert "answers with no path" in await failure_of(asking(proxy.etcd()))

    async def test_answer_of_bytes_that_are_no_text(self, proxy: StorageProxy) -> None:
        proxy.answer = lambda: web.Response(body=b"\xff\xfe", content_type="application/json")
        assert "answers with no path" in await failure_of(asking(proxy.etcd()))

    async def test_fault_of_the_proxy(self, proxy: StorageProxy) -> None:
        proxy.answer = lambda: web.Response(status=500)
        assert "does not answer (ClientError('status 500'))" in await failure_of(
            asking(proxy.etcd())
        )

    async def test_secret_goes_to_no_other_address(self, proxy: StorageProxy) -> None:
        async with serve() as other:
            proxy.answer = lambda: web.Response(
                status=302, headers={"Location": f"{other.address}/folder/mount"}
            )
            assert "status 302" in await failure_of(asking(proxy.etcd()))
            assert other.asked == []

    @pytest.mark.parametrize("address", ["nonsense", "http://", "ftp://127.0.0.1/", "http://a:b"])
    async def test_address_that_is_none(self, address: str) -> None:
        etcd = Etcd(manager_api=address, secret=SECRET)
        assert "'local' does not answer" in await failure_of(asking(etcd))

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            {"secret": SECRET},
            {"manager_api": "http://127.0.0.1:1"},
            {"manager_api": "http://127.0.0.1:1", "secret": SECRET, "ssl_verify": SECRET},
        ],
    )
    async def test_entry_that_is_none(self, entry: dict[str, str]) -> None:
        failure = await failure_of(asking(Etcd(**entry)))
        assert "etcd has no volumes/proxies/local with manager_api and secret" in failure

    async def test_etcd_is_not_there(self, closed_port: int) -> None:
        etcd = {"namespace": "test", "addr": f"127.0.0.1:{closed_port}"}
        proxies = StorageProxies(partial(_connect_etcd, {"etcd": etcd}))
        async with asyncio.timeout(4.5):
            failure = await failure_of(proxies)
        assert "etcd" in failure

    async def test_etcd_hangs(self, proxy: StorageProxy) -> None:
        etcd = proxy.etcd()
        etcd.hangs = True
        async with asyncio.timeout(4.5):
            failure = await failure_of(asking(etcd))
        assert "etcd or the storage proxy 'local' did not answer within 4 s" in failure


class TestAfterAFailure:
    async def test_is_asked_again_after_a_while_and_not_before(
        self, proxy: StorageProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert storage.FAILURE_SECONDS == 10.0
        monkeypatch.setattr(storage, "FAILURE_SECONDS", 0.3)
        proxy.folders.clear()
        proxies = asking(proxy.etcd())
        first = await failure_of(proxies)
        proxy.folders[VFID] = PATH
        assert await failure_of(proxies) == first
        assert len(proxy.asked) == 1
        await asyncio.sleep(0.3)
        assert await proxies.path_of(PLACE) == PATH

    async def test_address_and_secret_are_read_anew(
        self, proxy: StorageProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage, "FAILURE_SECONDS", 0.0)
        etcd = proxy.etcd(secret="another")
        proxies = asking(etcd)
        await failure_of(proxies)
        etcd.entry["secret"] = SECRET
        assert await proxies.path_of(PLACE) == PATH


class TestEncryption:
    @pytest.fixture
    async def encrypted(self, tmp_path: Path) -> AsyncIterator[StorageProxy]:
        """With a certificate that nobody vouches for."""
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not there to make a certificate")
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        command = [
            *("openssl", "req", "-x509", "-nodes", "-subj", "/CN=proxy"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ]
        subprocess.run(command, check=True, capture_output=True)  # noqa: ASYNC221
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        async with serve(tls) as proxy:
            proxy.folders[VFID] = PATH
            yield proxy

    @pytest.mark.parametrize("said", [{}, {"ssl_verify": "true"}])
    async def test_strangers_are_not_told_the_secret(
        self, encrypted: StorageProxy, said: dict[str, str]
    ) -> None:
        failure = await failure_of(asking(encrypted.etcd(**said)))
        assert "ClientConnectorCertificateError" in failure
        assert encrypted.asked == []

    async def test_unless_the_administrator_says_so(self, encrypted: StorageProxy) -> None:
        assert await asking(encrypted.etcd(ssl_verify="false")).path_of(PLACE) == PATH


class TestSecret:
    async def test_is_nowhere(
        self, proxy: StorageProxy, caplog: pytest.LogCaptureFixture, closed_port: int
    ) -> None:
        caplog.set_level(logging.DEBUG)
        etcds = [
            proxy.etcd(),
            proxy.etcd(manager_api=f"http://127.0.0.1:{closed_port}"),
            proxy.etcd(ssl_verify=SECRET),
            Etcd(secret=SECRET),
        ]
        answers = [
            None,
            lambda: web.Response(status=403, text=SECRET),
            lambda: web.Response(text=json.dumps({"secret": SECRET})),
            lambda: web.Response(status=500, text=SECRET, reason=SECRET),
        ]
        said: list[Any] = []
        for etcd in etcds:
            for answer in answers:
                proxy.answer = answer
                proxies = asking(etcd)
                said.append(await asyncio.gather(proxies.path_of(PLACE), return_exceptions=True))
                said.append(vars(proxies))
        said.append(await asking(proxy.etcd())._proxy("local"))
        assert SECRET not in repr(said)
        assert SECRET not in caplog.text
