from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.policy.settings import Settings, Sharing, parse_settings


class TestParseSettings:
    def test_defaults(self) -> None:
        assert parse_settings({}) == Settings(PurePosixPath("/kvcache"), 2)

    def test_strings_as_etcd_holds_them(self) -> None:
        settings = parse_settings({"mount-point": "/mnt/kv", "concurrent-transfers": "4"})
        assert settings == Settings(PurePosixPath("/mnt/kv"), 4)

    def test_sharing(self) -> None:
        assert parse_settings({"sharing": "user"}).sharing is Sharing.USER

    def test_ways(self) -> None:
        settings = parse_settings({
            "connector": "lmcache-posix",
            "transport": "posix",
            "cpu-tier": "64GiB",
            "io-threads": "16",
            "direct-io": "true",
        })
        assert settings == Settings(
            wish=Wish("lmcache-posix", Transport.POSIX),
            cpu_tier_bytes=68_719_476_736,
            io_threads=16,
            direct_io=True,
        )

    def test_left_to_the_plugin(self) -> None:
        keys = ("connector", "transport", "cpu-tier", "io-threads", "direct-io")
        assert parse_settings(dict.fromkeys(keys, "auto")) == Settings()

    def test_no_tier(self) -> None:
        assert parse_settings({"cpu-tier": "off"}).cpu_tier_bytes == 0

    def test_keys_of_others_are_ignored(self) -> None:
        assert parse_settings({"unrelated": "1"}) == Settings()

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("mount-point", "kvcache"),
            ("mount-point", "/"),
            ("mount-point", "/a/../b"),
            ("mount-point", ""),
            ("sharing", "everybody"),
            ("concurrent-transfers", "0"),
            ("concurrent-transfers", "65"),
            ("concurrent-transfers", "two"),
            ("concurrent-transfers", {"nested": "1"}),
            ("connector", "lmcache"),
            ("transport", "rdma"),
            ("cpu-tier", "plenty"),
            ("cpu-tier", "0"),
            ("io-threads", "0"),
            ("direct-io", "perhaps"),
        ],
    )
    def test_error_names_key_and_value(self, key: str, value: object) -> None:
        with pytest.raises(PolicyError) as caught:
            parse_settings({key: value})
        assert f"{key} = {value!r}" in str(caught.value)
