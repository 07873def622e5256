"""What `presets` registers with the real manager, by the real commands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.metrics.indicators import INDICATORS
from devcluster import command, configuration
from devcluster.console import SetupError

BACKEND_AI = Path(sys.executable).with_name("backend.ai")

QUERIES = len(INDICATORS)

#: Five of vLLM, and three of SGLang, which has no GPUDirect Storage.
CONTROLS = 8

#: What no other parameter of an engine may have beside ours.
NAME = "backendai-kvcache-folder"


def backend_ai(*arguments: str, role: str = "admin") -> str:
    return command.run([BACKEND_AI, *arguments], env=configuration.client_environment(role))


def presets(action: str, role: str = "admin") -> str:
    return backend_ai("kvcache", "presets", action, role=role)


def manager(*arguments: str) -> dict[str, Any]:
    """What Backend.AI's own command for parameters of engines answers."""
    answer: dict[str, Any] = json.loads(
        backend_ai("v2", "admin", "runtime-variant-preset", *arguments)
    )
    return answer


def parameters() -> dict[str, dict[str, Any]]:
    """Id → parameter, everybody's."""
    answer = manager("search", "--limit", "1000", "--order-by", "rank:asc")
    assert not answer["has_next_page"]
    return {item["id"]: item for item in answer["items"]}


def variant_id(name: str) -> str:
    answer = json.loads(backend_ai("v2", "admin", "runtime-variant", "search", "--limit", "100"))
    return next(str(item["id"]) for item in answer["items"] if item["name"] == name)


def controls(variant: str) -> list[dict[str, Any]]:
    """What an engine's tab for KV caches shows, in its order."""
    wanted = variant_id(variant)
    return [
        p
        for p in parameters().values()
        if p["runtime_variant_id"] == wanted and p["category"] == "kv_cache"
    ]


def folder_of_vllm() -> dict[str, Any]:
    return next(p for p in controls("vllm") if p["name"] == NAME)


@pytest.fixture(autouse=True)
def none_before_and_after() -> Iterator[None]:
    presets("remove")
    yield
    presets("remove")


@pytest.fixture
def theirs() -> Iterator[str]:
    """The id of somebody else's parameter that has the name of one of ours."""
    made = manager(
        "create",
        json.dumps({
            "runtime_variant_id": variant_id("vllm"),
            "name": NAME,
            "preset_target": "args",
            "value_type": "str",
            "key": "--their-folder",
        }),
    )
    parameter_id = str(made["preset"]["id"])
    yield parameter_id
    manager("delete", parameter_id)


class TestInstall:
    def test_twice_changes_nothing(self) -> None:
        assert presets("install") == (
            f"queries: {QUERIES} created, 0 changed, 0 removed, 0 left as they are\n"
            f"launcher: {CONTROLS} created, 0 changed, 0 removed, 0 left as they are\n"
        )
        after_once = parameters()
        assert presets("install") == (
            f"queries: 0 created, 0 changed, 0 removed, {QUERIES} left as they are\n"
            f"launcher: 0 created, 0 changed, 0 removed, {CONTROLS} left as they are\n"
        )
        assert parameters() == after_once

    def test_controls_of_the_engines(self) -> None:
        presets("install")
        vllm = [
            ("KV cache offloading", "BACKENDAI_KVCACHE", "bool", "checkbox"),
            ("KV cache folder", "BACKENDAI_KVCACHE_FOLDER", "str", "text_input"),
            ("Transport", "BACKENDAI_KVCACHE_TRANSPORT", "str", "select"),
            ("GPU buffer", "BACKENDAI_KVCACHE_BUFFER", "str", "text_input"),
            ("Host memory", "BACKENDAI_KVCACHE_CPU", "str", "text_input"),
        ]
        shown = {
            variant: [
                (
                    p["display_name"],
                    p["target_spec"]["key"],
                    p["target_spec"]["value_type"],
                    p["ui_type"],
                )
                for p in controls(variant)
            ]
            for variant in ("vllm", "sglang", "custom")
        }
        assert shown == {"vllm": vllm, "sglang": [*vllm[:2], vllm[4]], "custom": []}

    def test_what_differs_is_brought_up_to_date(self) -> None:
        presets("install")
        before = folder_of_vllm()
        changed = {"display_name": "Cache", "category": "environment", "description": "?"}
        manager("update", before["id"], json.dumps({"id": before["id"], **changed}))
        assert "launcher: 0 created, 1 changed, 0 removed, 7 left as they are" in presets("install")
        # The same one: revisions know it by its id.
        assert {**folder_of_vllm(), "updated_at": None} == before

    def test_what_administrators_choose_stays(self) -> None:
        presets("install")
        before = folder_of_vllm()
        chosen = {"default_value": "team-kv", "required": True, "rank": 7}
        manager("update", before["id"], json.dumps({"id": before["id"], **chosen}))
        assert "launcher: 0 created, 0 changed, 0 removed, 8 left as they are" in presets("install")
        after = folder_of_vllm()
        assert (after["target_spec"]["default_value"], after["required"], after["rank"]) == (
            "team-kv",
            True,
            7,
        )

    def test_a_name_that_somebody_else_has(self, theirs: str) -> None:
        before = parameters()[theirs]
        assert presets("install").splitlines()[1:] == [
            "launcher: 7 created, 0 changed, 0 removed, 0 left as they are",
            f"launcher: vllm has a parameter {NAME} of somebody else's, which stays",
        ]
        assert presets("remove").splitlines()[1] == "launcher: 7 removed"
        assert parameters()[theirs] == before

    def test_is_not_for_users(self) -> None:
        with pytest.raises(SetupError, match="the manager refused"):
            presets("install", role="user")
        assert "The manager has none" in presets("list")


class TestList:
    def test_both_kinds(self) -> None:
        presets("install")
        rows = [re.split(" {2,}", line) for line in presets("list").splitlines()]
        assert [row[0] for row in rows].count("queries") == QUERIES
        assert [row[0] for row in rows].count("launcher") == len(rows) - QUERIES == CONTROLS
        assert rows[0][:2] == ["queries", "KV cache: util"]
        assert rows[-1][:2] == ["launcher", "vllm: Host memory"]


class TestRemove:
    def test_leaves_nothing_of_ours(self) -> None:
        presets("install")
        assert presets("remove") == f"queries: {QUERIES} removed\nlauncher: {CONTROLS} removed\n"
        assert presets("remove") == "queries: 0 removed\nlauncher: 0 removed\n"
        assert "The manager has none" in presets("list")

    def test_leaves_others_as_they_were(self) -> None:
        before = parameters()
        presets("install")
        assert len(parameters()) == len(before) + CONTROLS
        presets("remove")
        assert parameters() == before

    def test_is_not_for_users(self) -> None:
        presets("install")
        with pytest.raises(SetupError, match="the manager refused"):
            presets("remove", role="user")
        assert len(presets("list").splitlines()) == QUERIES + CONTROLS
