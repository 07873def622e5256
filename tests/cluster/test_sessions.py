"""Sessions of a real Backend.AI: what they are given, and that the others are left alone."""

from __future__ import annotations

import json
import os
import stat
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devcluster import command, configuration, etcd, lifecycle, settings
from devcluster.client import Client, connect, wait_until

from .conftest import (
    NO_MODEL_FOLDER,
    Folders,
    RunningSession,
    SessionStarter,
    running,
    started_by_hand,
)

#: Whatever the plugin ever sets.
OURS = ("LMCACHE_", "BACKENDAI_KVCACHE_", "PYTHONHASHSEED", "VLLM_")

#: Of GPUDirect Storage, on the host and in its containers.
DEVICE, CUFILE = Path("/dev/nvidia-fs0"), Path("/etc/cufile.json")


def set_by_us(environ: Iterable[str]) -> list[str]:
    """Of a session's variables those of the plugin, and not of whoever started the session."""
    return [n for n in environ if n.startswith(OURS) and n not in started_by_hand()]


class TestFolder:
    def test_found_by_path(self, start: SessionStarter, folders: Folders) -> None:
        session = start(folders.mounts)
        plan = session.plan()
        assert plan["kv_cache"] is True
        assert plan["folder"] == folders.kv
        assert plan["storage"] == f"/kvcache/ns/{plan['namespace']['name']}"
        # The same directory, from inside and from outside.
        session.run("touch", f"{plan['storage']}/chunk")
        assert (folders.kv_path / "ns" / plan["namespace"]["name"] / "chunk").exists()

    def test_found_by_name(self, start: SessionStarter, folders: Folders) -> None:
        session = start(
            {folders.kv: None, folders.model: "/models"},
            environ={"BACKENDAI_KVCACHE_FOLDER": folders.kv},
        )
        assert session.plan()["storage"].startswith(f"/home/work/{folders.kv}/ns/")


class TestSettings:
    _KEY = "config/plugins/accelerator/kvcache/policy"

    @pytest.fixture
    def mount_point(self) -> Iterator[str]:
        """Another mount point than the default, set in etcd while the agent runs."""
        etcd.put(self._KEY, '{"mount-point": "/elsewhere"}')
        yield "/elsewhere"
        etcd.delete(self._KEY)

    def test_agent_follows_a_change(
        self, mount_point: str, start: SessionStarter, folders: Folders
    ) -> None:
        session = start({folders.kv: mount_point, folders.model: "/models"})
        assert session.plan()["storage"].startswith("/elsewhere/ns/")


class TestGpus:
    """Eight mock GPUs of 80 GiB with the reference model."""

    def test_gds_path_and_buffer(self, start: SessionStarter, folders: Folders) -> None:
        session = start(folders.mounts, resources={"cuda.device": 8})
        plan = session.plan()
        for environ in (session.environ(), session.process_environ()):
            assert environ["LMCACHE_GDS_PATH"] == plan["storage"]
            # 2 contexts of 262,144 tokens x 45,056 bytes, 5 % more, in whole GiB: 24 GiB
            assert environ["LMCACHE_CUFILE_BUFFER_SIZE"] == "24576"
            assert environ["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
            assert environ["GPU_COUNT"] == "8"
        assert "--gpu-memory-utilization 0.6" in plan["add_by_hand"]

    def test_users_value_wins(self, start: SessionStarter, folders: Folders) -> None:
        session = start(
            folders.mounts,
            resources={"cuda.device": 8},
            environ={"LMCACHE_CUFILE_BUFFER_SIZE": "8192", "LMCACHE_CHUNK_SIZE": "512"},
        )
        environ = session.environ()
        assert environ["LMCACHE_CUFILE_BUFFER_SIZE"] == "8192"
        assert environ["LMCACHE_GDS_BUFFER_SIZE"] == "8192"
        assert environ["LMCACHE_CHUNK_SIZE"] == "512"
        why = {d["what"]: d["why"] for d in session.plan()["decisions"]}
        assert why["LMCACHE_CHUNK_SIZE"] == "set by the user"
        assert why["buffer"] == "set by the user in LMCACHE_CUFILE_BUFFER_SIZE"


@pytest.fixture
def direct_host() -> Iterator[None]:
    """A host whose NVMe is read without nvidia-fs, and a device of that driver's name besides.

    Without GPUs nothing opens them: what is seen is that they reach the container.
    """
    made = [path for path in (DEVICE, CUFILE) if not path.exists()]
    try:
        if DEVICE in made:
            os.mknod(DEVICE, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        if CUFILE in made:
            CUFILE.write_text('{"properties": {"use_pci_p2pdma": true}}')
        yield
    finally:
        for path in made:
            path.unlink(missing_ok=True)


class TestGpuDirectStorage:
    def test_container_has_what_it_needs(
        self, direct_host: None, start: SessionStarter, folders: Folders
    ) -> None:
        session = start(folders.mounts, resources={"cuda.device": 8})
        assert session.plan()["engine"] == "lmcache-gds"
        devices = session.inspect()["HostConfig"]["Devices"]
        assert [d for d in devices if d["PathOnHost"] == str(DEVICE)] == [
            {
                "PathOnHost": str(DEVICE),
                "PathInContainer": str(DEVICE),
                "CgroupPermissions": "rwm",
            }
        ]
        assert "character special" in session.run("stat", "--format", "%F", str(DEVICE))
        assert session.read(str(CUFILE)) == CUFILE.read_text()
        (mount,) = [m for m in session.inspect()["Mounts"] if m["Destination"] == str(CUFILE)]
        assert mount["RW"] is False


class TestSlot:
    """Only a session that requests the slot holds it, and gets what every other gets besides."""

    _SESSION = "query($id: UUID!) { compute_session(id: $id) { occupied_slots } }"
    _AGENTS = "query { agent_list(limit: 10, offset: 0) { items { occupied_slots } } }"

    def _held_by(self, client: Client, session: RunningSession) -> str | None:
        answer = client.api.Admin.query(self._SESSION, {"id": session.id})
        held: str | None = json.loads(answer["compute_session"]["occupied_slots"]).get(
            "kvcache.device"
        )
        return held

    def _held_on_the_agent(self) -> str:
        with connect("admin") as admin:
            (agent,) = admin.api.Admin.query(self._AGENTS, {})["agent_list"]["items"]
        return str(json.loads(agent["occupied_slots"])["kvcache.device"])

    def test_is_held_by_who_requests_it(
        self, client: Client, start: SessionStarter, folders: Folders
    ) -> None:
        plain = start(folders.mounts)
        assert self._held_by(client, plain) is None
        assert self._held_on_the_agent() == "0"
        session = start(folders.mounts, resources={"cuda.device": 8, "kvcache.device": 1})
        assert self._held_by(client, session) == "1"
        assert self._held_on_the_agent() == "1"
        plan = session.plan()
        assert plan["kv_cache"] is True
        assert session.environ()["LMCACHE_GDS_PATH"] == plan["storage"]
        client.stop_session(session.id)
        assert self._held_on_the_agent() == "0"


class TestSessionWithoutKVCache:
    def test_is_left_alone(self, start: SessionStarter, folders: Folders) -> None:
        session = start({folders.model: "/models"}, resources={"cuda.device": 1})
        assert not (session.config_dir / "kvcache").exists()
        for environ in (session.environ(), session.process_environ()):
            assert set_by_us(environ) == []
        facts = session.inspect()
        assert [m for m in facts["Mounts"] if "kvcache" in m["Destination"]] == []
        # Docker's and Backend.AI's default of 64 MiB
        assert facts["HostConfig"]["ShmSize"] == 67_108_864


class TestFaults:
    """The session runs, and its plan has the reason."""

    def test_read_only_folder(self, start: SessionStarter, folders: Folders) -> None:
        session = start(folders.mounts, read_only=(folders.kv,))
        plan = session.plan()
        assert plan["kv_cache"] is False
        assert "mounted read-only" in plan["no_kv_cache_because"]
        assert set_by_us(session.environ()) == []
        assert list(folders.kv_path.iterdir()) == []

    def test_no_model_folder(self, start: SessionStarter, folders: Folders) -> None:
        session = start({folders.kv: "/kvcache"})
        assert session.plan()["no_kv_cache_because"] == NO_MODEL_FOLDER


class TestAtTheSameTime:
    def test_two_sessions_do_not_see_each_others_plan(
        self, client: Client, folders: Folders
    ) -> None:
        def create(arguments: dict[str, Any]) -> str:
            with connect() as own:
                return own.start_session(**arguments)

        wanted: list[dict[str, Any]] = [
            {
                "name": "test-at-once-gpus",
                "mounts": folders.mounts,
                "resources": {"cuda.device": 8},
                "environ": started_by_hand(8),
            },
            {
                "name": "test-at-once-cpus",
                "mounts": folders.mounts,
                "environ": started_by_hand(),
            },
        ]
        with ThreadPoolExecutor(2) as executor:
            ids = list(executor.map(create, wanted))
        try:
            on_gpus, on_cpus = (running(client, session_id) for session_id in ids)
            assert on_gpus.plan()["engine"] == "lmcache-gds"
            assert on_cpus.plan()["engine"] == "lmcache-mp"
            for session in (on_gpus, on_cpus):
                assert session.plan()["kernel_id"] == session.kernel_id
            assert "LMCACHE_GDS_PATH" in on_gpus.environ()
            assert "LMCACHE_GDS_PATH" not in on_cpus.environ()
        finally:
            for session_id in ids:
                client.stop_session(session_id)


class TestMetrics:
    def test_reach_the_manager_and_outlive_the_agent(
        self, client: Client, start: SessionStarter, folders: Folders
    ) -> None:
        session = start(folders.mounts)
        storage = session.plan()["storage"]
        session.run("dd", "if=/dev/zero", f"of={storage}/chunk", "bs=1000", "count=5")
        self._wait_for_bytes(client, session, "5000")
        assert self._on_the_agents_page(session) == 5000
        session.run("dd", "if=/dev/zero", f"of={storage}/chunk", "bs=1000", "count=7")
        lifecycle.restart("agent")
        # A restarted agent starts from nothing, so that the new size shows at its first tick.
        self._wait_for_bytes(client, session, "7000")
        assert client.session(session.id)["status"] == "RUNNING"

    @staticmethod
    def _on_the_agents_page(session: RunningSession) -> float:
        url = f"http://{settings.HOST}:{settings.PORTS['agent_internal']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            page = response.read().decode()
        wanted = {
            "container_metric_name": "kvcache_mem",
            "value_type": "current",
            "kernel_id": session.kernel_id,
        }
        return next(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if wanted.items() <= sample.labels.items()
        )

    @staticmethod
    def _wait_for_bytes(client: Client, session: RunningSession, expected: str) -> None:
        def reported() -> bool | None:
            return client.live_stat(session.id).get("kvcache_mem") == expected or None

        wait_until(f"kvcache_mem = {expected} in live_stat", reported, timeout=120)

    def test_of_an_engine_that_is_not_there_are_absent(
        self, client: Client, start: SessionStarter, folders: Folders
    ) -> None:
        session = start(folders.mounts)
        self._wait_for_bytes(client, session, "0")
        ours = {n for n in client.live_stat(session.id) if n.startswith("kvcache")}
        expected = {
            "kvcache_transport": 1,
            "kvcache_mem": 0,
            "kvcache_files": 0,
            "kvcache_blocks": 0,
            "kvcache_unfinished": 0,
        }
        assert ours == set(expected)
        (status,) = json.loads(
            command.run(
                [
                    *(Path(sys.executable).with_name("backend.ai"), "kvcache"),
                    *("status", session.id, "--json"),
                ],
                env=configuration.client_environment("user"),
            )
        )
        assert status["figures"] == expected
        assert status["advice"] == []
        assert 0 < status["age_seconds"] < 3600
