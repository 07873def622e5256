"""A real Backend.AI, which `./scripts/test cluster` brings up before these tests run."""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from ai.backend.kvcache.policy.policy import ETCD_KEY
from devcluster import command, demo, etcd, images, settings
from devcluster.client import Client, connect, model_definition, wait_until
from devcluster.console import SetupError
from devcluster.image import engine_image
from devcluster.models import FUNCTION_MODEL, make_tiny_model
from devcluster.tinytext import long_prompt

from .projects import OWN_PROJECT, USER, Project, ProjectFolder, find_project, make_project, policy

GIB = 2**30


@attrs.frozen
class RunningSession:
    """A session of the cluster, seen from its container and from the agent's disk."""

    id: str
    kernel_id: str
    container_id: str

    @property
    def config_dir(self) -> Path:
        return settings.DATA / "scratches" / self.kernel_id / "config"

    def run(self, *argv: str) -> str:
        """What a program prints inside the container."""
        return command.run(["docker", "exec", self.container_id, *argv])

    def read(self, path: str) -> str:
        return self.run("cat", path)

    def plan(self) -> dict[str, Any]:
        """The plan as the session itself sees it."""
        plan: dict[str, Any] = json.loads(self.read("/home/config/kvcache/plan.json"))
        return plan

    def environ(self) -> dict[str, str]:
        """The environment that was prepared for the session's programs."""
        lines = self.read("/home/config/environ.txt").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def process_environ(self) -> dict[str, str]:
        """The environment of the container's first process."""
        variables = self.read("/proc/1/environ").split("\0")
        return dict(v.split("=", 1) for v in variables if "=" in v)

    def inspect(self) -> dict[str, Any]:
        facts: list[dict[str, Any]] = json.loads(
            command.run(["docker", "inspect", self.container_id])
        )
        return facts[0]


type SessionStarter = Callable[..., RunningSession]


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with connect() as client:
        yield client


@pytest.fixture(scope="session")
def model_folder(client: Client) -> tuple[str, Path]:
    """Devstral 2 123B without its weights: the configuration, and an index that states 16 GiB for
    each of eight GPUs."""
    name = "devstral-model"
    path = client.ensure_folder(name, "model")
    data = Path(__file__).parents[1] / "data" / "models"
    shutil.copy(data / "devstral-2-123b.config.json", path / "config.json")
    index = {"metadata": {"total_size": 128 * GIB}, "weight_map": {}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return name, path


@attrs.frozen
class Folders:
    """The folders of one test: names, and the KV folder's path on this machine."""

    kv: str
    kv_path: Path
    model: str

    @property
    def mounts(self) -> dict[str, str | None]:
        """The KV folder at the plugin's mount point, and the model."""
        return {self.kv: "/kvcache", self.model: "/models"}


@contextmanager
def new_folders(client: Client, model: str) -> Iterator[Folders]:
    name = f"kv-{uuid.uuid4().hex[:8]}"
    yield Folders(name, client.ensure_folder(name), model)
    client.api.VFolder(name).delete()


@pytest.fixture
def folders(client: Client, model_folder: tuple[str, Path]) -> Iterator[Folders]:
    """A new, empty KV folder, and the model."""
    with new_folders(client, model_folder[0]) as folders:
        yield folders


@pytest.fixture
def start(client: Client, folders: Folders) -> Iterator[SessionStarter]:
    """Starts interactive sessions, and ends them after the test, before its folder goes."""
    with session_starter(client) as start:
        yield start


#: Why a session that is to serve /models and has no folder there gets no KV cache.
NO_MODEL_FOLDER = "the model '/models' is not in a folder mounted into the session"


def started_by_hand(gpus: int = 1) -> dict[str, str]:
    """What says how a person is going to start an engine in a session: a rank for each GPU."""
    return {"BACKENDAI_KVCACHE_COMMAND": f"vllm serve /models --tensor-parallel-size {gpus}"}


@contextmanager
def session_starter(client: Client) -> Iterator[SessionStarter]:
    started: list[str] = []

    def start_session(mounts: Mapping[str, str | None], **options: Any) -> RunningSession:
        try:
            return attempt(mounts, **options)
        except SetupError:
            # On a busy machine the agent of Backend.AI 26.4 may take a container that has just
            # started for one that is gone, since it lists containers before it looks at kernels.
            # The manager starts replicas of services anew then; sessions it leaves to their user.
            return attempt(mounts, **options)

    def attempt(mounts: Mapping[str, str | None], **options: Any) -> RunningSession:
        gpus = (options.get("resources") or {}).get("cuda.device", 1)
        environ = {**started_by_hand(gpus), **(options.pop("environ", None) or {})}
        options = {**options, "environ": environ}
        session_id = client.start_session(f"test-{uuid.uuid4().hex[:8]}", mounts=mounts, **options)
        started.append(session_id)
        return running(client, session_id)

    yield start_session
    client.stop_sessions(started)


def running(client: Client, session_id: str) -> RunningSession:
    kernel = client.wait_for_container(session_id)
    return RunningSession(session_id, kernel["id"], kernel["container_id"])


def kv_mounts(session: RunningSession) -> dict[str, tuple[str, bool]]:
    """Where folders of the volume are in the container → (which, writable), without the model."""
    return {
        mount["Destination"]: (mount["Source"], mount["RW"])
        for mount in session.inspect()["Mounts"]
        if mount["Source"].startswith(f"{settings.VOLUME}/") and mount["Destination"] != "/models"
    }


type PolicySetter = Callable[[Any], None]


@pytest.fixture
def set_policy() -> Iterator[PolicySetter]:
    yield lambda policy: etcd.put(ETCD_KEY, json.dumps(policy))
    etcd.delete(ETCD_KEY)


@pytest.fixture(scope="session")
def own_project() -> Project:
    return find_project(OWN_PROJECT) or make_project(OWN_PROJECT, USER)


@pytest.fixture(scope="module")
def own_folder(own_project: Project) -> ProjectFolder:
    """The folder of OWN_PROJECT, as an administrator makes it."""
    policy("provision", "--yes", OWN_PROJECT)
    return own_project.folder


@pytest.fixture(scope="session")
def image() -> str:
    reference = engine_image(Path(sys.executable))
    images.register()
    return reference


@pytest.fixture(scope="session")
def prompt() -> str:
    return long_prompt(demo.PROMPT_TOKENS, seed=time.time_ns())


def _make_model(image: str, directory: Path) -> Path:
    """A model with weights that no other has."""
    make_tiny_model(
        directory, [*FUNCTION_MODEL, "--seed", str(time.time_ns() % 2**31)], image=image
    )
    return directory


@pytest.fixture(scope="session")
def tiny_model(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that an engine can serve."""
    return _make_model(image, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def result(client: Client, image: str, prompt: str, tiny_model: Path) -> demo.Result:
    """The quick start, with a model of its own. Its service goes on running."""
    return demo.show(client, image, tiny_model, prompt)


@attrs.frozen
class Other:
    """The same prompt to a model of the same shape and path with other weights."""

    namespace: str
    url: str
    session: str
    live_stat: dict[str, str]


@pytest.fixture(scope="session")
def other(
    client: Client,
    image: str,
    prompt: str,
    result: demo.Result,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Other]:
    model = _make_model(image, tmp_path_factory.mktemp("other-model"))
    name = f"other-{uuid.uuid4().hex[:8]}"
    demo.ensure_model(client, name, model, model_definition(demo.START_COMMAND))
    # Both run side by side, and leave room for a third.
    service = demo.create_service(client, name, image, {**demo.RESOURCES, "mem": "6g"})
    url, session = demo.wait_for_service(client, service)
    demo.ask(url, prompt)

    def reported() -> dict[str, str] | None:
        # The prompt is in as soon as the engine's own share is known.
        statistics = client.live_stat(session)
        return statistics if "kvcache_util" in statistics else None

    statistics = wait_until("The manager's metrics", reported, 120, every=2)
    namespace = str(demo.plan_of(client, session)["namespace"]["name"])
    yield Other(namespace, url, session, statistics)
    client.delete_service(service)
