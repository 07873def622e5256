from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from ai.backend.plugin.entrypoint import match_plugin_list

from ai.backend.kvcache.doctor import plugin
from ai.backend.kvcache.doctor.check import Finding, Role, Status, ok
from ai.backend.kvcache.doctor.config_file import ConfigFile
from ai.backend.kvcache.doctor.host import Host
from ai.backend.kvcache.doctor.plugin import (
    AGENT_LISTS,
    GROUP,
    MANAGER_GROUP,
    MANAGER_LISTS,
    MODULE,
    look_at_manager_plugin,
    look_at_plugin,
    names,
)

RESTART = "then restart the agent; running sessions stay"


def judge_lists(document: Mapping[str, Any]) -> Finding:
    return plugin.judge_lists(document, AGENT_LISTS)


def lists(text: str) -> Any:
    return tomllib.loads(f"[agent]\n{text}\n")


def test_what_the_installer_writes(sample: str) -> None:
    assert judge_lists(tomllib.loads(sample)) == ok("all plugins are, since none are named")


@pytest.mark.parametrize(
    "allowed",
    [
        '["ai.backend.kvcache"]',
        '["ai.backend.accelerator.cuda_open", "ai.backend.kvcache.agent"]',
        '["ai.backend.kvcache.agent.plugin"]',
        '["ai"]',
    ],
)
def test_allowed(allowed: str) -> None:
    assert judge_lists(lists(f"allow-compute-plugins = {allowed}")) == ok("allowed")
    assert judge_lists(lists(f"allow_compute_plugins = {allowed}")) == ok("allowed")


@pytest.mark.parametrize("allowed", ["[]", '["ai.backend.kv"]', '["ai.backend.kvcache.cli"]'])
def test_not_allowed(allowed: str) -> None:
    finding = judge_lists(lists(f"allow-compute-plugins = {allowed}"))
    assert finding.status is Status.FAILED
    assert finding.text == (
        '[agent] allow-compute-plugins has no "ai.backend.kvcache", so the agent does not load it'
    )
    assert finding.remedy == f'add "ai.backend.kvcache" to it; {RESTART}'


def test_blocked_counts_more_than_allowed() -> None:
    both = 'allow-compute-plugins = ["ai.backend.kvcache"]\n'
    finding = judge_lists(lists(f'{both}block-compute-plugins = ["x", "ai.backend"]'))
    assert finding.status is Status.FAILED
    assert finding.text == (
        '[agent] block-compute-plugins has "ai.backend", so the agent does not load it'
    )
    assert finding.remedy == f"take it out; {RESTART}"
    assert judge_lists(lists(f'{both}block-compute-plugins = ["x"]')) == ok("allowed")


@pytest.mark.parametrize("odd", ['"ai.backend.kvcache"', "1", "[1]", "{ a = 1 }"])
def test_odd_values(odd: str) -> None:
    finding = judge_lists(lists(f"allow-compute-plugins = {odd}"))
    assert finding.text == "[agent] allow-compute-plugins is no list of texts"


@pytest.mark.parametrize(
    "pattern", ["ai", "ai.backend", "ai.backend.kv", "ai.backend.kvcache", MODULE, f"{MODULE}.x"]
)
def test_prefixes_are_read_as_backend_ai_reads_them(pattern: str) -> None:
    assert names([pattern], MODULE) is match_plugin_list(f"{MODULE}:KVCachePlugin", {pattern})


def test_this_environment_has_the_plugin() -> None:
    assert GROUP == "backendai_accelerator_v21"
    assert look_at_plugin(Host(frozenset(), "")) == ok(f"{MODULE}:KVCachePlugin can be loaded")


class TestManager:
    """What the manager loads is of use, and sessions do without."""

    @staticmethod
    def look(tmp_path: Path, text: str) -> Finding:
        file = ConfigFile(tmp_path / "manager.toml")
        file.path.write_text(f"[manager]\n{text}\n")
        return look_at_manager_plugin(Host(frozenset({Role.MANAGER}), "", manager_file=file))

    def test_allowed(self, tmp_path: Path) -> None:
        assert self.look(tmp_path, "") == ok("all plugins are, since none are named")
        assert self.look(tmp_path, 'allowed-plugins = ["ai.backend.kvcache"]') == ok("allowed")

    def test_not_allowed(self, tmp_path: Path) -> None:
        finding = self.look(tmp_path, 'allowed-plugins = ["x"]')
        assert finding.status is Status.WARNING
        assert finding.text == (
            '[manager] allowed-plugins has no "ai.backend.kvcache", so the manager does not load '
            "it: sessions get KV cache, and `kvcache status` cannot show their plans"
        )
        finding = self.look(tmp_path, 'disabled-plugins = ["ai.backend.kvcache.manager"]')
        assert finding.status is Status.WARNING

    def test_its_module_is_the_entry_points(self) -> None:
        (found,) = entry_points(group=MANAGER_GROUP, name="kvcache")
        assert found.module == MANAGER_LISTS.module
