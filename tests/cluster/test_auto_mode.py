"""Folders that the policy mounts: the real manager tells the project, the real agent mounts."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.agent.storage import FAILURE_SECONDS
from ai.backend.kvcache.policy.policy import ETCD_KEY
from devcluster import command, etcd, lifecycle, process, settings
from devcluster.client import Client, connect, model_definition, wait_until

from .conftest import RunningSession, SessionStarter, running, session_starter

#: What the user asks, where sessions have to ask.
ASKS = {"BACKENDAI_KVCACHE": "auto"}


@attrs.frozen
class ProjectFolder:
    """A folder of the project's own."""

    project: str
    host: str
    vfid: str

    @property
    def place(self) -> str:
        return f"{self.host}/{self.vfid}"

    @property
    def path(self) -> Path:
        """On this machine."""
        scope, _, folder = self.vfid.partition(":")[2].partition("/")
        return settings.VOLUME / scope.replace("-", "") / folder[:2] / folder[2:4] / folder[4:]

    @property
    def scope(self) -> str:
        return f"project-{self.project}"

    def policy(self, **site: Any) -> dict[str, Any]:
        return {**site, "projects": {self.project: {"folder": self.place}}}


@contextmanager
def new_project_folder() -> Iterator[ProjectFolder]:
    name = f"kv-{uuid.uuid4().hex[:8]}"
    # Of several clients that are open, the last one's keys count, so this one does not stay open.
    with connect("admin") as admin:
        groups = admin.api.Admin.query("query { groups { id name } }", {})["groups"]
        (project,) = (group["id"] for group in groups if group["name"] == "default")
        made = admin.api.VFolder.create(name, group=project, usage_mode="general")
    folder_id = made["id"].replace("-", "")
    yield ProjectFolder(project, made["host"], f"{made['quota_scope_id']}/{folder_id}")
    with connect("admin") as admin:
        admin.api.VFolder(name).delete()


@pytest.fixture
def folder() -> Iterator[ProjectFolder]:
    with new_project_folder() as folder:
        yield folder


type PolicySetter = Callable[[Any], None]


@pytest.fixture
def set_policy() -> Iterator[PolicySetter]:
    yield lambda policy: etcd.put(ETCD_KEY, json.dumps(policy))
    etcd.delete(ETCD_KEY)


@pytest.fixture
def start(client: Client, folder: ProjectFolder) -> Iterator[SessionStarter]:
    """Its sessions end before the folder goes."""
    with session_starter(client) as start:
        yield start


@pytest.fixture
def model(model_folder: tuple[str, Path]) -> dict[str, str | None]:
    """All that a session mounts by itself."""
    return {model_folder[0]: "/models"}


def kv_mounts(session: RunningSession) -> dict[str, tuple[str, bool]]:
    """Where folders of the volume are in the container → (which, writable), without the model."""
    return {
        mount["Destination"]: (mount["Source"], mount["RW"])
        for mount in session.inspect()["Mounts"]
        if mount["Source"].startswith(f"{settings.VOLUME}/") and mount["Destination"] != "/models"
    }


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


class TestSessionThatAsks:
    """In explicit mode, where no other session gets a folder."""

    @pytest.fixture
    def session(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
    ) -> RunningSession:
        set_policy(folder.policy())
        return start(model, environ=ASKS)

    def test_gets_its_projects_part_of_the_folder_and_sees_nothing_else(
        self, session: RunningSession, folder: ProjectFolder
    ) -> None:
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
        found = json.loads(session.run("python3", "-c", LOOK_AROUND, str(folder.path), hidden))
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

    def test_the_others_are_left_alone(
        self, session: RunningSession, start: SessionStarter, model: dict[str, str | None]
    ) -> None:
        other = start(model)
        assert kv_mounts(other) == {}
        assert "kvcache" not in other.run("ls", "/home/config", "/")


class TestUsers:
    def test_do_not_see_each_others_part(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
        model_folder: tuple[str, Path],
    ) -> None:
        set_policy(folder.policy(sharing="user"))
        session = start(model, environ=ASKS)
        (source, writable) = kv_mounts(session)["/kvcache"]
        assert writable
        assert Path(source).parent == folder.path / "scopes"
        assert Path(source).name.startswith("user-")
        with connect("other-user") as other_client:
            path = other_client.ensure_folder("auto-mode-model", "model")
            shutil.copytree(model_folder[1], path, dirs_exist_ok=True)
            with session_starter(other_client) as other_start:
                other = other_start({"auto-mode-model": "/models"}, environ=ASKS)
                (other_source, _) = kv_mounts(other)["/kvcache"]
        assert Path(other_source).parent == Path(source).parent
        assert other_source != source


class TestService:
    def test_gets_the_folder_without_asking(
        self,
        client: Client,
        image: str,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        model_folder: tuple[str, Path],
    ) -> None:
        """Its model has no weights, so the engine ends; that it is told can be seen anyway."""
        set_policy(folder.policy(mode="auto"))
        path = client.ensure_folder("auto-mode-model", "model")
        shutil.copytree(model_folder[1], path, dirs_exist_ok=True)
        start = ["vllm", "serve", "{model_path}"]
        (path / "model-definition.yaml").write_text(model_definition(start))
        service = client.ensure_service(
            f"auto-{uuid.uuid4().hex[:8]}",
            image=f"local/{image}",
            model_id_or_name="auto-mode-model",
            model_definition_path="model-definition.yaml",
            extra_mounts=[],
            extra_mount_map={},
            # As little as the image allows.
            resources={"cpu": 1, "mem": "5g"},
            resource_opts={},
            runtime_variant="custom",
        )
        try:
            session_id = wait_until(
                "The service's session", lambda: client.service_session(service), timeout=240
            )
            session = running(client, session_id)
            scope = folder.path / "scopes" / folder.scope
            assert kv_mounts(session) == {"/kvcache": (str(scope), True)}
            plan = session.plan()
            assert plan["kv_cache"] is True
            assert plan["storage"] == f"/kvcache/ns/{plan['namespace']['name']}"
            assert (scope / "ns" / plan["namespace"]["name"]).is_dir()

            def started() -> str | None:
                processes = command.run(["docker", "top", session.container_id, "-eo", "pid,args"])
                return next((p for p in processes.splitlines() if "vllm serve" in p), None)

            assert "--config /home/config/kvcache/vllm.yaml" in wait_until(
                "vLLM", started, timeout=60, every=0.2
            )
        finally:
            client.delete_service(service)


class TestPolicyThatChanges:
    def test_each_session_has_one(
        self,
        client: Client,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        model: dict[str, str | None],
    ) -> None:
        """Four start while the policy changes several times a second."""
        with new_project_folder() as other:
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

            def create(name: str) -> str:
                with connect() as own:
                    return own.start_session(name, mounts=model, environ=ASKS)

            changing = Thread(target=change)
            changing.start()
            names = [f"auto-{uuid.uuid4().hex[:8]}" for _ in range(4)]
            ids: list[str] = []
            try:
                with ThreadPoolExecutor(4) as executor:
                    ids = list(executor.map(create, names))
                sessions = [running(client, session_id) for session_id in ids]
                for session in sessions:
                    plan = session.plan()
                    name = plan["folder"].removeprefix("folder-")
                    scope = folders[name].path / "scopes" / folders[name].scope
                    assert kv_mounts(session) == {f"/kv-{name}": (str(scope), True)}
                    assert plan["storage"] == f"/kv-{name}/ns/{plan['namespace']['name']}"
                    assert (scope / "ns" / plan["namespace"]["name"]).is_dir()
            finally:
                done.set()
                changing.join()
                for session_id in ids:
                    client.stop_session(session_id)


class TestFaults:
    """Sessions start without KV cache, say why, and have it again when it is over."""

    @staticmethod
    def reason(session: RunningSession) -> str:
        assert kv_mounts(session) == {}
        plan = session.plan()
        assert plan["kv_cache"] is False
        assert not [name for name in session.environ() if name.startswith(("LMCACHE_", "VLLM_"))]
        return str(plan["no_kv_cache_because"])

    def test_of_a_secret_that_is_wrong(
        self,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
    ) -> None:
        # The same storage proxy by another name, so that the manager goes on with its own.
        entry = "volumes/proxies/local-again"
        again = attrs.evolve(folder, host=folder.host.replace("local:", "local-again:"))
        etcd.put(
            f"{entry}/manager_api", f"http://{settings.HOST}:{settings.PORTS['storage_manager']}"
        )
        etcd.put(f"{entry}/secret", "what-was-the-secret-before")
        try:
            set_policy(again.policy())
            session = start(model, environ=ASKS)
            assert "'local-again' refuses the secret" in self.reason(session)
            assert "what-was-the-secret-before" not in (settings.LOGS / "agent.log").read_text()
            etcd.put(f"{entry}/secret", settings.values()["storage_secret"])
            time.sleep(FAILURE_SECONDS)
            assert start(model, environ=ASKS).plan()["kv_cache"] is True
        finally:
            etcd.delete(f"{entry}/manager_api")
            etcd.delete(f"{entry}/secret")

    def test_of_a_storage_proxy_that_is_down(
        self,
        client: Client,
        folder: ProjectFolder,
        set_policy: PolicySetter,
        start: SessionStarter,
        model: dict[str, str | None],
    ) -> None:
        set_policy(folder.policy())
        # The manager itself asks the storage proxy when a session is enqueued, seconds before an
        # agent creates it.
        name = f"auto-{uuid.uuid4().hex[:8]}"
        session_id = client.start_session(name, mounts=model, environ=ASKS)
        service = lifecycle.find("storage-proxy")
        try:
            assert process.stop(service.name, service.stop_signal, service.stop_timeout)
            reason = self.reason(running(client, session_id))
        finally:
            lifecycle.restart(service.name)
            client.stop_session(session_id)
        assert "'local' does not answer" in reason
        time.sleep(FAILURE_SECONDS)
        assert start(model, environ=ASKS).plan()["kv_cache"] is True
