"""Sessions of a real Backend.AI: what they are given, and that the others are left alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from devcluster import lifecycle
from devcluster.client import Client, connect, wait_until

from .conftest import RunningSession, SessionStarter, running

#: Whatever the plugin ever sets.
OURS = ("LMCACHE_", "BACKENDAI_KVCACHE_", "PYTHONHASHSEED", "VLLM_")


class TestFolder:
    def test_found_by_path(
        self,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start({kv_folder[0]: "/kvcache", model_folder[0]: "/models"})
        plan = session.plan()
        assert plan["kv_cache"] is True
        assert plan["folder"] == kv_folder[0]
        assert plan["storage"] == f"/kvcache/ns/{plan['namespace']['name']}"
        # The same directory, from inside and from outside.
        session.run("touch", f"{plan['storage']}/chunk")
        assert (kv_folder[1] / "ns" / plan["namespace"]["name"] / "chunk").exists()

    def test_found_by_name(
        self,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start(
            {kv_folder[0]: None, model_folder[0]: "/models"},
            environ={"BACKENDAI_KVCACHE_FOLDER": kv_folder[0]},
        )
        assert session.plan()["storage"].startswith(f"/home/work/{kv_folder[0]}/ns/")


class TestGpus:
    """Eight mock GPUs of 80 GiB with the reference model."""

    def test_gds_path_and_buffer(
        self,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start(
            {kv_folder[0]: "/kvcache", model_folder[0]: "/models"}, resources={"cuda.device": 8}
        )
        plan = session.plan()
        for environ in (session.environ(), session.process_environ()):
            assert environ["LMCACHE_GDS_PATH"] == plan["storage"]
            # 2 contexts of 262,144 tokens x 45,056 bytes, 5 % more, in whole GiB: 24 GiB
            assert environ["LMCACHE_CUFILE_BUFFER_SIZE"] == "24576"
            assert environ["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
            assert environ["GPU_COUNT"] == "8"
        assert "--gpu-memory-utilization 0.6" in plan["add_by_hand"]

    def test_users_value_wins(
        self,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start(
            {kv_folder[0]: "/kvcache", model_folder[0]: "/models"},
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


class TestSessionWithoutKVCache:
    def test_is_left_alone(self, start: SessionStarter, model_folder: tuple[str, Path]) -> None:
        session = start({model_folder[0]: "/models"}, resources={"cuda.device": 1})
        assert not (session.config_dir / "kvcache").exists()
        for environ in (session.environ(), session.process_environ()):
            assert [name for name in environ if name.startswith(OURS)] == []
        facts = session.inspect()
        assert [m for m in facts["Mounts"] if "kvcache" in m["Destination"]] == []
        # Docker's and Backend.AI's default of 64 MiB
        assert facts["HostConfig"]["ShmSize"] == 67_108_864


class TestFaults:
    """The session runs, and its plan has the reason."""

    def test_read_only_folder(
        self,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start(
            {kv_folder[0]: "/kvcache", model_folder[0]: "/models"}, read_only=(kv_folder[0],)
        )
        plan = session.plan()
        assert plan["kv_cache"] is False
        assert "mounted read-only" in plan["no_kv_cache_because"]
        assert [n for n in session.environ() if n.startswith(OURS)] == []
        assert list(kv_folder[1].iterdir()) == []

    def test_no_model_folder(self, start: SessionStarter, kv_folder: tuple[str, Path]) -> None:
        session = start({kv_folder[0]: "/kvcache"})
        assert session.plan()["no_kv_cache_because"] == "the session has no model folder"


class TestAtTheSameTime:
    def test_two_sessions_do_not_see_each_others_plan(
        self, client: Client, kv_folder: tuple[str, Path], model_folder: tuple[str, Path]
    ) -> None:
        name, _ = kv_folder

        def create(arguments: dict[str, Any]) -> str:
            with connect() as own:
                return own.start_session(wait=False, **arguments)

        mounts = {name: "/kvcache", model_folder[0]: "/models"}
        wanted: list[dict[str, Any]] = [
            {"name": "test-at-once-gpus", "mounts": mounts, "resources": {"cuda.device": 8}},
            {"name": "test-at-once-cpus", "mounts": mounts},
        ]
        with ThreadPoolExecutor(2) as executor:
            ids = list(executor.map(create, wanted))
        try:
            on_gpus, on_cpus = (running(client, session_id) for session_id in ids)
            assert on_gpus.plan()["engine"] == "lmcache-inprocess-gds"
            assert on_cpus.plan()["engine"] == "lmcache-mp-fs"
            for session in (on_gpus, on_cpus):
                assert session.plan()["kernel_id"] == session.kernel_id
            assert "LMCACHE_GDS_PATH" in on_gpus.environ()
            assert "LMCACHE_GDS_PATH" not in on_cpus.environ()
        finally:
            for session_id in ids:
                client.stop_session(session_id)


class TestMetrics:
    def test_reach_the_manager_and_outlive_the_agent(
        self,
        client: Client,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start({kv_folder[0]: "/kvcache", model_folder[0]: "/models"})
        storage = session.plan()["storage"]
        session.run("dd", "if=/dev/zero", f"of={storage}/chunk", "bs=1000", "count=5")
        self._wait_for_bytes(client, session, "5000")
        session.run("dd", "if=/dev/zero", f"of={storage}/chunk", "bs=1000", "count=7")
        lifecycle.restart("agent")
        # A restarted agent starts from nothing, so that the new size shows at its first tick.
        self._wait_for_bytes(client, session, "7000")
        assert client.session(session.id)["status"] == "RUNNING"

    @staticmethod
    def _wait_for_bytes(client: Client, session: RunningSession, expected: str) -> None:
        def reported() -> bool | None:
            return client.live_stat(session.id).get("kvcache_mem") == expected or None

        wait_until(f"kvcache_mem = {expected} in live_stat", reported, timeout=120)

    def test_of_an_engine_that_is_not_there_are_absent(
        self,
        client: Client,
        start: SessionStarter,
        kv_folder: tuple[str, Path],
        model_folder: tuple[str, Path],
    ) -> None:
        session = start({kv_folder[0]: "/kvcache", model_folder[0]: "/models"})
        self._wait_for_bytes(client, session, "0")
        ours = {n for n in client.live_stat(session.id) if n.startswith("kvcache")}
        assert ours == {"kvcache_mem"}
