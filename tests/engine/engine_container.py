"""A real engine in a container: vLLM with LMCache, as the image has them, without Backend.AI."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from devcluster.completion import Answer, answers, complete

#: Where Backend.AI mounts every model. That all models share a path is half of what is tested here.
MODEL_PATH = PurePosixPath("/models")
FOLDER_PATH = PurePosixPath("/kvcache")

_CONFIG_PATH = PurePosixPath("/config/engine.yaml")
_SERVED_NAME = "tiny"
#: An idle machine needs half a minute.
_START_SECONDS = 300.0


@dataclass
class EngineContainer:
    """A started container. `log` is what it has printed, complete once it is removed."""

    name: str
    url: str = ""
    log: str = field(default="", repr=False)

    def complete(self, prompt: str, *, tokens: int = 24) -> Answer:
        """The greedy answer."""
        return complete(self.url, _SERVED_NAME, prompt, tokens=tokens)

    def post(self, path: str) -> None:
        """A request without a body to the engine."""
        request = urllib.request.Request(f"{self.url}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def run(self, *command: str) -> str:
        """What a command prints inside of the container."""
        return docker("exec", self.name, *command)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name which carry these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            page = response.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


#: Every container of this test run in the order of starting, for reports of failures.
started: list[EngineContainer] = []


@contextmanager
def running_engine(
    image: str,
    *,
    model: Path,
    folder: Path,
    config: Mapping[str, Any],
    config_file: Path,
    environment: Mapping[str, str] | None = None,
    mounts: Sequence[str] = (),
) -> Iterator[EngineContainer]:
    """An engine that answers. Its container is removed in the end, whatever happens.

    Args:
        environment: variables beside those of the image.
        mounts: more mounts, as `docker run --mount` takes them.
    """
    config_file.write_text(yaml.safe_dump(dict(config)))
    engine = EngineContainer(f"kvcache-test-{uuid.uuid4().hex[:12]}")
    started.append(engine)
    try:
        docker(
            *("run", "--detach", "--name", engine.name, "--publish", "127.0.0.1::8000"),
            *("--shm-size", "2g"),
            *("--volume", f"{model}:{MODEL_PATH}:ro", "--volume", f"{folder}:{FOLDER_PATH}"),
            *("--volume", f"{config_file}:{_CONFIG_PATH}:ro"),
            *(word for item in (environment or {}).items() for word in ("--env", "=".join(item))),
            *(word for mount in mounts for word in ("--mount", mount)),
            *(image, "vllm", "serve", str(MODEL_PATH), "--config", str(_CONFIG_PATH)),
            *("--served-model-name", _SERVED_NAME, "--port", "8000", "--enforce-eager"),
        )
        engine.url = f"http://{docker('port', engine.name, '8000').splitlines()[0]}"
        wait_until_ready(engine)
        yield engine
    finally:
        engine.log = log_of(engine.name)
        subprocess.run(["docker", "rm", "--force", engine.name], capture_output=True)


def wait_until_ready(engine: EngineContainer) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not answers(engine.url):
        if docker("inspect", "--format", "{{.State.Running}}", engine.name).strip() != "true":
            raise RuntimeError(f"The engine {engine.name} has ended instead of starting.")
        if time.monotonic() > deadline:
            raise TimeoutError(f"The engine {engine.name} is not ready after {_START_SECONDS} s.")
        time.sleep(0.5)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def log_of(name: str) -> str:
    done = subprocess.run(
        ["docker", "logs", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.stdout
