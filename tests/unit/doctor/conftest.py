from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from ai.backend.kvcache.doctor import config_file


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No files and variables that the machine's own Backend.AI has."""
    for name in ("BACKEND_CONFIG_FILE", "BACKEND_ENDPOINT", "CUFILE_ENV_PATH_JSON"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NAMESPACE", "ETCD_ADDR", "ETCD_USER", "ETCD_PASSWORD"):
        monkeypatch.delenv(f"BACKEND_{name}", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    monkeypatch.setattr(config_file, "SITE", tmp_path / "etc")


@pytest.fixture
def sample() -> str:
    """agent.toml as Backend.AI's own installer writes it, with comments. It has no kvcache."""
    return (resources.files("ai.backend.install") / "configs" / "agent.toml").read_text()


@pytest.fixture
def agent_toml(sample: str, tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(sample)
    return path


@pytest.fixture
def closed_port() -> int:
    """One that nothing listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """One whose server takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]
