from __future__ import annotations

import pytest

from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.policy.request import Request, read_request
from ai.backend.kvcache.policy.settings import Settings, Sharing


class TestVariables:
    def test_none(self) -> None:
        assert read_request({"PATH": "/bin"}) == Request()

    def test_empty_ones_say_nothing(self) -> None:
        names = ("", "_FOLDER", "_BUFFER", "_TRANSPORT", "_CPU", "_SHARE")
        assert read_request({f"BACKENDAI_KVCACHE{name}": "" for name in names}) == Request()

    @pytest.mark.parametrize(
        ("value", "wanted"),
        [("auto", True), ("True", True), ("on", True), ("off", False), ("false", False)],
    )
    def test_switch(self, value: str, wanted: bool) -> None:
        assert read_request({"BACKENDAI_KVCACHE": value}).wanted is wanted

    def test_all_others(self) -> None:
        request = read_request({
            "BACKENDAI_KVCACHE_FOLDER": "my-kv",
            "BACKENDAI_KVCACHE_BUFFER": "24g",
            "BACKENDAI_KVCACHE_TRANSPORT": "posix",
            "BACKENDAI_KVCACHE_CPU": "40GiB",
            "BACKENDAI_KVCACHE_SHARE": "session",
        })
        assert (request.folder, request.buffer_bytes) == ("my-kv", 25_769_803_776)
        assert request.narrow(Settings()) == Settings(
            sharing=Sharing.SESSION,
            cpu_tier_bytes=42_949_672_960,
            wish=Wish(None, Transport.POSIX),
            buffer_bytes=25_769_803_776,
        )

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("BACKENDAI_KVCACHE", "perhaps"),
            ("BACKENDAI_KVCACHE_BUFFER", "much"),
            ("BACKENDAI_KVCACHE_TRANSPORT", "rdma"),
            ("BACKENDAI_KVCACHE_CPU", "much"),
            ("BACKENDAI_KVCACHE_SHARE", "everybody"),
        ],
    )
    def test_error_names_variable_and_value(self, variable: str, value: str) -> None:
        with pytest.raises(PolicyError) as caught:
            read_request({variable: value})
        assert variable in str(caught.value)
        assert repr(value) in str(caught.value)


class TestNarrowing:
    def test_what_is_not_said_stays(self) -> None:
        settings = Settings(cpu_tier_bytes=1, wish=Wish("lmcache-mp", Transport.POSIX))
        assert Request().narrow(settings) == settings

    def test_auto_leaves_it_to_the_plugin(self) -> None:
        settings = Settings(cpu_tier_bytes=1, wish=Wish("lmcache-mp", Transport.POSIX))
        request = read_request({
            "BACKENDAI_KVCACHE_TRANSPORT": "auto",
            "BACKENDAI_KVCACHE_CPU": "auto",
        })
        assert request.narrow(settings) == Settings(wish=Wish("lmcache-mp", None))

    @pytest.mark.parametrize(
        ("allowed", "asked", "given"),
        [
            (Sharing.PROJECT, "user", Sharing.USER),
            (Sharing.PROJECT, "project", Sharing.PROJECT),
            (Sharing.USER, "session", Sharing.SESSION),
            (Sharing.USER, "project", None),
            (Sharing.SESSION, "user", None),
        ],
    )
    def test_nobody_shares_more_widely_than_allowed(
        self, allowed: Sharing, asked: str, given: Sharing | None
    ) -> None:
        request = read_request({"BACKENDAI_KVCACHE_SHARE": asked})
        settings = Settings(sharing=allowed)
        if given is None:
            with pytest.raises(PolicyError, match="more widely than the administrator allows"):
                request.narrow(settings)
        else:
            assert request.narrow(settings).sharing is given
