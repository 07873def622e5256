"""A session as the plugin prepares it, in a container of its own, without Backend.AI around it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import attrs

from ai.backend.kvcache.agent.apply import docker_arguments, write_files
from ai.backend.kvcache.engine.adapters.lmcache_mp import KEY_FILE, seal_of
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.plan.decide import Preparation, prepare
from ai.backend.kvcache.plan.session import Image, Mount, Service, Session
from ai.backend.kvcache.plan.tell import FILES_DIRECTORY
from ai.backend.kvcache.policy.settings import Settings

from .engine_container import EngineContainer, docker, log_of, started, wait_until_ready

SERVED_NAME = "tiny"
_DEFAULTS = Settings()

#: Of the engine's image (images/vllm-cpu), which every session of this run has.
_IMAGE = Image(
    "engine-of-this-test",
    {
        "ai.backend.kvcache.engine-version": "0.32.0",
        "ai.backend.kvcache.lmcache-version": "0.5.6",
    },
)


def session_of(
    model: Path, folder: Path, *, at: str, arguments: tuple[str, ...], image: Image = _IMAGE
) -> Session:
    """A model service without GPUs.

    Args:
        model: the model's folder on this host.
        folder: the KV folder on this host.
        at: where the model is mounted.
        arguments: of ``vllm serve``, behind the model.
        image: what is known of the engine.
    """
    path = PurePosixPath(at)
    command = ("vllm", "serve", "{model_path}", "--served-model-name", SERVED_NAME)
    return Session(
        kernel_id=str(uuid.uuid4()),
        mounts=(
            Mount("model", model, path, writable=False, is_model=True),
            Mount("kv", folder, Settings().mount_point, writable=True, is_model=False),
        ),
        environ={},
        image=image,
        gpus=None,
        service=Service((*command, "--enforce-eager", *arguments), path),
        owner=Owner(),
        shared_memory_bytes=None,
        user_id="f38dea23-50fa-42a0-b5ae-338f5f4693f4",
    )


def prepared(session: Session, settings: Settings = _DEFAULTS) -> Preparation:
    """What the plugin makes of it."""
    preparation = prepare(session, settings)
    assert preparation.plan.no_kv_cache_because is None, preparation.plan.no_kv_cache_because
    return preparation


def in_namespace(preparation: Preparation, namespace: str) -> Preparation:
    """The same session in a namespace that is not its own, as if there were none."""
    assert preparation.plan.namespace is not None
    own = preparation.plan.namespace.name
    files = {name: text.replace(own, namespace) for name, text in preparation.files.items()}
    # With the seal of its own namespace it would find nothing that it can open.
    return attrs.evolve(preparation, files={**files, KEY_FILE: seal_of(namespace)})


@contextmanager
def running_session(
    image: str, session: Session, preparation: Preparation, config_dir: Path
) -> Iterator[EngineContainer]:
    """The session's engine, answering. Its container is removed in the end, whatever happens."""
    write_files(config_dir, preparation.files, preparation.links)
    engine = EngineContainer(f"kvcache-test-{uuid.uuid4().hex[:12]}")
    started.append(engine)
    volumes = [
        f"{m.host_path}:{m.container_path}{'' if m.writable else ':ro'}" for m in session.mounts
    ]
    environment = {**session.environ, **preparation.environment}
    tmpfs = docker_arguments(preparation).get("HostConfig", {}).get("Tmpfs", {})
    shm_size = preparation.shared_memory_bytes or session.shared_memory_bytes or 0
    try:
        docker(
            *("run", "--detach", "--name", engine.name, "--publish", "127.0.0.1::8000"),
            *("--shm-size", str(shm_size)),
            *(part for path, how in tmpfs.items() for part in ("--tmpfs", f"{path}:{how}")),
            *(part for volume in volumes for part in ("--volume", volume)),
            *("--volume", f"{config_dir}:{FILES_DIRECTORY}:ro"),
            *(part for k, v in environment.items() for part in ("--env", f"{k}={v}")),
            image,
            *(preparation.start_command or ()),
        )
        engine.url = f"http://{docker('port', engine.name, '8000').splitlines()[0]}"
        wait_until_ready(engine)
        yield engine
    finally:
        engine.log = log_of(engine.name)
        subprocess.run(["docker", "rm", "--force", engine.name], capture_output=True)
