from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(kvcache, ["indicators", *map(str, arguments)])


@pytest.fixture
def pages(tmp_path: Path, data: Path) -> tuple[Path, Path]:
    """A page of an engine that nobody asked yet, and one after three prompts."""
    after = data / "engine-pages/vllm-0.20_lmcache-0.4.4_inprocess.prom"
    before = tmp_path / "before.prom"
    before.write_text("vllm:prompt_tokens_total 0\n")
    return before, after


def test_json(pages: tuple[Path, Path]) -> None:
    result = run(*pages, "--seconds", "30", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["kvcache_util"] == pytest.approx(92.835, abs=0.001)
    assert found["kvcache_load_rate"] == pytest.approx(34_603_008 / 30)
    assert all(isinstance(value, float | int) for value in found.values())
    # Only LMCache's server says how many stores failed, and this page is not its.
    assert "kvcache_host_util" not in found


def test_text(pages: tuple[Path, Path]) -> None:
    result = run(*pages, "--seconds", "30")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "kvcache_util 92.8 % share of prompt tokens that the KV folder served" in lines
    assert "kvcache_load_rate 1.10 MiB/s bytes loaded from the KV folder" in lines
    assert any(line.startswith("kvcache_loaded_tokens 8,448 ") for line in lines)


def test_pages_of_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.prom"
    other.write_text("node_load1 0.5\n")
    assert run(other, other, "--seconds", "1").stdout == "The pages have no metrics of an engine.\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"vllm:prompt_tokens_total{", "line 1"), (b"\xff\xfe", "utf-8")],
)
def test_no_page(tmp_path: Path, content: bytes, says: str) -> None:
    bad = tmp_path / "bad.prom"
    bad.write_bytes(content)
    result = run(bad, bad, "--seconds", "1")
    assert result.exit_code == 2
    assert "bad.prom is no metrics page" in result.stderr
    assert says in result.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan"])
def test_time_between_them(pages: tuple[Path, Path], seconds: str) -> None:
    result = run(*pages, "--seconds", seconds)
    assert result.exit_code == 2
    assert "--seconds" in result.stderr
