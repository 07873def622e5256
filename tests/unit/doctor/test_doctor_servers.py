"""etcd, storage proxies, Prometheus and the database, where they do not answer as they should.

That all is well with real ones is shown by tests/cluster/test_doctor.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.doctor import network
from ai.backend.kvcache.doctor.check import Role, Status, ok, skipped
from ai.backend.kvcache.doctor.config_file import ConfigError, ConfigFile
from ai.backend.kvcache.doctor.database import DatabaseError, ask
from ai.backend.kvcache.doctor.etcd import (
    EtcdContent,
    EtcdError,
    content_of,
    judge_content,
    judge_policy,
    look_at_etcd,
    read_etcd,
)
from ai.backend.kvcache.doctor.host import Host, this_host
from ai.backend.kvcache.doctor.loops import run
from ai.backend.kvcache.doctor.manager_api import Endpoint
from ai.backend.kvcache.doctor.manager_api import judge_answer as judge_manager
from ai.backend.kvcache.doctor.network import Answer, UnreachableError, get_json, public
from ai.backend.kvcache.doctor.prometheus import address_of
from ai.backend.kvcache.doctor.prometheus import judge_answer as judge_prometheus
from ai.backend.kvcache.doctor.storage_proxy import (
    ProxyAnswer,
    VolumeError,
    ask_storage_proxies,
    judge_answers,
    look_at_storage_proxies,
    path_of_volume,
    volumes_of,
)
from ai.backend.kvcache.policy.storage_proxy import StorageProxy

SECRET = "a-secret-of-this-test"
AGENT, MANAGER = frozenset({Role.AGENT}), frozenset({Role.MANAGER})

#: As a real storage proxy of Backend.AI 26.4.16 answers GET /volumes.
VOLUMES = {
    "volumes": [
        {
            "name": "volume1",
            "backend": "vfs",
            "path": "/vfroot/local",
            "fsprefix": ".",
            "capabilities": ["vfolder"],
        }
    ]
}
#: The same on a wrong secret, with status 403.
REFUSAL = {
    "type": "https://api.backend.ai/probs/storage/forbidden",
    "title": "Forbidden (invalid auth token)",
}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server never answers, the end of patience is what comes, sooner or later."""
    monkeypatch.setattr(network, "ANSWER_SECONDS", 1.0)


@attrs.define
class WebServer:
    """Answers as it is told, to those who know the secret."""

    port: int
    answers: dict[str, tuple[int, bytes]]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def web() -> Iterator[WebServer]:
    answers: dict[str, tuple[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            knows = self.headers.get("X-BackendAI-Storage-Auth-Token") in (None, SECRET)
            refusal = 403, json.dumps(REFUSAL).encode()
            status, body = answers.get(self.path, (404, b"")) if knows else refusal
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield WebServer(server.server_port, answers)
    server.shutdown()
    thread.join()
    server.server_close()


def proxy_at(port: int, secret: str = SECRET) -> StorageProxy:
    return StorageProxy("local", f"http://user:{SECRET}@127.0.0.1:{port}/", secret)


def judged(proxy: StorageProxy, roles: frozenset[Role] = MANAGER) -> Any:
    content = EtcdContent("local", ("e:2379",), proxies=(proxy,))
    return judge_answers(content, ask_storage_proxies([proxy]), roles)


class TestStorageProxy:
    def test_answers(self, web: WebServer) -> None:
        web.answers["/volumes"] = 200, json.dumps(VOLUMES).encode()
        proxy = proxy_at(web.port)
        assert judged(proxy) == ok(f"local at http://127.0.0.1:{web.port}/: volume1 (vfs)")
        answers = ask_storage_proxies([proxy])
        assert path_of_volume("local:volume1", answers) == Path("/vfroot/local")
        with pytest.raises(VolumeError, match="there is no volume 'x:y', only local:volume1"):
            path_of_volume("x:y", answers)

    def test_wrong_secret(self, web: WebServer) -> None:
        finding = judged(proxy_at(web.port, "another"))
        assert finding.status is Status.FAILED
        assert finding.text.endswith("it refuses the secret that etcd has for it")
        assert finding.remedy == (
            "make volumes/proxies/local/secret in etcd the same as [api.manager] secret of its "
            "storage-proxy.toml"
        )

    def test_closed_port(self, closed_port: int) -> None:
        finding = judged(proxy_at(closed_port))
        assert finding.text == f"local at http://127.0.0.1:{closed_port}/: nothing listens there"
        assert "volumes/proxies/local/manager_api" in finding.remedy

    def test_silent_server(self, silent_port: int) -> None:
        finding = judged(proxy_at(silent_port))
        assert finding.text == f"local at http://127.0.0.1:{silent_port}/: no answer within 1 s"

    @pytest.mark.parametrize(
        "body", [b"", b"<html>", b"{}", b'{"volumes": 1}', b"[]", b'{"volumes": [{"name": 1}]}']
    )
    def test_another_server(self, web: WebServer, body: bytes) -> None:
        web.answers["/volumes"] = 200, body
        assert judged(proxy_at(web.port)).text.endswith("status 200 and no list of volumes")

    def test_endless_answer(self, web: WebServer) -> None:
        web.answers["/volumes"] = 200, bytes(2**21)
        assert judged(proxy_at(web.port)).text.endswith("its answer has no end")

    def test_an_agent_can_do_without(self, closed_port: int) -> None:
        assert judged(proxy_at(closed_port), AGENT).status is Status.WARNING
        assert judged(proxy_at(closed_port), AGENT | MANAGER).status is Status.FAILED

    def test_none_and_incomplete(self) -> None:
        content = EtcdContent("local", ("e:2379",))
        assert judge_answers(content, (), MANAGER).text == "etcd knows none"
        content = attrs.evolve(content, incomplete_proxies=("nas",))
        finding = judge_answers(content, (), MANAGER)
        assert finding.text == "nas: etcd has no address or no secret of it"
        assert finding.remedy == "set volumes/proxies/nas/manager_api and secret in etcd"

    def test_volumes(self) -> None:
        (volume,) = volumes_of(VOLUMES) or ()
        assert (volume.name, volume.backend, volume.path) == (
            "volume1",
            "vfs",
            Path("/vfroot/local"),
        )

    def test_no_secret_is_shown(self, web: WebServer) -> None:
        web.answers["/volumes"] = 500, b""
        proxy = proxy_at(web.port)
        assert SECRET not in repr(judged(proxy))
        assert SECRET not in repr(attrs.evolve(proxy, address="http://h"))
        assert SECRET not in repr(ProxyAnswer(attrs.evolve(proxy, address="http://h"), "bad"))


def etcd_at(path: Path, address: str) -> ConfigFile:
    path.write_text(
        f'[etcd]\nnamespace = "local"\naddr = {address}\nuser = "u"\npassword = "{SECRET}"\n[agent]'
    )
    return ConfigFile(path)


def local(port: int) -> str:
    return f'{{ host = "127.0.0.1", port = {port} }}'


class TestEtcd:
    def test_closed_port(self, tmp_path: Path, closed_port: int) -> None:
        file = etcd_at(tmp_path / "agent.toml", local(closed_port))
        finding = look_at_etcd(Host(AGENT, "", agent_file=file))
        assert finding.status is Status.FAILED
        assert finding.text == (
            f"etcd cannot be reached: 127.0.0.1:{closed_port}: nothing listens there"
        )
        assert finding.remedy == (
            f"start it, open the way to it, or correct [etcd] addr in {file.path}"
        )

    def test_several_closed_ports(self, tmp_path: Path, closed_port: int) -> None:
        both = f"[{local(closed_port)}, {local(1)}]"
        with pytest.raises(EtcdError, match=r"listens there; 127\.0\.0\.1:1: nothing listens"):
            read_etcd(etcd_at(tmp_path / "agent.toml", both))

    def test_silent_server(self, tmp_path: Path, silent_port: int) -> None:
        with pytest.raises(EtcdError) as error:
            read_etcd(etcd_at(tmp_path / "agent.toml", local(silent_port)))
        assert f"127.0.0.1:{silent_port}" in str(error.value)
        assert SECRET not in str(error.value) + error.value.remedy

    def test_another_server(self, tmp_path: Path, web: WebServer) -> None:
        with pytest.raises(EtcdError, match=f"etcd at 127.0.0.1:{web.port} refuses: ") as error:
            read_etcd(etcd_at(tmp_path / "agent.toml", local(web.port)))
        assert SECRET not in str(error.value)

    def test_addresses_that_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(EtcdError, match=r"\[etcd\] of .* cannot be understood") as error:
            read_etcd(etcd_at(tmp_path / "agent.toml", f'"{SECRET}"'))
        assert SECRET not in str(error.value)

    def test_the_environment_wins(
        self, tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BACKEND_ETCD_ADDR", f"127.0.0.1:{closed_port}")
        with pytest.raises(EtcdError, match=f"127.0.0.1:{closed_port}: nothing listens"):
            read_etcd(etcd_at(tmp_path / "agent.toml", local(1)))

    def test_without_a_file(self) -> None:
        with pytest.raises(ConfigError):
            read_etcd(None)
        host = this_host([Role.AGENT])
        assert look_at_etcd(host) == skipped("no file of a daemon says where etcd is")
        assert look_at_storage_proxies(host).status is Status.SKIPPED

    def test_content(self) -> None:
        proxies = {
            "a": {"manager_api": "https://a", "secret": SECRET, "ssl_verify": "false"},
            "b": {"manager_api": "https://b"},
            "c": "odd",
        }
        content = content_of("ns", ("h:1",), {"proxies": proxies}, {}, ({}, {"addr": "p:1"}, "odd"))
        assert content.proxies == (StorageProxy("a", "https://a", SECRET, False),)
        assert content.incomplete_proxies == ("b", "c")
        assert content.metric == ({}, {"addr": "p:1"})
        assert judge_content(content) == ok("h:1, namespace 'ns'")
        assert SECRET not in repr(content)

    def test_of_another_namespace(self) -> None:
        finding = judge_content(content_of("other", ("h:1",), {}, {}, ()))
        assert finding.status is Status.FAILED
        assert finding.text == "h:1, namespace 'other' has no volumes"


class TestPolicy:
    def test_none(self) -> None:
        assert judge_policy({}) == ok("none is set, so every setting has its default")

    def test_unusable(self) -> None:
        finding = judge_policy({"policy": json.dumps({"transport": "carrier-pigeon"})})
        assert finding.status is Status.FAILED
        assert "carrier-pigeon" in finding.text

    def test_usable(self) -> None:
        assert judge_policy({"policy": json.dumps({"transport": "posix"})}) == ok("can be used")


class TestPrometheus:
    @pytest.mark.parametrize(
        ("levels", "address"),
        [
            ([], "127.0.0.1:9090"),
            ([{"addr": {"host": "p", "port": 1}}], "p:1"),
            (
                [{"addr": {"host": "p", "port": 1}}, {}, {"addr": "q:2"}, {"timewindow": "1m"}],
                "q:2",
            ),
            ([{"address": "r:3"}], "r:3"),
        ],
    )
    def test_address(self, levels: list[Mapping[str, Any]], address: str) -> None:
        assert address_of(levels) == address

    def test_answers(self) -> None:
        # As Prometheus 2.42 answers vector(1).
        body = {"status": "success", "data": {"resultType": "vector", "result": []}}
        assert judge_prometheus("p:1", Answer(200, body)) == ok("p:1")
        for answer in (Answer(404, None), Answer(200, ["odd"]), Answer(200, {"status": "error"})):
            assert judge_prometheus("p:1", answer).status is Status.WARNING


class TestManager:
    def test_answers(self) -> None:
        manager = Endpoint("http://u:p@m:1", is_webserver=False, verify=True)
        # As the manager of Backend.AI 26.4.16 answers.
        good = {"version": "v9.20250722", "manager": "26.4.16"}
        assert judge_manager(manager, Answer(200, good)) == ok("http://m:1, Backend.AI 26.4.16")
        old = judge_manager(manager, Answer(200, {**good, "manager": "25.15.3"}))
        assert old.text == "http://m:1, Backend.AI 25.15.3, is older than 26.4.16"
        for answer in (Answer(200, None), Answer(502, good), Answer(200, {"manager": 1})):
            assert judge_manager(manager, answer).status is Status.FAILED
        web = Endpoint("http://w", is_webserver=True, verify=True)
        assert judge_manager(web, Answer(200, None)).status is Status.OK
        assert judge_manager(web, Answer(502, None)).status is Status.FAILED


def database_at(tmp_path: Path, port: int | str) -> ConfigFile:
    path = tmp_path / "manager.toml"
    path.write_text(
        '[db]\ntype = "postgresql"\nname = "backend"\nuser = "u"\n'
        f'password = "{SECRET}"\naddr = {{ host = "127.0.0.1", port = {port} }}\n[manager]\n'
    )
    return ConfigFile(path)


class TestDatabase:
    def test_closed_port(self, tmp_path: Path, closed_port: int) -> None:
        with pytest.raises(DatabaseError) as error:
            ask(database_at(tmp_path, closed_port), "SELECT 1")
        assert str(error.value) == ("the manager's database cannot be asked: nothing listens there")
        assert error.value.remedy == (
            "start it, open the way to it, or correct [db] in manager.toml"
        )

    def test_silent_server(self, tmp_path: Path, silent_port: int) -> None:
        with pytest.raises(DatabaseError, match="no answer within 1 s"):
            ask(database_at(tmp_path, silent_port), "SELECT 1")

    def test_a_file_that_no_manager_takes(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseError) as error:
            ask(database_at(tmp_path, f'"{SECRET}"'), "SELECT 1")
        assert str(error.value) == (
            "the manager's database is described so that no manager would start"
        )


class TestNetwork:
    def test_addresses_are_shown_without_secrets(self) -> None:
        assert public("https://user:pass@word@host:1/path") == "https://host:1/path"
        assert public("https://host:1/") == "https://host:1/"

    @pytest.mark.parametrize(
        ("address", "reason"),
        [
            ("http://no-such-host.invalid", "its name is not known here"),
            ("not an address", "it is no address"),
        ],
    )
    def test_reasons(self, address: str, reason: str) -> None:
        with pytest.raises(UnreachableError, match=reason):
            run(get_json(address))

    def test_tls_where_there_is_none(self, web: WebServer) -> None:
        with pytest.raises(UnreachableError, match="TLS"):
            run(get_json(web.address.replace("http:", "https:")))

    def test_a_server_that_hangs_up(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()

            def hang_up() -> None:
                connection, _ = listener.accept()
                connection.close()

            thread = Thread(target=hang_up)
            thread.start()
            with pytest.raises(UnreachableError):
                run(get_json(f"http://127.0.0.1:{listener.getsockname()[1]}"))
            thread.join()
