"""Folders that the policy mounts: the real manager tells the project, the real agent mounts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import socketserver
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from ai.backend.kvcache.agent.storage import FAILURE_SECONDS
from devcluster import command, database, etcd, lifecycle, process, settings
from devcluster.client import Client, connect, wait_until

from .conftest import (
    PolicySetter,
    RunningSession,
    SessionStarter,
    kv_mounts,
    running,
    session_starter,
    started_by_hand,
)
from .projects import (
    OWN_PROJECT,
    USER,
    Project,
    ProjectFolder,
    find_project,
    new_vfolder,
)

#: What the user asks, where sessions have to ask.
ASKS = {"BACKENDAI_KVCACHE": "auto"}

STORAGE_PROXY = (settings.HOST, settings.PORTS["storage_manager"])

#: Clients look after their connections every 5 s, wait for 3 s, and for an answer 5 s more.
ETCD_PAUSE_SECONDS = 20.0


@contextmanager
def new_folder(project_name: str = "default") -> Iterator[ProjectFolder]:
    """One that no agent has asked for yet."""
    project = find_project(project_name)
    assert project is not None
    with new_vfolder(project, f"kv-{uuid.uuid4().hex[:8]}") as folder:
        yield folder


@pytest.fixture
def folder() -> Iterator[ProjectFolder]:
    with new_folder() as folder:
        yield folder


@pytest.fixture
def start(client: Client, folder: ProjectFolder) -> Iterator[SessionStarter]:
    """Its sessions end before the folder goes."""
    with session_starter(client) as start:
        yield start


@pytest.fixture
def model(model_folder: tuple[str, Path]) -> dict[str, str | None]:
    """All that a session mounts by itself."""
    return {model_folder[0]: "/models"}


#: Run in a session, as the container's root. It looks for a way out of the folder.
LOOK_AROUND = """
import json, os, pathlib, subprocess, sys
host_folder, hidden = sys.argv[1:]
ns = pathlib.Path(json.load(open("/home/config/kvcache/plan.json"))["storage"])
for name, target in {"up": "../../..", "scopes": "../../../..", "host": host_folder}.items():
    (ns / name).symlink_to(target)
mount = next(l.split() for l in open("/proc/self/mountinfo") if l.split()[4] == "/kvcache")
major, minor = map(int, mount[2].split(":"))

def outcome(action):
    try:
        return sorted(map(str, action()))
    except Exception as e:
        return type(e).__name__

def read_disk():
    # The file system below the folder, as a device of our own.
    os.mknod("/tmp/disk", 0o60600, os.makedev(major, minor))
    return open("/tmp/disk", "rb").read(1)

def seen():
    for top, directories, files in os.walk("/", followlinks=False):
        if top == "/":
            directories[:] = [d for d in directories if d not in ("proc", "sys")]
        yield from (os.path.join(top, f) for f in files + directories if f == hidden)

print(json.dumps({
    "folder": outcome(lambda: os.listdir("/kvcache")),
    "above": outcome(lambda: os.listdir("/kvcache/..")),
    "root": outcome(lambda: os.listdir("/")),
    "up": outcome(lambda: os.listdir(ns / "up")),
    "scopes": outcome(lambda: os.listdir(ns / "scopes")),
    "host": outcome(lambda: os.listdir(ns / "host")),
    "volumes": sorted(l.split()[4] for l in open("/proc/self/mountinfo") if "/scopes" in l),
    "remount": subprocess.run(["mount", "-o", "remount,rw", "/kvcache"]).returncode != 0,
    "disk": outcome(read_disk),
    "hidden": outcome(seen),
}))
"""


def assert_sees_nothing_else(session: RunningSession, folder: Path, hidden: str) -> None:
    """It looks around for a way into a folder, and for files of that name."""
    found = json.loads(session.run("python3", "-c", LOOK_AROUND, str(folder), hidden))
    assert found["folder"] == [".kvcache", "ns"]
    # ".." of a mount is the container's own directory above it, and so are links to there.
    assert found["above"] == found["up"] == found["scopes"] == found["root"]
    assert "kvcache" in found["root"]
    assert "scopes" not in found["root"]
    assert found["host"] == "FileNotFoundError"
    assert found["volumes"] == ["/kvcache"]
    assert found["remount"] is True
    assert found["disk"] == "PermissionError"
    assert found["hidden"] == []


class TestSessionThatAsks:
    """In explicit mode, where no other session gets a folder."""

    def test_gets_its_projects_part_of_the_folder_and_sees_nothing_else(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
    ) -> None:
        set_policy(folder.policy())
        session = start(model, environ=ASKS)
        scope = folder.path / "scopes" / folder.scope
        assert kv_mounts(session) == {"/kvcache": (str(scope), True)}
        plan = session.plan()
        assert plan["kv_cache"] is True
        namespace = f"ns/{plan['namespace']['name']}"
        assert plan["storage"] == f"/kvcache/{namespace}"
        session.run("touch", f"{plan['storage']}/chunk")
        assert (scope / namespace / "chunk").exists()

        hidden = f"hidden-{uuid.uuid4().hex}"
        for place in ("", "scopes", "scopes/project-of-others", "scopes/user-of-others/ns"):
            (folder.path / place).mkdir(parents=True, exist_ok=True)
            (folder.path / place / hidden).touch()
        assert_sees_nothing_else(session, folder.path, hidden)

    def test_the_others_are_left_alone(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
    ) -> None:
        set_policy(folder.policy())
        other = start(model)
        assert kv_mounts(other) == {}
        assert "kvcache" not in other.run("ls", "/home/config", "/")


#: Run in a session, as the container's root. It puts links to another folder in its own.
LINK_AWAY = """
import pathlib, shutil, sys
for name in (".kvcache", "ns"):
    shutil.rmtree(f"/kvcache/{name}")
    pathlib.Path("/kvcache", name).symlink_to(pathlib.Path(sys.argv[1], name))
"""


def tree(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Everything in it, with what would change where anybody writes."""
    found = {str(path): path.lstat() for path in (directory, *directory.rglob("*"))}
    return {name: (s.st_mode, s.st_uid, s.st_mtime_ns) for name, s in found.items()}


@contextmanager
def hidden_files(*directories: Path) -> Iterator[str]:
    """Files of a name that is nowhere else."""
    hidden = f"hidden-{uuid.uuid4().hex}"
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / hidden).touch()
    yield hidden
    for directory in directories:
        (directory / hidden).unlink()


class TestOtherUser:
    """Of the same project, and no member of another one, which has a folder too."""

    def test_reaches_neither_anothers_part_nor_another_projects_folder(
        self,
        folder: ProjectFolder,
        own_folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
        model_folder: tuple[str, Path],
    ) -> None:
        theirs = own_folder.path / "scopes" / own_folder.scope
        set_policy({
            "projects": {
                folder.project: {"folder": folder.place, "sharing": "user"},
                own_folder.project: {"folder": own_folder.place},
            }
        })
        session = start(model, environ=ASKS)
        (source, writable) = kv_mounts(session)["/kvcache"]
        assert writable
        assert Path(source) == folder.path / "scopes" / f"user-{USER}"
        kept = (own_folder.path, theirs / "ns", theirs / ".kvcache", Path(source))
        with (
            connect("other-user") as other_client,
            session_starter(other_client) as other_start,
            hidden_files(*kept) as hidden,
        ):
            path = other_client.ensure_folder("auto-mode-model", "model")
            shutil.copytree(model_folder[1], path, dirs_exist_ok=True)
            other = other_start({"auto-mode-model": "/models"}, environ=ASKS)
            (other_source, _) = kv_mounts(other)["/kvcache"]
            assert Path(other_source).parent == Path(source).parent
            assert other_source != source
            assert_sees_nothing_else(other, own_folder.path, hidden)

            # Nor does the agent go there for its next session, which is created as root.
            other.run("python3", "-c", LINK_AWAY, str(theirs))
            before = tree(own_folder.path)
            misled = other_start({"auto-mode-model": "/models"}, environ=ASKS)
            plan = misled.plan()
            assert "cannot be prepared" in plan["no_kv_cache_because"]
            assert kv_mounts(misled) == {}
            assert tree(own_folder.path) == before


class TestPolicyThatChanges:
    #: Twenty were run, in two minutes; tests/unit/agent has twenty kernels.
    SESSIONS = 4

    def test_each_session_has_one(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        model: dict[str, str | None],
    ) -> None:
        """They start while the policy changes several times a second."""
        with new_folder() as other:
            folders = {"one": folder, "two": other}
            policies = {
                name: {
                    **folders[name].policy(),
                    "mount-point": f"/kv-{name}",
                    "folder-name": f"folder-{name}",
                }
                for name in folders
            }
            set_policy(policies["one"])
            done = Event()

            def change() -> None:
                while not done.is_set():
                    for policy in policies.values():
                        set_policy(policy)
                        done.wait(0.1)

            def look(_: int) -> None:
                with connect() as own, session_starter(own) as start:
                    session = start(model, environ=ASKS)
                    plan = session.plan()
                    name = plan["folder"].removeprefix("folder-")
                    scope = folders[name].path / "scopes" / folders[name].scope
                    assert kv_mounts(session) == {f"/kv-{name}": (str(scope), True)}
                    assert plan["storage"] == f"/kv-{name}/ns/{plan['namespace']['name']}"
                    assert (scope / "ns" / plan["namespace"]["name"]).is_dir()

            changing = Thread(target=change)
            changing.start()
            try:
                with ThreadPoolExecutor(self.SESSIONS) as executor:
                    list(executor.map(look, range(self.SESSIONS)))
            finally:
                done.set()
                changing.join()


class SlowStorageProxy(socketserver.ThreadingTCPServer):
    """The storage proxy at a port of its own, where answers are held back."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((settings.HOST, 0), _HeldBack)
        self.delay_seconds = 5.0

    @property
    def address(self) -> str:
        return f"http://{settings.HOST}:{self.server_address[1]}"


class _HeldBack(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, SlowStorageProxy)
        with socket.create_connection(STORAGE_PROXY) as proxy:
            Thread(target=self._copy, args=(self.request, proxy, 0.0), daemon=True).start()
            self._copy(proxy, self.request, self.server.delay_seconds)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, delay_seconds: float) -> None:
        # Who has waited for long enough hangs up.
        with suppress(OSError):
            while content := source.recv(2**16):
                time.sleep(delay_seconds)
                target.sendall(content)


@contextmanager
def slow_storage_proxy() -> Iterator[SlowStorageProxy]:
    with SlowStorageProxy() as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@contextmanager
def storage_proxy_entry(name: str, address: str, secret: str) -> Iterator[str]:
    """The same storage proxy by another name, so that the manager goes on with its own.

    Yields the key of its secret.
    """
    entry = f"volumes/proxies/{name}"
    etcd.put(f"{entry}/manager_api", address)
    etcd.put(f"{entry}/secret", secret)
    try:
        yield f"{entry}/secret"
    finally:
        # With half an entry the manager does not start.
        etcd.delete(f"{entry}/manager_api")
        etcd.delete(f"{entry}/secret")


@contextmanager
def paused(name: str) -> Iterator[None]:
    """A service of the cluster takes connections, and answers nothing."""
    record = process.recorded(name)
    assert record is not None
    os.kill(record.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(record.pid, signal.SIGCONT)


def wait_for_another_try(*refused: RunningSession) -> None:
    """Until the agent asks again after a failure, which it remembers for a while."""
    plans = [session.config_dir / "kvcache" / "plan.json" for session in refused]
    made = max(plan.stat().st_mtime for plan in plans)
    time.sleep(max(0.0, made + FAILURE_SECONDS - time.time()))


def in_database(session_id: str) -> RunningSession | None:
    """A session that runs, where the manager itself cannot be asked. None: it does not yet."""
    row = database.query(
        f"SELECT id, container_id FROM kernels "
        f"WHERE session_id = '{session_id}' AND status = 'RUNNING'"
    ).strip()
    return RunningSession(session_id, *row.split("|")) if row else None


def containers_of(session_ids: Sequence[str]) -> list[str]:
    labels = [f"--filter=label=ai.backend.session-id={session_id}" for session_id in session_ids]
    return [c for label in labels for c in command.run(["docker", "ps", "-aq", label]).split()]


def are_scheduled(session_ids: Sequence[str]) -> bool | None:
    """Whether they have left the queue."""
    ids = ", ".join(f"'{session_id}'" for session_id in session_ids)
    waiting = database.query(
        f"SELECT count(*) FROM sessions WHERE id IN ({ids}) AND status = 'PENDING'"
    )
    return waiting.strip() == "0" or None


class TestFaults:
    """Sessions start without KV cache, say why, and have it again when it is over.

    Those of two projects start at the same time, and the agent is not restarted.
    """

    type Starter = Callable[..., list[str]]

    @pytest.fixture
    def other_folder(self, own_project: Project) -> Iterator[ProjectFolder]:
        with new_folder(own_project.name) as folder:
            yield folder

    @pytest.fixture
    def enqueue(
        self,
        client: Client,
        folder: ProjectFolder,
        other_folder: ProjectFolder,
        model: dict[str, str | None],
    ) -> Iterator[Starter]:
        """Asks for a session of each project; returns their ids. They end before the folders go."""
        enqueued: list[str] = []

        def enqueue(*projects: str) -> list[str]:
            for project in projects:
                name = f"auto-{uuid.uuid4().hex[:8]}"
                environ = {**started_by_hand(), **ASKS}
                enqueued.append(
                    client.start_session(name, project=project, mounts=model, environ=environ)
                )
            return enqueued[-len(projects) :]

        yield enqueue
        client.stop_sessions(enqueued)
        # What is seen of a session that is stopped is its end in the manager's database. An agent
        # that is restarted before the container has ended would leave it there.
        wait_until("The end of containers", lambda: not containers_of(enqueued) or None, 60)

    @staticmethod
    def reason(session: RunningSession) -> str:
        assert kv_mounts(session) == {}
        plan = session.plan()
        assert plan["kv_cache"] is False
        assert not [name for name in session.environ() if name.startswith(("LMCACHE_", "VLLM_"))]
        return str(plan["no_kv_cache_because"])

    @staticmethod
    def has_its_folder(session: RunningSession, folder: ProjectFolder) -> bool:
        mounts = {"/kvcache": (str(folder.path / "scopes" / folder.scope), True)}
        return bool(session.plan()["kv_cache"]) and kv_mounts(session) == mounts

    def test_of_a_secret_that_is_wrong_and_of_answers_after_five_seconds(
        self,
        client: Client,
        folder: ProjectFolder,
        other_folder: ProjectFolder,
        set_policy: PolicySetter,
        enqueue: Starter,
    ) -> None:
        address = "http://{}:{}".format(*STORAGE_PROXY)
        secret, wrong = settings.values()["storage_secret"], "what-was-the-secret-before"
        with (
            slow_storage_proxy() as slow,
            storage_proxy_entry("local-slow", slow.address, secret),
            storage_proxy_entry("local-again", address, wrong) as secret_key,
        ):
            places = {
                folder.project: {"folder": folder.at("local-again").place},
                other_folder.project: {"folder": other_folder.at("local-slow").place},
            }
            set_policy({"projects": places})
            ids = enqueue("default", OWN_PROJECT)
            refused, waited = (running(client, session_id) for session_id in ids)
            assert "'local-again' refuses the secret" in self.reason(refused)
            assert "'local-slow' does not answer (TimeoutError" in self.reason(waited)
            log = (settings.LOGS / "agent.log").read_text()
            assert wrong not in log
            assert secret not in log

            etcd.put(secret_key, secret)
            slow.delay_seconds = 0.0
            wait_for_another_try(refused, waited)
            ids = enqueue("default", OWN_PROJECT)
            first, second = (running(client, session_id) for session_id in ids)
            assert self.has_its_folder(first, folder)
            assert self.has_its_folder(second, other_folder)

    @pytest.fixture
    def watch_afterwards(self) -> Iterator[None]:
        """Backend.AI's watch of the policy may end, and later tests want to be followed at once."""
        yield
        lifecycle.restart("agent")

    def test_of_a_storage_proxy_that_is_down_and_of_etcd_that_hangs(
        self,
        # The first, so that the agent is not restarted before the sessions have ended.
        watch_afterwards: None,
        client: Client,
        folder: ProjectFolder,
        other_folder: ProjectFolder,
        set_policy: PolicySetter,
        enqueue: Starter,
    ) -> None:
        places = {f.project: {"folder": f.place} for f in (folder, other_folder)}
        set_policy({"projects": places})
        # The manager itself asks the storage proxy when a session is enqueued, seconds before an
        # agent creates it.
        (session_id,) = enqueue("default")
        service = lifecycle.find("storage-proxy")
        try:
            assert process.stop(service.name, service.stop_signal, service.stop_timeout)
            refused = running(client, session_id)
        finally:
            lifecycle.restart(service.name)
        assert "'local' does not answer" in self.reason(refused)
        wait_for_another_try(refused)
        (session_id,) = enqueue("default")
        assert self.has_its_folder(running(client, session_id), folder)

        # The manager asks etcd before it has scheduled a session, and not afterwards.
        ids = enqueue("default", OWN_PROJECT)
        wait_until("Both on their way to the agent", lambda: are_scheduled(ids), 30, every=0.05)
        with paused("etcd"):
            began = time.monotonic()
            known, unknown = (
                wait_until("A session without etcd", partial(in_database, i), 60, every=0.5)
                for i in ids
            )
            # Where the folder lies was asked a moment ago.
            assert self.has_its_folder(known, folder)
            assert "etcd or the storage proxy 'local' did not answer" in self.reason(unknown)
            # So long that clients have given up their connections, too.
            time.sleep(max(0.0, began + ETCD_PAUSE_SECONDS - time.monotonic()))
        set_policy({"folder-name": "after-all", "projects": places})
        # Backend.AI may not tell of it any more; the plugin looks at each tick.
        time.sleep(2 * settings.STAT_INTERVAL)
        (session_id,) = enqueue(OWN_PROJECT)
        session = running(client, session_id)
        assert self.has_its_folder(session, other_folder)
        assert session.plan()["folder"] == "after-all"
