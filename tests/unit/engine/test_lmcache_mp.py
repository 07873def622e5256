"""What LMCache's server is started with, and the script that starts it, run by a real shell.

LMCache is not installed here; a small server stands for it, which a `python3` of this test's own
starts. tests/engine runs the real one.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.engine.adapter import EngineRequest
from ai.backend.kvcache.engine.adapters.lmcache_mp import ADAPTER
from ai.backend.kvcache.engine.loopback import session_loopback
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.sizes import GIB

FILES = PurePosixPath("/home/config/kvcache")
WITH = str(FILES / "vllm.yaml")
ALONE = str(FILES / "vllm-alone.yaml")

REQUEST = EngineRequest(
    storage=PurePosixPath("/kvcache/ns/808bcad421012905df918cc88de71999"),
    files=FILES,
    session="5f0c2f3e-0000-4000-8000-000000000000",
    hash_seed=1,
    host_bytes=16 * GIB,
)


def request(lmcache: str, **changes: Any) -> EngineRequest:
    return attrs.evolve(REQUEST, versions=Versions({"lmcache": lmcache}), **changes)


def server_arguments(asked: EngineRequest) -> list[str]:
    launcher = ADAPTER.setup(asked).files["with-server.sh"]
    (line,) = [line for line in launcher.splitlines() if "http_server" in line]
    return shlex.split(line.partition("http_server")[2])


class TestServer:
    @pytest.mark.parametrize(
        ("lmcache", "on_gpus", "transfer"),
        [
            ("0.4.6", False, ("--transfer-mode", "non_gpu")),
            ("0.5.0", False, ("--supported-transfer-mode", "auto")),
            ("0.5.6", True, ("--supported-transfer-mode", "auto")),
        ],
    )
    def test_transfer_mode(self, lmcache: str, on_gpus: bool, transfer: tuple[str, str]) -> None:
        arguments = server_arguments(request(lmcache, on_gpus=on_gpus))
        assert arguments[arguments.index(transfer[0]) + 1] == transfer[1]

    @pytest.mark.parametrize(("on_gpus", "seconds"), [(False, 20), (True, 120)])
    def test_patience(self, on_gpus: bool, seconds: int) -> None:
        # An engine ends that waits in vain for the server to open its GPU memory.
        config = ADAPTER.setup(request("0.5.6", on_gpus=on_gpus)).kv_transfer_config
        assert config is not None
        assert config["kv_connector_extra_config"]["lmcache.mp.mq_timeout"] == seconds

    @pytest.mark.parametrize(
        ("lmcache", "seals"), [("0.4.6", False), ("0.5.3", False), ("0.5.4", True), ("0.5.6", True)]
    )
    def test_seal(self, lmcache: str, seals: bool) -> None:
        asked = request(lmcache)
        setup = ADAPTER.setup(asked)
        assert ("kv.key" in setup.files) is seals
        assert ("aesgcm" in " ".join(server_arguments(asked))) is seals
        assert ("aesgcm" in ADAPTER.storage_format(asked.versions)) is seals
        # Where it is missing, people are told.
        assert len(setup.warnings) == (0 if seals else 1)

    def test_memory(self) -> None:
        setup = ADAPTER.setup(REQUEST)
        arguments = server_arguments(REQUEST)
        assert arguments[arguments.index("--l1-size-gb") + 1] == "16"
        # Which lies in /dev/shm, with 1 GiB for the rest.
        assert setup.shared_memory_bytes == 17 * 2**30

    @pytest.mark.parametrize(
        ("io_threads", "storage"),
        [(None, {"type": "fs"}), (16, {"type": "fs_native", "num_workers": 16})],
    )
    def test_threads(self, io_threads: int | None, storage: dict[str, Any]) -> None:
        arguments = server_arguments(request("0.4.6", io_threads=io_threads))
        told = json.loads(arguments[arguments.index("--l2-adapter") + 1])
        assert told == {
            **storage,
            "base_path": str(REQUEST.storage),
            # A session's own, so that two that store one block do not write to one file.
            "relative_tmp_dir": ".tmp-5f0c2f3e-0000-4000-8000-000000000000",
        }

    def test_connection(self) -> None:
        setup = ADAPTER.setup(REQUEST)
        assert setup.kv_transfer_config is not None
        connection = setup.kv_transfer_config["kv_connector_extra_config"]
        arguments = server_arguments(REQUEST)
        told = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert connection["lmcache.mp.host"] == f"tcp://{told['--host']}"
        assert str(connection["lmcache.mp.port"]) == told["--port"]
        (metrics,) = setup.metrics
        assert (metrics.host, str(metrics.port)) == (told["--http-host"], told["--http-port"])

    @pytest.mark.parametrize(
        ("vllm", "is_named"), [("0.20.2", True), ("0.21.0", True), ("0.22.0", False)]
    )
    def test_module_of_the_connector(self, vllm: str, is_named: bool) -> None:
        setup = ADAPTER.setup(attrs.evolve(REQUEST, versions=Versions({"vllm": vllm})))
        assert setup.kv_transfer_config is not None
        assert ("kv_connector_module_path" in setup.kv_transfer_config) is is_named

    @pytest.mark.parametrize(
        ("vllm", "lmcache", "has"),
        [("0.32.0", "0.5.6", True), ("0.22.0", "0.5.0", True), ("0.20.2", "0.4.6", False),
         ("0.32.0", "0.4.6", False), ("0.21.0", "0.5.6", False)],
    )  # fmt: skip
    def test_hybrid_manager(self, vllm: str, lmcache: str, has: bool) -> None:
        versions = Versions({"vllm": vllm, "lmcache": lmcache})
        assert ADAPTER.has_hybrid_manager(versions) is has


class TestLoopback:
    def test_is_a_sessions_own(self) -> None:
        sessions = [f"5f0c2f3e-0000-4000-8000-{number:012}" for number in range(20_000)]
        places = {session_loopback(session) for session in sessions}
        assert len(places) == len(sessions)
        assert session_loopback(sessions[0]) == session_loopback(sessions[0])

    def test_stays_out_of_the_way(self) -> None:
        for number in range(2_000):
            place = session_loopback(str(number))
            first, second, third, fourth = map(int, place.host.split("."))
            assert first == 127
            assert 1 <= second <= 254
            assert 0 <= third <= 255
            assert 1 <= fourth <= 254
            assert place.ports[1] == place.ports[0] + 1
            # Linux takes ports for outgoing connections from 32768 on.
            assert 20_000 <= place.ports[0] < 32_000


#: Stands for LMCache's server: listens where it is told to, for as long as nobody ends it.
SERVER = """
import socket, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
server = socket.create_server((arguments["--http-host"], int(arguments["--http-port"])))
open(sys.path[0] + "/started", "w").close()
while True:
    server.accept()[0].close()
"""


@attrs.frozen
class Launcher:
    """The script, and a folder of programs that it finds first."""

    script: Path
    programs: Path

    def server(self, content: str) -> None:
        (self.programs / "server.py").write_text(content)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", self.script, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Launcher:
    asked = attrs.evolve(REQUEST, session=request.node.nodeid)
    script = tmp_path / "with-server.sh"
    script.write_text(ADAPTER.setup(asked).files["with-server.sh"])
    programs = tmp_path / "programs"
    programs.mkdir()
    python = programs / "python3"
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -m ] && {{ shift 2; exec {sys.executable} {programs}/server.py "$@"; }}\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return Launcher(script, programs)


class TestLauncher:
    def test_command_runs_beside_the_server(self, launcher: Launcher) -> None:
        launcher.server(SERVER)
        done = launcher.run("echo", "--config", WITH, "a b")
        assert done.stdout == f"--config {WITH} a b\n"
        assert done.stderr == ""
        assert (launcher.programs / "started").exists()

    def test_exit_status_is_the_commands(self, launcher: Launcher) -> None:
        launcher.server(SERVER)
        assert launcher.run("sh", "-c", "exit 7").returncode == 7

    def test_server_ends_with_the_command(self, launcher: Launcher) -> None:
        launcher.server(SERVER)
        launcher.run("true")
        deadline = time.monotonic() + 20
        pattern = str(launcher.programs / "server.py")
        while subprocess.run(["pgrep", "-f", pattern], capture_output=True).returncode == 0:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def test_server_that_ends_is_started_again(self, launcher: Launcher) -> None:
        launcher.server(
            SERVER.replace(
                "while True:",
                "import os, time\nstarts = sys.path[0] + '/starts'\n"
                "open(starts, 'a').write('x')\n"
                "if len(open(starts).read()) == 1: time.sleep(2); raise SystemExit\nwhile True:",
            )
        )
        # A second stands for ten of the pause; all else takes its time.
        slept, sleep = launcher.programs / "slept", launcher.programs / "sleep"
        sleep.write_text(
            f'#!/bin/sh\necho "$1" >> {slept}\n[ "$1" = 20 ] && exec /bin/sleep 2\n'
            'exec /bin/sleep "$1"\n'
        )
        sleep.chmod(0o755)
        launcher.run("sleep", "9")
        assert (launcher.programs / "starts").read_text() == "xx"
        # LMCache's connector asks every 10 s and waits 10 s: one that finds the server there again
        # before it has waited in vain would not register its KV cache with it.
        assert "20" in slept.read_text().split()

    @pytest.mark.parametrize(
        ("command", "printed"),
        [
            (("echo", "--config", WITH, "a  b"), f"--config {ALONE} a  b"),
            (
                ("sh", "-c", f"echo serve --config {WITH} --port 1"),
                f"serve --config {ALONE} --port 1",
            ),
            (("echo", "nothing", ""), "nothing "),
        ],
    )
    def test_without_a_server_the_command_runs_without_kv_cache(
        self, launcher: Launcher, command: tuple[str, ...], printed: str
    ) -> None:
        launcher.server("raise SystemExit(2)")
        done = launcher.run(*command)
        assert done.stdout == f"{printed}\n"
        assert "No KV cache" in done.stderr

    def test_python_of_the_engine(self, launcher: Launcher, tmp_path: Path) -> None:
        asked = tmp_path / "asked"
        python = tmp_path / "python3.12"
        python.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
        python.chmod(0o755)
        vllm = launcher.programs / "vllm"
        vllm.write_text(f"#!{python}\n")
        vllm.chmod(0o755)
        for command in (("vllm", "serve"), (str(python), "-m", "vllm")):
            launcher.run(*command)
            assert "-m lmcache.v1.multiprocess.http_server" in asked.read_text()
            asked.unlink()
