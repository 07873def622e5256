from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from ai.backend.kvcache.doctor import config_file
from ai.backend.kvcache.doctor.check import Role, Status, ok
from ai.backend.kvcache.doctor.config_file import ConfigFile, judge_file, role_of
from ai.backend.kvcache.doctor.host import this_host

AGENT, MANAGER, CLIENT = (frozenset({role}) for role in Role)


@pytest.fixture
def manager_toml(tmp_path: Path) -> Path:
    """As Backend.AI's own installer writes it."""
    text = (resources.files("ai.backend.install") / "configs" / "manager.toml").read_text()
    path = tmp_path / "manager.toml"
    path.write_text(text)
    return path


class TestRoles:
    def test_by_the_named_file(self, agent_toml: Path, manager_toml: Path) -> None:
        assert this_host(configs=[agent_toml]).roles == {Role.AGENT}
        manager = this_host(configs=[manager_toml])
        assert (manager.roles, manager.reason) == (MANAGER, f"by {manager_toml}")
        both = this_host(configs=[manager_toml, agent_toml])
        assert both.roles == {Role.AGENT, Role.MANAGER}
        assert both.agent_file == ConfigFile(agent_toml)
        assert both.manager_file == ConfigFile(manager_toml)

    def test_a_files_name_does_not_count_where_it_can_be_read(
        self, agent_toml: Path, tmp_path: Path
    ) -> None:
        renamed = agent_toml.rename(tmp_path / "manager-of-agents.toml")
        assert this_host(configs=[renamed]).roles == {Role.AGENT}

    def test_a_broken_file_is_of_the_daemon_in_its_name(self, tmp_path: Path) -> None:
        broken = tmp_path / "manager.toml"
        broken.write_text("[manager")
        assert role_of(ConfigFile(broken)) is Role.MANAGER
        assert role_of(ConfigFile(tmp_path / "none.toml")) is Role.AGENT

    @pytest.mark.parametrize("place", ["home", "home/.config/backend.ai", "etc"])
    def test_by_the_file_in_a_usual_place(
        self, place: str, agent_toml: Path, tmp_path: Path
    ) -> None:
        directory = tmp_path / place
        directory.mkdir(parents=True, exist_ok=True)
        moved = agent_toml.rename(directory / "agent.toml")
        host = this_host()
        assert (host.roles, host.agent_file) == (AGENT, ConfigFile(moved))

    def test_backend_ais_own_variable_names_the_file(
        self, agent_toml: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BACKEND_CONFIG_FILE", str(agent_toml))
        host = this_host()
        assert (host.roles, host.manager_file) == (AGENT, None)

    def test_by_the_configured_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BACKEND_ENDPOINT", "http://manager")
        host = this_host()
        assert (host.roles, host.reason) == (CLIENT, "since the client is configured")

    def test_by_the_packages(self) -> None:
        # The development environment has both.
        host = this_host()
        assert host.roles == {Role.AGENT, Role.MANAGER}
        assert host.reason == "since it has backend.ai-agent, backend.ai-manager"

    def test_what_is_said_counts(self, agent_toml: Path, manager_toml: Path) -> None:
        assert this_host([Role.CLIENT], [agent_toml]).daemon_file is None
        host = this_host([Role.MANAGER], [agent_toml])
        assert (host.roles, host.manager_file) == (MANAGER, ConfigFile(agent_toml))


class TestJudgeFile:
    def test_there(self, agent_toml: Path) -> None:
        assert judge_file(Role.AGENT, ConfigFile(agent_toml)) == ok(str(agent_toml))

    def test_nowhere(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        finding = judge_file(Role.AGENT, None)
        assert finding.status is Status.FAILED
        assert finding.text == (
            f"there is no agent.toml: not in {home}, {home}/.config/backend.ai, {tmp_path}/etc"
        )
        assert finding.remedy == ("say where it is: --config PATH; or what this host is: --role")

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.toml"
        finding = judge_file(Role.AGENT, ConfigFile(path))
        assert finding.text == f"{path} cannot be read: No such file or directory"

    def test_invalid(self, agent_toml: Path) -> None:
        agent_toml.write_text('[etcd]\npassword = "hunter2"\n[resource\n')
        finding = judge_file(Role.AGENT, ConfigFile(agent_toml))
        assert finding.status is Status.FAILED
        assert finding.text.startswith(f"{agent_toml} is no valid TOML: Expected ']'")
        assert "(at line 3, column 10)" in finding.text
        assert "hunter2" not in finding.text

    def test_no_text(self, agent_toml: Path) -> None:
        agent_toml.write_bytes(b"\xff")
        finding = judge_file(Role.AGENT, ConfigFile(agent_toml))
        assert finding.text == f"{agent_toml} is no text in UTF-8, at byte 0"

    def test_of_another_daemon(self, manager_toml: Path) -> None:
        finding = judge_file(Role.AGENT, ConfigFile(manager_toml))
        assert finding.status is Status.FAILED
        assert f"{manager_toml} has [" in finding.text
        assert "is no agent's file" in finding.text


def test_places_are_backend_ais_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ai.backend.common import config
    from ai.backend.common.exception import ConfigurationError

    monkeypatch.setattr(config_file, "SITE", Path("/etc/backend.ai"))
    with pytest.raises(ConfigurationError) as error:
        config.find_config_file("no-such-daemon")
    searched = error.value.invalid_data["find_config_file()"].partition(": ")[2].split(",")
    ours = [str(path) for path in config_file.usual_paths(Role.AGENT)]
    assert [path.replace("no-such-daemon", "agent") for path in searched] == ours


def test_installers_files_are_whole(agent_toml: Path, manager_toml: Path) -> None:
    assert "resource" in tomllib.loads(agent_toml.read_text())
    assert "db" in tomllib.loads(manager_toml.read_text())
