from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ai.backend.agent.affinity_map import AffinityMap, AffinityPolicy
from ai.backend.agent.alloc_map import DeviceSlotInfo, DiscretePropertyAllocMap
from ai.backend.agent.resources import AbstractComputeDevice, allocate
from ai.backend.common.types import DeviceId, DeviceName, SlotName, SlotTypes

from ai.backend.kvcache.agent import device
from ai.backend.kvcache.doctor.allocation_order import (
    judge_order,
    numa_nodes,
    order_of,
    repair_order,
    repaired,
    right_order,
    write_with_backup,
)
from ai.backend.kvcache.doctor.check import RepairError, Status, ok
from ai.backend.kvcache.doctor.config_file import ConfigFile

RESTART = "then restart the agent; running sessions stay"


class TestJudgeOrder:
    def test_what_the_installer_writes(self, sample: str) -> None:
        finding = judge_order(order_of(tomllib.loads(sample)), 2)
        assert finding.status is Status.FAILED
        assert finding.text == 'allocation-order has no "kvcache": no session starts'
        assert finding.remedy == (
            'set allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]; ' + RESTART
        )

    def test_nothing_said(self) -> None:
        finding = judge_order(order_of({"agent": {}}), 1)
        assert finding.status is Status.FAILED
        assert finding.text == (
            'there is no [resource] allocation-order, and Backend.AI\'s own has no "kvcache": '
            "no session starts"
        )
        assert finding.remedy == (
            'add allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"] to '
            f"[resource]; {RESTART}"
        )

    def test_before_the_gpus(self) -> None:
        finding = judge_order(["cuda", "kvcache", "rocm", "tpu", "cpu", "mem"], 1)
        assert finding.status is Status.FAILED
        assert finding.text == (
            'allocation-order has "kvcache" before "rocm", "tpu": '
            "sessions with GPUs get GPU_COUNT=0"
        )
        assert finding.remedy == (
            'set allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]; ' + RESTART
        )

    def test_before_the_cores_on_several_numa_nodes(self) -> None:
        order = ["cuda", "kvcache", "cpu", "mem"]
        finding = judge_order(order, 2)
        assert finding.status is Status.WARNING
        assert "cores of any of the 2 NUMA nodes" in finding.text
        assert judge_order(order, 1) == ok("cuda, kvcache, cpu, mem")

    def test_last(self) -> None:
        assert judge_order(["cuda", "cpu", "mem", "kvcache"], 8).status is Status.OK
        assert judge_order(["cuda", "cpu", "kvcache", "mem"], 8).status is Status.OK

    @pytest.mark.parametrize("order", ["cuda", [1], {"cuda": 1}, 0, []])
    def test_odd_values(self, order: Any) -> None:
        assert judge_order(order, 1).status is Status.FAILED

    def test_other_spelling(self) -> None:
        assert order_of({"resource": {"allocation_order": ["cpu"]}}) == ["cpu"]
        assert order_of({"resource": "odd"}) is None


class _Device(AbstractComputeDevice):
    """A core or a GPU of a NUMA node."""


def _devices(name: str, count: int, on_each_node: int) -> list[AbstractComputeDevice]:
    return [
        _Device(DeviceId(f"{name}{i}"), "", 0, 1, i // on_each_node, DeviceName(name))
        for i in range(count)
    ]


def cores_of_a_gpu_session(order: Sequence[str]) -> list[str]:
    """Which cores Backend.AI itself gives to a session with two GPUs of NUMA node 1.

    There are two nodes with four cores and two GPUs each, and node 0's GPUs are taken. The manager
    asks for no KV cache device, as for most sessions.
    """
    cores, gpus = _devices("cpu", 8, 4), _devices("cuda", 4, 2)
    kvcache = list(device.list_devices())

    def map_of(devices: Sequence[AbstractComputeDevice], slot: str) -> DiscretePropertyAllocMap:
        slots = {
            d.device_id: DeviceSlotInfo(SlotTypes.COUNT, SlotName(slot), Decimal(1))
            for d in devices
        }
        return DiscretePropertyAllocMap(device_slots=slots, exclusive_slot_types=set())

    maps = {"cpu": map_of(cores, "cpu"), "cuda": map_of(gpus, "cuda.device")}
    for taken in ("cuda0", "cuda1"):
        maps["cuda"].allocations[SlotName("cuda.device")][DeviceId(taken)] = Decimal(1)
    computers = {
        DeviceName("cpu"): SimpleNamespace(alloc_map=maps["cpu"], devices=cores),
        DeviceName("cuda"): SimpleNamespace(alloc_map=maps["cuda"], devices=gpus),
        device.KEY: SimpleNamespace(alloc_map=device.create_alloc_map(), devices=kvcache),
    }
    spec = SimpleNamespace(
        slots={"cpu": "2", "cuda.device": "2", "kvcache.device": "0"}, allocations={}
    )
    allocate(
        cast(Any, computers),
        cast(Any, spec),
        [DeviceName(name) for name in order],
        AffinityMap.build([*cores, *gpus, *kvcache]),
        AffinityPolicy.INTERLEAVED,
    )
    return sorted(spec.allocations["cpu"]["cpu"])


class TestWhatBackendAIMakesOfIt:
    """That the findings say what is so, by Backend.AI's own allocation."""

    def test_no_session_starts_without_it(self) -> None:
        with pytest.raises(ValueError, match="'kvcache' is not in list"):
            cores_of_a_gpu_session(["cuda", "cpu", "mem"])

    def test_last_keeps_the_cores_near_the_gpus(self) -> None:
        assert cores_of_a_gpu_session(["cuda", "cpu", "mem", "kvcache"]) == ["cpu4", "cpu5"]

    def test_between_gpus_and_cores_does_not(self) -> None:
        assert cores_of_a_gpu_session(["cuda", "kvcache", "cpu", "mem"]) == ["cpu0", "cpu4"]


IN_LINES = """\
# Ours.
[agent]
mode = "docker"  # or kubernetes

[resource]
# GPUs first.
allocation-order = [
    "kvcache",
    "cuda",  # the GPUs
    # and the host's own
    "cpu",
    "mem",
]  # that is all
affinity-policy = "INTERLEAVED"
"""


class TestRepaired:
    def test_what_the_installer_writes(self, sample: str) -> None:
        old, new = (
            'allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem"]',
            'allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]',
        )
        assert sample.count(old) == 1
        assert repaired(sample) == sample.replace(old, new)

    def test_lines_and_their_comments_stay(self) -> None:
        assert repaired(IN_LINES) == IN_LINES.replace('    "kvcache",\n', "").replace(
            '    "mem",\n', '    "mem",\n    "kvcache",\n'
        )

    @pytest.mark.parametrize(
        ("text", "order"),
        [
            ("", ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]),
            ("[agent]\nid = 'a'\n# end\n", ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]),
            ("[resource]\nreserved-cpu = 1\n", ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]),
            ("resource = { allocation-order = ['cpu'] }\n", ["cpu", "kvcache"]),
            ("resource.allocation-order = ['kvcache', 'atom']\n[x]\ny = 1\n", ["atom", "kvcache"]),
            ("[resource]\nallocation_order = ['cpu', 'mem']\n", ["cpu", "mem", "kvcache"]),
            ("[resource]\nallocation-order = []\n", ["kvcache"]),
            ("[resource]\nallocation-order = ['kvcache', 'cpu', 'kvcache']\n", ["cpu", "kvcache"]),
        ],
    )
    def test_however_it_is_written(self, text: str, order: list[str]) -> None:
        before, after = tomllib.loads(text), tomllib.loads(repaired(text))
        assert order_of(after) == order == right_order(order_of(before))
        for lines in text.splitlines():
            assert "allocation" in lines or lines in repaired(text)

    def test_twice_is_once(self) -> None:
        once = repaired(IN_LINES)
        assert repaired(once) == once

    @pytest.mark.parametrize(
        "text", ["[resource", "resource = 1\n", "[resource]\nallocation-order = 'cuda'\n"]
    )
    def test_what_is_not_understood_is_not_changed(self, text: str) -> None:
        with pytest.raises(RepairError):
            repaired(text)


NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class TestWriteWithBackup:
    def test_old_one_is_kept_beside_it(self, agent_toml: Path, sample: str) -> None:
        agent_toml.chmod(0o640)
        backup = write_with_backup(agent_toml, "new\n", NOW)
        assert backup.name == "agent.toml.20260304T050607Z.bak"
        assert (backup.read_text(), agent_toml.read_text()) == (sample, "new\n")
        # Both hold etcd's password.
        assert {stat.S_IMODE(p.stat().st_mode) for p in (backup, agent_toml)} == {0o640}
        assert sorted(p.name for p in agent_toml.parent.iterdir() if p.is_file()) == [
            "agent.toml",
            "agent.toml.20260304T050607Z.bak",
        ]

    def test_a_link_stays_one(self, agent_toml: Path, tmp_path: Path) -> None:
        link = tmp_path / "home" / "agent.toml"
        link.symlink_to(agent_toml)
        backup = write_with_backup(link, "new\n", NOW)
        assert link.is_symlink()
        assert (agent_toml.read_text(), backup.parent) == ("new\n", tmp_path)

    def test_a_backup_is_never_written_over(self, agent_toml: Path) -> None:
        write_with_backup(agent_toml, "new\n", NOW)
        with pytest.raises(RepairError, match="cannot be written: File exists"):
            write_with_backup(agent_toml, "newer\n", NOW)
        assert agent_toml.read_text() == "new\n"

    def test_nothing_is_left_where_it_cannot_be_written(self, tmp_path: Path) -> None:
        # Not even root may make files in /proc.
        with pytest.raises(RepairError, match=r"/proc/version cannot be written"):
            write_with_backup(Path("/proc/version"), "new\n", NOW)


def test_repair_of_a_file(agent_toml: Path, sample: str) -> None:
    said = repair_order(ConfigFile(agent_toml))
    (backup,) = agent_toml.parent.glob("agent.toml.*.bak")
    assert said == (
        f"allocation-order is put right in {agent_toml}; what it was is in {backup.name}"
    )
    assert backup.read_text() == sample
    order = order_of(tomllib.loads(agent_toml.read_text()))
    assert judge_order(order, 8) == ok("cuda, rocm, tpu, cpu, mem, kvcache")
    assert json.dumps(order) in agent_toml.read_text()


def test_numa_nodes_of_this_machine() -> None:
    online = Path("/sys/devices/system/node/online")
    if not online.exists():
        pytest.skip("this kernel has no NUMA")
    assert numa_nodes() >= 1
