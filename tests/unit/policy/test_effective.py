"""Where each setting comes from, held against what the agents make of the same policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.policy.edit import SITE, Level
from ai.backend.kvcache.policy.effective import Effective, effective_settings
from ai.backend.kvcache.policy.policy import check_policy
from ai.backend.kvcache.policy.settings import SETTINGS, check_level, settings_of

PROJECT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
OF_PROJECT = Level("projects", PROJECT)
OF_GROUP = Level("resource-groups", "h100")


def one(document: dict[str, Any], name: str) -> Effective:
    return next(s for s in effective_settings(document, "h100", PROJECT) if s.name == name)


def test_defaults() -> None:
    settings = effective_settings({})
    assert [s.name for s in settings] == list(SETTINGS)
    assert {s.name: s.value for s in settings if s.value is not None} == {
        "mode": "explicit",
        "mount-point": "/kvcache",
        "concurrent-transfers": "2",
        "sharing": "project",
        "connector": "auto",
        "transport": "auto",
        "cpu-tier": "auto",
        "io-threads": "auto",
        "direct-io": "auto",
        "utilization-floor": "0",
        "folder-name": "kv-cache",
        "watermarks": "75-90",
    }
    assert all(s.level is None for s in settings)


def test_narrower_wins() -> None:
    document = {
        "sharing": "project",
        "resource-groups": {"h100": {"sharing": "user"}},
        "projects": {PROJECT: {"sharing": "session"}},
    }
    assert one(document, "sharing") == Effective("sharing", "session", OF_PROJECT)
    del document["projects"]
    assert one(document, "sharing") == Effective("sharing", "user", OF_GROUP)
    del document["resource-groups"]
    assert one(document, "sharing") == Effective("sharing", "project", SITE)


def test_levels_of_others_do_not_count() -> None:
    document = {
        "resource-groups": {"h100": {"mode": "off"}},
        "projects": {PROJECT: {"mode": "auto"}},
    }
    assert effective_settings(document)[0] == Effective("mode", "explicit", None)
    assert effective_settings(document, "other", PROJECT)[0] == Effective(
        "mode", "auto", OF_PROJECT
    )


def test_off_is_not_undone() -> None:
    document = {
        "mode": "auto",
        "resource-groups": {"h100": {"mode": "off"}},
        "projects": {PROJECT: {"mode": "auto"}},
    }
    assert one(document, "mode") == Effective("mode", "off", OF_GROUP)


def test_auto_undoes_what_a_wider_level_says() -> None:
    document = {"transport": "gds", "projects": {PROJECT: {"transport": "auto"}}}
    assert one(document, "transport") == Effective("transport", "auto", OF_PROJECT)


@pytest.mark.parametrize(("value", "text"), [(3, "3"), ("3", "3")])
def test_numbers(value: Any, text: str) -> None:
    assert one({"concurrent-transfers": value}, "concurrent-transfers").value == text


def test_truth_values() -> None:
    assert one({"direct-io": True}, "direct-io").value == "true"


LEVEL = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["explicit", "auto", "off"]),
        "sharing": st.sampled_from(["session", "user", "project"]),
        "transport": st.sampled_from(["auto", "gds", "posix"]),
        "cpu-tier": st.sampled_from(["auto", "off", "40GiB"]),
        "direct-io": st.sampled_from(["auto", True, "false"]),
        "concurrent-transfers": st.sampled_from([1, "4"]),
        "watermarks": st.sampled_from(["10-20", "75-90"]),
        "age-limit": st.just("30d"),
    },
)


@given(site=LEVEL, group=LEVEL, project=LEVEL)
def test_same_as_the_agents(
    site: dict[str, Any], group: dict[str, Any], project: dict[str, Any]
) -> None:
    document = {**site, "resource-groups": {"h100": group}, "projects": {PROJECT: project}}
    shown = effective_settings(document, "h100", PROJECT)
    applied = check_policy(document).settings_for("h100", PROJECT)
    said = {s.name: s.value for s in shown if s.value is not None}
    assert settings_of(check_level(said)) == applied
