from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import ai.backend
from ai.backend.kvcache.cli import kvcache

STUB = Path(__file__).parents[3] / "src/ai/backend/kvcache/webui/kv-cache.js"


def test_stub_is_put_where_the_web_server_looks(tmp_path: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(kvcache, ["webui", "install", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert '[plugin] page = "kv-cache"' in result.output
    assert (tmp_path / "dist/plugins/kv-cache.js").read_bytes() == STUB.read_bytes()


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("a file is in the way")
    result = CliRunner().invoke(kvcache, ["webui", "install", str(tmp_path)])
    assert result.exit_code == 1
    assert "kv-cache.js cannot be written: Not a directory" in result.output


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of those of Backend.AI's packages: the real web server has 70 MB."""
    packages = tmp_path / "ai/backend"
    packages.mkdir(parents=True)
    monkeypatch.setattr(ai.backend, "__path__", [str(packages)])
    return packages


def test_no_web_server_here(environment: Path) -> None:
    result = CliRunner().invoke(kvcache, ["webui", "install"])
    assert result.exit_code == 2
    assert "no web server is installed in this environment" in result.output


def test_web_server_of_the_environment(environment: Path) -> None:
    (environment / "web/static").mkdir(parents=True)
    (environment / "web/__init__.py").touch()
    result = CliRunner().invoke(kvcache, ["webui", "install"])
    assert result.exit_code == 0, result.output
    assert (environment / "web/static/dist/plugins/kv-cache.js").exists()
