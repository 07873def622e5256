"""The table of services: what runs, in which order, and how one knows that it works."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

from . import database, docker, environments, nudge, probes, webgateway
from .command import Argv
from .console import SetupError
from .process import Service
from .settings import AGENT_ID, CONFIG, CPU_OVERCOMMIT, DATA, HOST, PORTS, VENV, manager_url


def dockerd() -> Service:
    return Service("dockerd", [_program("dockerd")], docker.answers, stop_timeout=60.0)


def stores() -> list[Service]:
    """Where the daemons keep things. These need nothing but themselves."""
    return [_postgres(), _redis(), _etcd(), _prometheus()]


def daemons() -> list[list[Service]]:
    """Backend.AI, in groups; a group needs the ones before it, and starts all at once."""
    return [
        [_manager(), _storage_proxy(), _coordinator(), _nudge()],
        [_agent(), _worker()],
    ]


def web() -> list[list[Service]]:
    """The WebUI, in groups as the daemons: only who asks for it gets it."""
    return [[_gateway()], [_web_server()]]


def everything() -> list[Service]:
    """All services in the order of their start."""
    groups = [*daemons(), *web()]
    return [dockerd(), *stores(), *(service for group in groups for service in group)]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SetupError(f"The program {name} is missing; `./scripts/cluster up` installs it.")
    return found


def _postgres() -> Service:
    config = CONFIG / "postgresql.conf"
    program: Argv = [*database.as_its_user(), database.program("postgres")]
    return Service(
        "postgres",
        [*program, "-D", database.FOLDER, f"--config-file={config}"],
        database.answers,
        port=PORTS["postgres"],
        inputs=[config],
        # "Fast": do not wait for clients to leave.
        stop_signal=signal.SIGINT,
    )


def _redis() -> Service:
    config = CONFIG / "redis.conf"
    return Service(
        "redis",
        [_program("redis-server"), config],
        probes.redis_answers(PORTS["redis"]),
        port=PORTS["redis"],
        inputs=[config],
    )


def _etcd() -> Service:
    client = f"http://{HOST}:{PORTS['etcd']}"
    peer = f"http://{HOST}:{PORTS['etcd_peer']}"
    return Service(
        "etcd",
        [
            _program("etcd"),
            "--name=kvcache",
            f"--data-dir={DATA / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=kvcache={peer}",
        ],
        probes.http_answers(PORTS["etcd"], "/health"),
        port=PORTS["etcd"],
    )


def _prometheus() -> Service:
    config = CONFIG / "prometheus.yaml"
    return Service(
        "prometheus",
        [
            _program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={DATA / 'prometheus'}",
            f"--web.listen-address={HOST}:{PORTS['prometheus']}",
        ],
        probes.http_answers(PORTS["prometheus"], "/-/ready"),
        port=PORTS["prometheus"],
        inputs=[config],
    )


def _manager() -> Service:
    # It keeps to the last its port, so one that answers is ready.
    return _backendai("manager", "mgr", VENV, "manager.toml", "manager")


def _storage_proxy() -> Service:
    return _backendai("storage-proxy", "storage", VENV, "storage-proxy.toml", "storage_client")


def _agent() -> Service:
    return _backendai(
        "agent",
        "ag",
        VENV,
        "agent.toml",
        "agent_internal",
        extra_inputs=[CONFIG / "mock-accelerator.toml"],
        env={"BACKEND_CPU_OVERCOMMIT_FACTOR": str(CPU_OVERCOMMIT)},
    )


def _coordinator() -> Service:
    command, config = "app-proxy-coordinator", "app-proxy-coordinator.toml"
    return _backendai("coordinator", command, environments.appproxy(), config, "coordinator")


def _worker() -> Service:
    command, config = "app-proxy-worker", "app-proxy-worker.toml"
    return _backendai("worker", command, environments.appproxy(), config, "worker")


def _gateway() -> Service:
    supergraph, port = webgateway.SUPERGRAPH, PORTS["gateway"]
    return Service(
        "gateway",
        ["node", webgateway.FOLDER / "serve.mjs", supergraph, manager_url(), HOST, str(port)],
        probes.http_answers(port),
        port=port,
    )


def _web_server() -> Service:
    return _backendai("web-server", "web", VENV, "web-server.conf", "web")


def _backendai(
    name: str,
    command: str,
    venv: Path,
    config: str,
    port: str,
    *,
    extra_inputs: list[Path] | None = None,
    env: dict[str, str] | None = None,
) -> Service:
    """One of Backend.AI's daemons; all are started through its command line."""
    python: Argv = [venv / "bin" / "python", "-m", "ai.backend.cli"]
    return Service(
        name,
        [*python, command, "start-server", "-f", CONFIG / config],
        probes.http_answers(PORTS[port]),
        port=PORTS[port],
        # Left to itself, the storage proxy takes this folder relative to "/" and dies.
        env={"BACKENDAI_PROMETHEUS_DIR": str(DATA / "metrics" / name), **(env or {})},
        # The overlay's stamp changes with this repository's entry points.
        inputs=[CONFIG / config, VENV / "made-from", *(extra_inputs or [])],
        start_timeout=120.0,
    )


def _nudge() -> Service:
    script = Path(nudge.__file__)
    argv: Argv = [sys.executable, script, HOST, str(PORTS["redis"])]
    return Service("nudge", argv, lambda: True, inputs=[script])


def agent_is_known() -> bool:
    """Whether the manager has heard from the agent, so that sessions can be scheduled."""
    return database.query(f"SELECT status FROM agents WHERE id = '{AGENT_ID}'").strip() == "ALIVE"
