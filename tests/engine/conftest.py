from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from devcluster.image import engine_image
from devcluster.models import FUNCTION_MODEL, make_tiny_model

from .engine_container import started
from .oracle import Oracle

_LOG_LINES = 60


@pytest.fixture(scope="session")
def image() -> str:
    """The CPU engine image. Making it for the first time takes some minutes."""
    return engine_image(Path(sys.executable))


@pytest.fixture(scope="session")
def ask(image: str) -> Oracle:
    """Asks an engine's own code in the engine image."""
    return Oracle(image)


@pytest.fixture(scope="session")
def model(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, [*FUNCTION_MODEL, "--seed", "1"], image=image)
    return folder


@pytest.fixture(scope="session")
def other_model(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape and the same tokenizer with other weights, like a fine-tuned model."""
    folder = tmp_path_factory.mktemp("other-model")
    make_tiny_model(folder, [*FUNCTION_MODEL, "--seed", "2"], image=image)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the engines printed next to a failure: the reason is nearly always there."""
    report = yield
    if report.failed:
        for engine in started:
            tail = "\n".join(engine.log.splitlines()[-_LOG_LINES:])
            report.sections.append((f"Log of {engine.name}", tail))
    return report
