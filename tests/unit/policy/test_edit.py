"""A policy's document, changed at one level."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.policy.edit import (
    SITE,
    Level,
    levels_of,
    with_settings,
    without_settings,
)

PROJECT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
OF_PROJECT = Level("projects", PROJECT)
OF_GROUP = Level("resource-groups", "h100")

DOCUMENT: dict[str, Any] = {
    "mode": "auto",
    "resource-groups": {"h100": {"cpu-tier": "40GiB"}},
    "projects": {PROJECT: {"mode": "off", "sharing": "user"}},
}


class TestSet:
    @pytest.mark.parametrize(
        ("level", "expected"),
        [
            (SITE, {**DOCUMENT, "sharing": "session"}),
            (
                OF_GROUP,
                {
                    **DOCUMENT,
                    "resource-groups": {"h100": {"cpu-tier": "40GiB", "sharing": "session"}},
                },
            ),
            (
                OF_PROJECT,
                {**DOCUMENT, "projects": {PROJECT: {"mode": "off", "sharing": "session"}}},
            ),
        ],
    )
    def test_beside_what_is_said(self, level: Level, expected: dict[str, Any]) -> None:
        assert with_settings(DOCUMENT, level, {"sharing": "session"}) == expected

    def test_first_of_a_level(self) -> None:
        assert with_settings({}, OF_GROUP, {"mode": "off"}) == {
            "resource-groups": {"h100": {"mode": "off"}}
        }

    def test_document_stays_as_it_was(self) -> None:
        document = {"projects": {PROJECT: {"mode": "off"}}}
        with_settings(document, OF_PROJECT, {"mode": "auto"})
        without_settings(document, OF_PROJECT, ["mode"])
        assert document == {"projects": {PROJECT: {"mode": "off"}}}

    @pytest.mark.parametrize(
        ("name", "near"),
        [("cpu_tier", "cpu-tier"), ("Transports", "transport"), ("sharings", "sharing")],
    )
    def test_name_that_is_nearly_one(self, name: str, near: str) -> None:
        with pytest.raises(PolicyError, match=f"'{name}' is no setting; did you mean {near}"):
            with_settings({}, SITE, {name: "x"})

    @pytest.mark.parametrize("name", ["xyzzy", "projects", ""])
    def test_name_that_is_none(self, name: str) -> None:
        with pytest.raises(PolicyError, match=f"'{name}' is no setting; "):
            with_settings({}, SITE, {name: "x"})


class TestUnset:
    def test_some(self) -> None:
        assert without_settings(DOCUMENT, OF_PROJECT, ["sharing"]) == {
            **DOCUMENT,
            "projects": {PROJECT: {"mode": "off"}},
        }

    def test_no_level_is_left_empty(self) -> None:
        document = without_settings(DOCUMENT, OF_PROJECT, ["sharing", "mode"])
        assert document == {k: v for k, v in DOCUMENT.items() if k != "projects"}

    @pytest.mark.parametrize("level", [SITE, OF_GROUP, Level("resource-groups", "other")])
    def test_what_is_not_set(self, level: Level) -> None:
        assert without_settings(DOCUMENT, level, ["watermarks"]) == DOCUMENT

    def test_what_is_no_setting_and_is_there(self) -> None:
        """Written past us, or of another version."""
        assert without_settings({"made-up": 1, "mode": "off"}, SITE, ["made-up"]) == {"mode": "off"}
        with pytest.raises(PolicyError, match="'made-up' is no setting"):
            without_settings({}, SITE, ["made-up"])

    @pytest.mark.parametrize("levels", [3, {PROJECT: 3}, ["x"]])
    def test_document_that_is_none(self, levels: Any) -> None:
        with pytest.raises(PolicyError, match="projects must map names to settings"):
            without_settings({"projects": levels}, OF_PROJECT, ["mode"])


def test_levels() -> None:
    assert levels_of(DOCUMENT) == (SITE, OF_GROUP, OF_PROJECT)
    assert [str(level) for level in levels_of(DOCUMENT)] == [
        "the site",
        "resource group h100",
        f"project {PROJECT}",
    ]
