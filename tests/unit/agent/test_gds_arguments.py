"""What containers get of a host for GPUDirect Storage, in the words of Docker's API.

The host is a tree of real files and device nodes. Merged is with the agent's own function.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ai.backend.agent.utils import update_nested_dict

from ai.backend.kvcache.agent.plugin import KVCachePlugin

type KernelMaker = Callable[[], Any]


def device(path: str) -> dict[str, str]:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}


def mount(path: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": path, "Target": path, "ReadOnly": True}


DEVICES = [device("/dev/nvidia-fs0"), device("/dev/nvidia-fs1")]
MOUNTS = [mount("/run/udev/data"), mount("/etc/cufile.json")]


@pytest.fixture
def host(tmp_path: Path, plugin: KVCachePlugin, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that can do it; nobody else gives anything of it to containers."""
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    root = tmp_path / "host"
    for name in ("dev", "etc", "proc/driver/nvidia-fs", "run/udev/data", "home"):
        (root / name).mkdir(parents=True)
    (root / "proc/driver/nvidia-fs/version").write_text("version: 2.28\n")
    (root / "etc/cufile.json").write_text("{}")
    for number in (0, 1):
        os.mknod(root / f"dev/nvidia-fs{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    monkeypatch.setattr(plugin, "_root", root)
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def make(make_kernel: Callable[..., Any]) -> KernelMaker:
    def make() -> Any:
        kernel = make_kernel()
        kernel.resource_spec.allocations["cuda"] = {"cuda.device": {"0": Decimal(1)}}
        return kernel

    return make


def engine(kernel: Any) -> str:
    return str(json.loads((kernel.source_path / "plan.json").read_text())["engine"])


class TestArguments:
    async def test_host_that_can(self, host: Path, make: KernelMaker) -> None:
        kernel = make()
        await kernel.create()
        assert engine(kernel) == "lmcache-gds"
        assert kernel.docker_args == {"HostConfig": {"Devices": DEVICES, "Mounts": MOUNTS}}

    async def test_host_without_the_driver(self, host: Path, make: KernelMaker) -> None:
        (host / "proc/driver/nvidia-fs/version").unlink()
        kernel = make()
        await kernel.create()
        assert engine(kernel) == "lmcache-posix"
        assert set(kernel.docker_args["HostConfig"]) == {"Tmpfs"}

    async def test_session_without_gpus(self, host: Path, make_kernel: Callable[..., Any]) -> None:
        kernel = make_kernel()
        await kernel.create()
        assert set(kernel.docker_args["HostConfig"]) == {"ShmSize"}

    async def test_two_kernels_share_no_list(self, host: Path, make: KernelMaker) -> None:
        # The agent puts what others give behind what is in the lists.
        one, other = make(), make()
        await one.create()
        await other.create()
        one.docker_args["HostConfig"]["Devices"].append(device("/dev/other"))
        assert other.docker_args["HostConfig"]["Devices"] == DEVICES


class TestOthers:
    async def test_what_they_give_stays(self, host: Path, make: KernelMaker) -> None:
        kernel = make()
        await kernel.create()
        merged: dict[str, Any] = {
            "HostConfig": {
                "DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["0"]}],
                "Devices": [device("/dev/infiniband")],
                "Mounts": [mount("/opt/tool")],
                "Binds": ["/opt/other:/opt/other:ro"],
            }
        }
        update_nested_dict(merged, kernel.docker_args)
        assert merged == {
            "HostConfig": {
                "DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["0"]}],
                "Devices": [device("/dev/infiniband"), *DEVICES],
                "Mounts": [mount("/opt/tool"), *MOUNTS],
                "Binds": ["/opt/other:/opt/other:ro"],
            }
        }

    async def test_other_plugin_gives_the_same(self, host: Path, make: KernelMaker) -> None:
        kernel = make()
        kernel.context.computer_docker_args = {
            "HostConfig": {"Devices": [device("/dev/nvidia-fs1")], "Mounts": [MOUNTS[0]]}
        }
        await kernel.create()
        assert kernel.docker_args == {"HostConfig": {"Devices": DEVICES[:1], "Mounts": MOUNTS[1:]}}

    async def test_agent_gives_the_same(self, host: Path, make: KernelMaker) -> None:
        kernel = make()
        kernel.context.container_configs = [{"HostConfig": {"Devices": DEVICES}}]
        await kernel.create()
        assert kernel.docker_args == {"HostConfig": {"Mounts": MOUNTS}}

    async def test_folder_of_the_user(self, host: Path, make: KernelMaker) -> None:
        kernel = make()
        kernel.resource_spec.mounts.append(SimpleNamespace(target=Path("/run/udev/data")))
        await kernel.create()
        assert kernel.docker_args["HostConfig"]["Mounts"] == MOUNTS[1:]

    @pytest.mark.parametrize("place", ["", "home/.config/backend.ai"])
    @pytest.mark.parametrize(
        "options",
        [
            {"Binds": ["/srv/cufile.json:/etc/cufile.json:ro"]},
            {"Mounts": [mount("/etc/cufile.json")]},
            {"Tmpfs": {"/etc/cufile.json/": ""}},
        ],
    )
    async def test_options_of_the_administrator(
        self, host: Path, make: KernelMaker, place: str, options: dict[str, Any]
    ) -> None:
        directory = host / place
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "agent-docker-container-opts.json"
        file.write_text(json.dumps({"HostConfig": options}))
        kernel = make()
        await kernel.create()
        assert kernel.docker_args == {"HostConfig": {"Devices": DEVICES, "Mounts": MOUNTS[:1]}}

    @pytest.mark.parametrize("text", ["{", '{"HostConfig": {"Mounts": ["/etc"]}}', "[]"])
    async def test_options_that_are_not_understood(
        self, host: Path, make: KernelMaker, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        # A container that Docker refuses is worse than data that goes through host memory.
        (host / "agent-docker-container-opts.json").write_text(text)
        kernel = make()
        with caplog.at_level(logging.WARNING):
            await kernel.create()
        assert kernel.docker_args == {}
        assert engine(kernel) == "lmcache-gds"
        (line,) = (r.getMessage() for r in caplog.records if "not understood" in r.getMessage())
        assert kernel.context.kernel_id in line
