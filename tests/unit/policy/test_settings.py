from __future__ import annotations

from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.policy.place import Host, Place
from ai.backend.kvcache.policy.policy import Policy, check_policy
from ai.backend.kvcache.policy.settings import Mode, Settings, Sharing, Watermarks

VFID = "project:2de2b969-1d04-48a6-af16-0bc8adb3c831/cebf99436f3746efb37451f346bdfd50"
PLACE = f"local:volume1/{VFID}"


def settings(document: dict[str, Any]) -> Settings:
    return check_policy(document).settings_for(None, None)


class TestValues:
    def test_defaults(self) -> None:
        assert settings({}) == Settings(
            mode=Mode.EXPLICIT,
            mount_point=PurePosixPath("/kvcache"),
            concurrent_transfers=2,
            sharing=Sharing.PROJECT,
        )

    def test_all(self) -> None:
        assert settings({
            "mode": "auto",
            "folder": PLACE,
            "mount-point": "/mnt/kv",
            # As on a command line.
            "concurrent-transfers": "4",
            "sharing": "user",
            "connector": "lmcache-posix",
            "transport": "posix",
            "cpu-tier": "64GiB",
            "io-threads": 16,
            "direct-io": "true",
            "utilization-floor": "0.5",
            "storage-host": "local:volume1",
            "folder-name": "contexts",
            "folder-cap": "2TiB",
            "age-limit": "30d",
            "watermarks": "70-85",
        }) == Settings(
            mode=Mode.AUTO,
            folder=Place(Host("local", "volume1"), VFID),
            mount_point=PurePosixPath("/mnt/kv"),
            concurrent_transfers=4,
            sharing=Sharing.USER,
            wish=Wish("lmcache-posix", Transport.POSIX),
            cpu_tier_bytes=68_719_476_736,
            io_threads=16,
            direct_io=True,
            utilization_floor=Decimal("0.5"),
            storage_host=Host("local", "volume1"),
            folder_name="contexts",
            folder_cap_bytes=2_199_023_255_552,
            # 30 days of 86,400 s
            age_limit_seconds=2_592_000,
            watermarks=Watermarks(high=85, low=70),
        )

    def test_left_to_the_plugin(self) -> None:
        keys = ("connector", "transport", "cpu-tier", "io-threads", "direct-io")
        assert settings(dict.fromkeys(keys, "auto")) == Settings()

    def test_no_tier(self) -> None:
        assert settings({"cpu-tier": "off"}).cpu_tier_bytes == 0

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("mode", "on"),
            ("folder", "kv-cache"),
            ("folder", PLACE + "/.."),
            ("folder", "local:volume1/../cebf99436f3746efb37451f346bdfd50"),
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
            ("utilization-floor", "1.5"),
            ("utilization-floor", "half"),
            ("storage-host", "volume1"),
            ("folder-name", "../elsewhere"),
            ("folder-name", "x" * 56),
            ("folder-cap", "much"),
            ("age-limit", "30"),
            ("age-limit", "0d"),
            ("watermarks", "90-70"),
            ("watermarks", "90"),
            ("cpu_tier", "64GiB"),
        ],
    )
    def test_error_names_key_and_value(self, key: str, value: object) -> None:
        with pytest.raises(PolicyError) as caught:
            settings({key: value})
        assert f"{key} = {value!r}" in str(caught.value)

    def test_all_errors_at_once(self) -> None:
        with pytest.raises(PolicyError) as caught:
            check_policy({
                "cpu-tier": "much",
                "resource-groups": {"gpus": {"mode": "on"}},
            })
        assert "cpu-tier = 'much'" in str(caught.value)
        assert "resource-groups.gpus.mode = 'on'" in str(caught.value)


def test_nothing_is_said() -> None:
    assert Policy().settings_for("gpus", "p1") == Settings()
