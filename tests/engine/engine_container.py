"""A real engine in a container: vLLM with LMCache, as the image has them, without Backend.AI."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from devcluster.completion import Answer, answers, complete

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

    def post(self, path: str) -> Any:
        """What the engine answers to a request without a body."""
        request = urllib.request.Request(f"{self.url}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def run(self, *command: str) -> str:
        """What a command prints inside of the container."""
        return docker("exec", self.name, *command)

    def page(self) -> str:
        """What /metrics says."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            page: str = response.read().decode()
        return page

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name which carry these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


#: Every container of this test run in the order of starting, for reports of failures.
started: list[EngineContainer] = []


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
