"""What `presets` registers with the real manager, by the real commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
    CreateRuntimeVariantPresetInput,
    UpdateRuntimeVariantPresetInput,
)
from ai.backend.common.dto.manager.v2.runtime_variant_preset.response import (
    RuntimeVariantPresetNode,
)
from ai.backend.common.dto.manager.v2.runtime_variant_preset.types import (
    PresetTarget,
    PresetValueType,
)
from click.testing import CliRunner

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.cli.launcher_store import LauncherStore
from ai.backend.kvcache.metrics.indicators import INDICATORS
from devcluster import command, configuration
from devcluster.console import SetupError

from .v2 import controls, manager, parameters, variant_id

QUERIES = len(INDICATORS)

#: Five of vLLM, and three of SGLang, which has no GPUDirect Storage.
CONTROLS = 8

#: What no other parameter of an engine may have beside ours.
NAME = "backendai-kvcache-folder"


def presets(action: str, role: str = "admin") -> str:
    """What the command prints, without a process of its own, which takes seconds to start.

    Raises:
        SetupError: it failed; with what it said.
    """
    result = CliRunner().invoke(
        kvcache, ["presets", action], env=configuration.client_environment(role)
    )
    if result.exit_code != 0:
        raise SetupError(result.output)
    return result.stdout


def folder_of_vllm() -> RuntimeVariantPresetNode:
    return next(p for p in controls("vllm") if p.name == NAME)


def change(parameter_id: UUID, **content: Any) -> None:
    body = UpdateRuntimeVariantPresetInput(id=parameter_id, **content)
    manager(lambda registry: registry.runtime_variant_preset.update(parameter_id, body))


def install() -> list[str]:
    """Installs the launcher's controls alone; the lines that the command would print."""
    return manager(lambda registry: LauncherStore(registry).install()).splitlines()


@pytest.fixture(autouse=True, scope="module")
def none_before() -> None:
    presets("remove")


@pytest.fixture(autouse=True)
def none_after() -> Iterator[None]:
    yield
    presets("remove")


@pytest.fixture
def theirs() -> Iterator[UUID]:
    """The id of somebody else's parameter that has the name of one of ours."""
    body = CreateRuntimeVariantPresetInput(
        runtime_variant_id=variant_id("vllm"),
        name=NAME,
        preset_target=PresetTarget.ARGS,
        value_type=PresetValueType.STR,
        key="--their-folder",
    )
    made = manager(lambda registry: registry.runtime_variant_preset.create(body))
    yield made.preset.id
    manager(lambda registry: registry.runtime_variant_preset.delete(made.preset.id))


class TestCommands:
    def test_installing_twice_changes_nothing(self) -> None:
        program = Path(sys.executable).with_name("backend.ai")
        environment = configuration.client_environment("admin")
        installed = command.run([program, "kvcache", "presets", "install"], env=environment)
        assert installed == (
            f"queries: {QUERIES} created, 0 changed, 0 removed, 0 left as they are\n"
            f"launcher: {CONTROLS} created, 0 changed, 0 removed, 0 left as they are\n"
        )
        after_once = parameters()
        assert presets("install") == (
            f"queries: 0 created, 0 changed, 0 removed, {QUERIES} left as they are\n"
            f"launcher: 0 created, 0 changed, 0 removed, {CONTROLS} left as they are\n"
        )
        assert parameters() == after_once

        rows = [re.split(" {2,}", line) for line in presets("list").splitlines()]
        assert [row[0] for row in rows] == ["queries"] * QUERIES + ["launcher"] * CONTROLS
        assert rows[0][1] == "KV cache: util"
        assert rows[-1][1] == "vllm: Host memory"

    def test_removing_leaves_nothing_of_ours_and_all_of_others(self) -> None:
        before = parameters()
        presets("install")
        assert len(parameters()) == len(before) + CONTROLS
        assert presets("remove") == f"queries: {QUERIES} removed\nlauncher: {CONTROLS} removed\n"
        assert parameters() == before
        assert presets("remove") == "queries: 0 removed\nlauncher: 0 removed\n"
        assert "The manager has none" in presets("list")

    def test_they_are_not_for_users(self) -> None:
        with pytest.raises(SetupError, match="the manager refused"):
            presets("install", role="user")
        assert "The manager has none" in presets("list")
        assert install() == [
            f"launcher: {CONTROLS} created, 0 changed, 0 removed, 0 left as they are"
        ]
        with pytest.raises(SetupError, match="the manager refused"):
            presets("remove", role="user")
        assert len(presets("list").splitlines()) == CONTROLS


class TestLauncher:
    def test_controls_of_the_engines(self) -> None:
        install()
        vllm = [
            ("KV cache offloading", "BACKENDAI_KVCACHE", "bool", "checkbox"),
            ("KV cache folder", "BACKENDAI_KVCACHE_FOLDER", "str", "text_input"),
            ("Transport", "BACKENDAI_KVCACHE_TRANSPORT", "str", "select"),
            ("GPU buffer", "BACKENDAI_KVCACHE_BUFFER", "str", "text_input"),
            ("Host memory", "BACKENDAI_KVCACHE_CPU", "str", "text_input"),
        ]
        shown = {
            variant: [
                (p.display_name, p.target_spec.key, p.target_spec.value_type, p.ui_type)
                for p in controls(variant)
            ]
            for variant in ("vllm", "sglang", "custom")
        }
        assert shown == {"vllm": vllm, "sglang": [*vllm[:2], vllm[4]], "custom": []}

    def test_what_differs_is_brought_up_to_date(self) -> None:
        install()
        before = folder_of_vllm()
        change(before.id, display_name="Cache", category="environment", description="?")
        assert install() == ["launcher: 0 created, 1 changed, 0 removed, 7 left as they are"]
        # The same one: revisions know it by its id.
        assert folder_of_vllm().model_copy(update={"updated_at": None}) == before

    def test_what_administrators_choose_stays(self) -> None:
        install()
        change(folder_of_vllm().id, default_value="team-kv", required=True, rank=7)
        assert install() == ["launcher: 0 created, 0 changed, 0 removed, 8 left as they are"]
        after = folder_of_vllm()
        assert (after.target_spec.default_value, after.required, after.rank) == ("team-kv", True, 7)

    def test_a_name_that_somebody_else_has(self, theirs: UUID) -> None:
        before = parameters()[theirs]
        assert install() == [
            "launcher: 7 created, 0 changed, 0 removed, 0 left as they are",
            f"launcher: vllm has a parameter {NAME} of somebody else's, which stays",
        ]
        assert presets("remove") == "queries: 0 removed\nlauncher: 7 removed\n"
        assert parameters()[theirs] == before
