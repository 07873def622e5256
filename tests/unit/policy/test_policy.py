from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.policy.policy import (
    MAX_BYTES,
    check_policy,
    parse_plugin_config,
    policy_text,
    read_policy,
)
from ai.backend.kvcache.policy.settings import Mode, Settings

P1 = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
P2 = "6f0e6b1c-0000-4000-8000-000000000000"


class TestLevels:
    def test_the_narrower_wins(self) -> None:
        policy = check_policy({
            "cpu-tier": "1GiB",
            "io-threads": 1,
            "concurrent-transfers": 1,
            "resource-groups": {"gpus": {"io-threads": 2, "concurrent-transfers": 2}},
            "projects": {P1: {"concurrent-transfers": 3}},
        })
        found = policy.settings_for("gpus", P1)
        assert (found.cpu_tier_bytes, found.io_threads, found.concurrent_transfers) == (2**30, 2, 3)
        found = policy.settings_for("others", P2)
        assert (found.io_threads, found.concurrent_transfers) == (1, 1)

    def test_auto_undoes_what_a_wider_level_says(self) -> None:
        document: dict[str, Any] = {
            "transport": "gds",
            "connector": "lmcache-gds",
            "cpu-tier": "40GiB",
            "io-threads": 4,
            "direct-io": True,
        }
        document["projects"] = {P1: dict.fromkeys(document, "auto")}
        assert check_policy(document).settings_for(None, P1) == Settings()

    @pytest.mark.parametrize(
        ("site", "group", "project", "mode"),
        [
            (None, None, None, Mode.EXPLICIT),
            ("auto", None, None, Mode.AUTO),
            ("auto", "explicit", None, Mode.EXPLICIT),
            ("explicit", None, "auto", Mode.AUTO),
            # What a wider level has switched off, no narrower one switches on.
            ("off", "auto", "auto", Mode.OFF),
            ("auto", "off", "auto", Mode.OFF),
            ("auto", "auto", "off", Mode.OFF),
        ],
    )
    def test_mode(
        self, site: str | None, group: str | None, project: str | None, mode: Mode
    ) -> None:
        def level(value: str | None) -> dict[str, Any]:
            return {} if value is None else {"mode": value}

        policy = check_policy({
            **level(site),
            "resource-groups": {"gpus": level(group)},
            "projects": {P1: level(project)},
        })
        assert policy.settings_for("gpus", P1).mode is mode


class TestDocument:
    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ([], "maps names to values"),
            ({"projects": []}, "projects must map names to settings"),
            ({"projects": {P1: "auto"}}, "projects must map names to settings"),
            ({"projects": {"my-project": {}}}, "'my-project' is none"),
            ({"resource-groups": {"gpus": {"projects": {}}}}, "resource-groups.gpus.projects"),
        ],
    )
    def test_that_is_none(self, document: Any, message: str) -> None:
        with pytest.raises(PolicyError, match=message):
            check_policy(document)

    def test_goes_through_etcd(self) -> None:
        document = {"mode": "auto", "projects": {P1: {"cpu-tier": "40GiB"}}}
        assert read_policy(policy_text(document)) == document
        assert read_policy(None) == {}

    @pytest.mark.parametrize("text", ["{", "[]", "null", '"auto"', "[" * 100_000])
    def test_value_that_is_none(self, text: str) -> None:
        with pytest.raises(PolicyError, match="config/plugins/accelerator/kvcache/policy"):
            read_policy(text)

    def test_larger_than_etcd_takes(self) -> None:
        with pytest.raises(PolicyError, match="1048576 bytes"):
            policy_text({"folder-name": "x" * MAX_BYTES})

    def test_as_backend_ai_hands_it_over(self) -> None:
        config = {"policy": json.dumps({"mode": "auto"}), "allowed": "whatever Backend.AI keeps"}
        assert parse_plugin_config(config).settings_for(None, None).mode is Mode.AUTO
        assert parse_plugin_config({}).settings_for(None, None).mode is Mode.EXPLICIT
        with pytest.raises(PolicyError, match="delete them"):
            parse_plugin_config({"policy": {"mode": "auto"}})

    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["mode", "projects", "resource-groups", "cpu-tier", P1])
                    | st.text(max_size=4),
                    inner,
                    max_size=4,
                )
            ),
        )
    )
    def test_whatever_it_is(self, document: Any) -> None:
        try:
            policy = check_policy(document)
        except PolicyError:
            return
        policy.settings_for("gpus", P1)
