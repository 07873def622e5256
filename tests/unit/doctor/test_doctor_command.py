from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.doctor.slot_type import FIXTURE

from .hanging_files import can_mount, hanging_file_system

ROOT = Path(__file__).parents[3]


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(kvcache, ["doctor", *map(str, arguments)])


def as_json(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """(exit code, check → what was found)."""
    result = doctor("--json", *arguments)
    answer = json.loads(result.stdout)
    assert answer["ok"] is (result.exit_code == 0)
    return result.exit_code, {check["check"]: check for check in answer["checks"]}


@pytest.fixture
def without_etcd(agent_toml: Path, closed_port: int) -> Path:
    """The installer's agent.toml, with an etcd that is not there on any machine."""
    text = agent_toml.read_text().replace("port = 8120", f"port = {closed_port}")
    agent_toml.write_text(text)
    return agent_toml


class TestAllocationOrder:
    def test_broken_then_fixed_then_left_alone(self, without_etcd: Path) -> None:
        before = without_etcd.read_text()
        code, found = as_json("--config", without_etcd)
        assert code == 1
        assert found["allocation-order"]["status"] == "failed"
        assert found["allocation-order"]["can_be_fixed"] is True
        assert without_etcd.read_text() == before

        code, found = as_json("--config", without_etcd, "--fix")
        assert found["allocation-order"]["status"] == "ok"
        assert found["allocation-order"]["text"] == "cuda, rocm, tpu, cpu, mem, kvcache"
        (backup,) = without_etcd.parent.glob("agent.toml.*.bak")
        assert found["allocation-order"]["fixed"].endswith(f"what it was is in {backup.name}")
        assert backup.read_text() == before
        after = without_etcd.read_text()
        assert tomllib.loads(after)["resource"]["allocation-order"][-1] == "kvcache"
        comments = re.findall("#.*", before)
        assert comments
        assert re.findall("#.*", after) == comments

        _, found = as_json("--config", without_etcd, "--fix")
        assert found["allocation-order"]["fixed"] is None
        assert without_etcd.read_text() == after
        assert list(without_etcd.parent.glob("agent.toml.*.bak")) == [backup]

    def test_what_people_read(self, without_etcd: Path, closed_port: int) -> None:
        result = doctor("--config", without_etcd)
        assert result.exit_code == 1
        assert f"agent, by {without_etcd}" in result.stdout
        lines = [line.rstrip() for line in result.stdout.splitlines()]
        failure = lines.index(
            'FAILED  allocation-order  allocation-order has no "kvcache": no session starts'
        )
        assert lines[failure + 1].strip() == (
            'to fix: set allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]; '
            "then restart the agent; running sessions stay"
        )
        assert any(line.startswith("skipped policy, storage-proxy: ") for line in lines) or any(
            line.startswith("skipped policy: ") for line in lines
        )
        assert lines[-1].endswith("; --fix puts right: allocation-order")
        assert f"127.0.0.1:{closed_port}: nothing listens there" in result.stdout


class TestBrokenFiles:
    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.toml"
        code, found = as_json("--config", path, "--fix")
        assert code == 1
        assert found["agent.toml"]["text"] == f"{path} cannot be read: No such file or directory"
        for check in ("allocation-order", "plugin-lists", "etcd", "policy", "storage-proxy"):
            assert found[check]["status"] == "skipped"
        assert list(tmp_path.glob("agent.toml*")) == []

    def test_nowhere(self) -> None:
        code, found = as_json("--role", "agent")
        assert code == 1
        assert found["agent.toml"]["text"].startswith("there is no agent.toml: not in ")

    def test_invalid(self, agent_toml: Path) -> None:
        agent_toml.write_text("[etcd\n")
        code, found = as_json("--config", agent_toml, "--fix")
        assert code == 1
        assert "is no valid TOML" in found["agent.toml"]["text"]
        assert agent_toml.read_text() == "[etcd\n"

    def test_no_file_is_shown_with_its_secrets(self, agent_toml: Path, closed_port: int) -> None:
        text = agent_toml.read_text().replace('password = ""', 'password = "hunter2"')
        agent_toml.write_text(text.replace("port = 8120", f"port = {closed_port}"))
        assert "hunter2" in agent_toml.read_text()
        for arguments in ([], ["--json"], ["--fix"]):
            assert "hunter2" not in doctor("--config", agent_toml, *arguments).output


class TestFolder:
    def test_one_that_is_named(self, without_etcd: Path, tmp_path: Path) -> None:
        _, found = as_json("--config", without_etcd, "--folder", tmp_path)
        assert found["folder"]["status"] in ("ok", "warning")
        assert str(tmp_path) in found["folder"]["text"]

    def test_none(self, without_etcd: Path) -> None:
        _, found = as_json("--config", without_etcd)
        assert {found[c]["status"] for c in ("folder", "file-system", "o-direct")} == {"skipped"}
        assert "--folder PATH" in found["folder"]["text"]

    def test_missing(self, without_etcd: Path) -> None:
        _, found = as_json("--config", without_etcd, "--folder", "/no/such/folder")
        assert found["folder"]["status"] == "failed"
        assert found["folder"]["text"] == "/no/such/folder is no folder on this node (ENOENT)"

    def test_a_volume_while_etcd_is_not_there(self, without_etcd: Path) -> None:
        _, found = as_json("--config", without_etcd, "--folder", "local:volume1")
        assert found["folder"]["text"].startswith("local:volume1 is not found: etcd cannot be")
        assert found["file-system"]["text"] == "nothing is known of the folder"

    def test_neither_path_nor_volume(self) -> None:
        result = doctor("--folder", "here")
        assert result.exit_code == 2
        assert "neither a whole path nor PROXY:VOLUME" in result.output

    @pytest.mark.skipif(not can_mount(), reason="needs root and FUSE")
    def test_the_command_ends_though_a_folder_hangs(
        self, without_etcd: Path, tmp_path: Path
    ) -> None:
        point = tmp_path / "hangs"
        point.mkdir()
        command = [sys.executable, "-m", "ai.backend.kvcache", "doctor", "--json"]
        with hanging_file_system(point):
            ended = subprocess.run(
                [*command, "--config", without_etcd, "--folder", point],
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
                check=False,
            )
        found = {check["check"]: check for check in json.loads(ended.stdout)["checks"]}
        assert ended.returncode == 1
        assert found["folder"]["status"] == "failed"
        assert found["folder"]["text"].startswith(f"{point} does not answer within 6 s")


def test_other_roles_are_asked_other_things(without_etcd: Path) -> None:
    _, agent = as_json("--config", without_etcd)
    _, client = as_json("--role", "client")
    assert set(client) == {"versions", "manager", "slot-type"}
    assert {"agent.toml", "etcd", "nvidia-fs", "memlock"} <= set(agent)
    assert "prometheus" not in agent
    assert client["slot-type"]["status"] == "skipped"


def test_without_backend_ai(tmp_path: Path) -> None:
    """As with only what the plugin itself requires. Its packages cannot be taken away from this
    environment, so their import is refused."""
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("ai.backend.") and not name.startswith("ai.backend.kvcache"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name.split(".")[0] in ("aiohttp", "sqlalchemy", "tomlkit"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
from ai.backend.kvcache.cli import kvcache
kvcache()
"""
    agent = tmp_path / "agent.toml"
    agent.write_text("[agent]\n")
    for role, check in (("agent", "etcd"), ("client", "slot-type")):
        ended = subprocess.run(
            [sys.executable, "-c", program, "doctor", "--json", "--role", role, "--fix"]
            + (["--config", str(agent)] if role == "agent" else []),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in ended.stderr
        found = {c["check"]: c for c in json.loads(ended.stdout)["checks"]}
        assert check in found
        if role == "agent":
            assert "packages are not installed here" in found["etcd"]["text"]
            assert "tomlkit is missing" in found["allocation-order"]["not_fixed"]


def test_the_row_is_what_the_readme_populates() -> None:
    assert json.loads((ROOT / "configs/slot-type.json").read_text()) == FIXTURE
