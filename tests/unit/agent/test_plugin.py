from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ai.backend.agent.agent import AbstractKernelCreationContext
from ai.backend.agent.resources import KernelResourceSpec
from ai.backend.common.types import ResourceSlot

from ai.backend.kvcache.agent import capture, device
from ai.backend.kvcache.agent import plugin as plugin_module
from ai.backend.kvcache.agent.plugin import KVCachePlugin

#: The plugin never calls Docker.
NO_DOCKER: Any = None

type KernelMaker = Callable[..., Any]


def plan_of(kernel: Any) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((kernel.source_path / "plan.json").read_text())
    return plan


def start_command(kernel: Any) -> list[str]:
    models = kernel.context.kernel_config["internal_data"]["model_definition"]["models"]
    return list(models[0]["service"]["start_command"])


class TestSessionWithoutKVCache:
    async def test_is_left_alone(self, plugin: KVCachePlugin, make_kernel: KernelMaker) -> None:
        kernel = make_kernel(with_folder=False)
        before = copy.deepcopy((kernel.environ, kernel.context.kernel_config))
        await kernel.create()
        assert (kernel.environ, kernel.context.kernel_config) == before
        assert kernel.docker_args == {}
        assert list(kernel.config_dir.iterdir()) == []

    async def test_of_a_kind_never_seen(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        kernel = make_kernel()
        kernel.context.kernel_config = {"mounts": None}
        await kernel.create()
        assert kernel.docker_args == {}


class TestSessionWithKVCache:
    async def test_is_prepared(self, plugin: KVCachePlugin, make_kernel: KernelMaker) -> None:
        kernel = make_kernel()
        await kernel.create()
        plan = plan_of(kernel)
        assert plan["kv_cache"] is True
        assert plan["kernel_id"] == kernel.context.kernel_id
        assert start_command(kernel) == [
            "sh", "/home/config/kvcache/with-server.sh",
            "vllm", "serve", "/home/config/kvcache/model", "--served-model-name", "/models",
            "--config", "/home/config/kvcache/vllm.yaml",
        ]  # fmt: skip
        # 2 GiB, for the agent and for Docker alike
        assert kernel.context.kernel_config["resource_opts"]["shmem"] == 2_147_483_648
        assert kernel.docker_args == {"HostConfig": {"ShmSize": 2_147_483_648}}
        assert (kernel.source_path / "vllm.yaml").stat().st_mode & 0o777 == 0o644

    async def test_gpus_are_seen(self, plugin: KVCachePlugin, make_kernel: KernelMaker) -> None:
        kernel = make_kernel(environ={"BACKENDAI_KVCACHE_TRANSPORT": "gds"})
        kernel.resource_spec.allocations["cuda"] = {"cuda.device": {"0": Decimal(1)}}
        await kernel.create()
        # 2 x 131,072 tokens x 131,072 bytes x 1.05 = 33.6, in whole GiB
        assert kernel.environ["LMCACHE_GDS_BUFFER_SIZE"] == "34816"
        assert plan_of(kernel)["budget"]["memory_bytes"] == 85_899_345_920

    async def test_directory_in_memory(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        kernel = make_kernel(environ={"BACKENDAI_KVCACHE_TRANSPORT": "posix"})
        kernel.resource_spec.allocations["cuda"] = {"cuda.device": {"0": Decimal(1)}}
        await kernel.create()
        assert kernel.environ["PROMETHEUS_MULTIPROC_DIR"] == "/run/kvcache-metrics"
        # Writable for whoever the session runs as.
        assert kernel.docker_args == {
            "HostConfig": {"Tmpfs": {"/run/kvcache-metrics": "mode=1777"}}
        }

    async def test_fraction_of_a_gpu(self, plugin: KVCachePlugin, make_kernel: KernelMaker) -> None:
        kernel = make_kernel(environ={"BACKENDAI_KVCACHE_TRANSPORT": "gds"})
        kernel.resource_spec.allocations["cuda"] = {"cuda.shares": {"0": Decimal("0.5")}}
        await kernel.create()
        assert plan_of(kernel)["budget"]["memory_bytes"] == 42_949_672_960

    async def test_fraction_that_another_process_could_not_open(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        # With whole GPUs LMCache's server would be taken.
        for amount, way in (("1", "lmcache-mp"), ("0.5", None)):
            kernel = make_kernel(environ={})
            kernel.context.kernel_config["image"]["labels"].update({
                "ai.backend.kvcache.engine-version": "0.29.0",
                "ai.backend.kvcache.lmcache-version": "0.5.6",
            })
            kernel.resource_spec.allocations["cuda"] = {"cuda.shares": {"0": Decimal(amount)}}
            await kernel.create()
            assert plan_of(kernel)["engine"] == way

    async def test_two_at_once_do_not_see_each_other(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        kernels = [make_kernel(with_folder=i % 2 == 0) for i in range(20)]
        await asyncio.gather(*(kernel.create() for kernel in kernels))
        for i, kernel in enumerate(kernels):
            assert kernel.source_path.exists() == (i % 2 == 0)
            if i % 2 == 0:
                assert plan_of(kernel)["kernel_id"] == kernel.context.kernel_id

    async def test_nothing_secret_is_logged_or_written(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        kernel = make_kernel(environ={"BACKENDAI_KVCACHE_FOLDER": "other"})
        await kernel.create()
        assert "s3cr3t" not in caplog.text
        assert all("s3cr3t" not in p.read_text() for p in kernel.source_path.iterdir())


class TestSessionThatRequestsTheSlot:
    """The agent attaches the device twice then: as requested, and as to every kernel."""

    @staticmethod
    def requesting(kernel: Any) -> Any:
        spec = KernelResourceSpec(
            slots=ResourceSlot({device.SLOT: Decimal(1)}),
            allocations={device.KEY: device.create_alloc_map().allocate({device.SLOT: Decimal(1)})},
            scratch_disk_size=0,
            unified_devices=[(device.KEY, device.SLOT)],
        )
        kernel.device_allocs = [{view.slot: view.device_alloc} for view in spec.device_list]
        assert len(kernel.device_allocs) == 2
        return kernel

    async def test_is_prepared_like_any_other(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        plain, kernel = make_kernel(), self.requesting(make_kernel())
        await plain.create()
        await kernel.create()
        assert plan_of(kernel)["kv_cache"] is True
        assert plan_of(kernel)["decisions"] == plan_of(plain)["decisions"]
        assert start_command(kernel) == start_command(plain)
        assert kernel.docker_args == plain.docker_args

    async def test_without_a_folder_is_left_alone(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        kernel = self.requesting(make_kernel(with_folder=False))
        await kernel.create()
        assert kernel.docker_args == {}
        assert list(kernel.config_dir.iterdir()) == []


class TestFaults:
    """Each leaves the kernel as it was, but for a plan with the reason where one can be written."""

    async def create_and_compare(self, kernel: Any) -> None:
        before = copy.deepcopy((kernel.environ, kernel.context.kernel_config))
        await kernel.create()
        assert (kernel.environ, kernel.context.kernel_config) == before
        assert kernel.docker_args == {}

    async def test_of_the_user(
        self,
        plugin: KVCachePlugin,
        make_kernel: KernelMaker,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        kernel = make_kernel(environ={"BACKENDAI_KVCACHE_FOLDER": "other"})
        await self.create_and_compare(kernel)
        assert "'other'" in plan_of(kernel)["no_kv_cache_because"]
        lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert kernel.context.kernel_id in lines[0]

    async def test_of_our_own(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A bug cannot be caused otherwise.
        def broken(*_: Any) -> None:
            raise RuntimeError("bug")

        monkeypatch.setattr(plugin_module, "prepare", broken)
        kernel = make_kernel()
        await self.create_and_compare(kernel)
        assert (
            plan_of(kernel)["no_kv_cache_because"] == "a fault of the plugin: RuntimeError('bug')"
        )

    async def test_of_a_file_server_that_hangs(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A hanging file server, which this machine does not have.
        monkeypatch.setattr(plugin_module, "prepare", lambda *_: time.sleep(0.5))
        monkeypatch.setattr(plugin_module, "PREPARE_TIMEOUT_SECONDS", 0.05)
        kernel = make_kernel()
        await self.create_and_compare(kernel)
        assert "did not answer" in plan_of(kernel)["no_kv_cache_because"]

    async def test_of_the_scratch_disk(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A full disk, which cannot be had without filling one.
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(plugin_module, "write_files", full)
        kernel = make_kernel()
        before = copy.deepcopy((kernel.environ, kernel.context.kernel_config))
        await kernel.create()
        assert (kernel.environ, kernel.context.kernel_config) == before

    async def test_of_an_agent_whose_objects_cannot_be_changed(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        kernel = make_kernel()
        model = kernel.context.kernel_config["internal_data"]["model_definition"]["models"][0]
        model["service"] = MappingProxyType(model["service"])
        command, environ = start_command(kernel), dict(kernel.environ)
        await kernel.create()
        assert (start_command(kernel), kernel.environ) == (command, environ)
        assert "a fault of the plugin" in plan_of(kernel)["no_kv_cache_because"]

    async def test_all_our_threads_hang(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Hanging file servers, which this machine does not have.
        monkeypatch.setattr(plugin_module, "prepare", lambda *_: time.sleep(1))
        monkeypatch.setattr(plugin_module, "PREPARE_TIMEOUT_SECONDS", 0.05)
        await asyncio.gather(*(make_kernel().create() for _ in range(8)))
        bystander = make_kernel(with_folder=False)
        async with asyncio.timeout(0.5):
            await bystander.create()
        assert not bystander.source_path.exists()


class TestLateWay:
    """An agent whose kernel creation has another shape: only environment and files are added."""

    @pytest.fixture
    def late_kernel(self, make_kernel: KernelMaker, monkeypatch: pytest.MonkeyPatch) -> KernelMaker:
        monkeypatch.delattr(AbstractKernelCreationContext, "mount_krunner")

        def make(**kwargs: Any) -> Any:
            kernel = make_kernel(**kwargs)
            config = {**kernel.context.kernel_config, "environ": kernel.environ}
            (kernel.config_dir / "kconfig.dat").write_bytes(pickle.dumps(config))
            (kernel.config_dir / "environ.txt").write_text("A=1\n")
            return kernel

        return make

    @pytest.fixture
    async def late_plugin(self, late_kernel: KernelMaker, scratch_root: Path) -> KVCachePlugin:
        plugin = KVCachePlugin({}, {"container": {"scratch-root": scratch_root}})
        await plugin.init()
        return plugin

    async def run(self, plugin: KVCachePlugin, kernel: Any) -> None:
        assert await plugin.generate_docker_args(NO_DOCKER, {}) == {}
        kernel.source_path.mkdir()
        assert await plugin.generate_mounts(kernel.source_path, {}) == []
        assert await plugin.generate_resource_data({}) == {}
        await plugin.cleanup()

    async def test_is_left_alone_and_told_why(
        self, late_plugin: KVCachePlugin, late_kernel: KernelMaker
    ) -> None:
        kernel = late_kernel()
        await self.run(late_plugin, kernel)
        assert (kernel.config_dir / "environ.txt").read_text() == "A=1\n"
        assert [path.name for path in kernel.source_path.iterdir()] == ["plan.json"]
        assert "cannot change the start command" in plan_of(kernel)["no_kv_cache_because"]

    async def test_without(self, late_plugin: KVCachePlugin, late_kernel: KernelMaker) -> None:
        kernel = late_kernel(with_folder=False)
        await self.run(late_plugin, kernel)
        assert not kernel.source_path.exists()
        assert (kernel.config_dir / "environ.txt").read_text() == "A=1\n"

    async def test_damaged_configuration(
        self, late_plugin: KVCachePlugin, late_kernel: KernelMaker
    ) -> None:
        kernel = late_kernel()
        (kernel.config_dir / "kconfig.dat").write_bytes(b"\x80")
        await self.run(late_plugin, kernel)
        assert (kernel.config_dir / "environ.txt").read_text() == "A=1\n"


class TestSettings:
    async def test_change_is_followed(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker
    ) -> None:
        await plugin.update_plugin_config({"policy": '{"mount-point": "/elsewhere"}'})
        kernel = make_kernel()
        await kernel.create()
        assert not kernel.source_path.exists()

    async def test_bad_change_keeps_the_last_good(
        self, plugin: KVCachePlugin, make_kernel: KernelMaker, caplog: pytest.LogCaptureFixture
    ) -> None:
        await plugin.update_plugin_config({"policy": '{"mount-point": "nowhere"}'})
        assert "mount-point = 'nowhere'" in caplog.text
        kernel = make_kernel()
        await kernel.create()
        assert plan_of(kernel)["kv_cache"] is True


class TestCapture:
    async def test_installs_once(self, plugin: KVCachePlugin) -> None:
        wrapped = AbstractKernelCreationContext.mount_krunner
        assert capture.install()
        assert AbstractKernelCreationContext.mount_krunner is wrapped

    async def test_other_signature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def mount_krunner(self: Any, something: Any) -> None: ...

        monkeypatch.setattr(AbstractKernelCreationContext, "mount_krunner", mount_krunner)
        assert not capture.install()

    async def test_outside_of_a_kernel(self, plugin: KVCachePlugin) -> None:
        assert capture.current() is None


class TestDevice:
    async def test_one_unified_slot(self, plugin: KVCachePlugin) -> None:
        alloc_map = await plugin.create_alloc_map()
        assert {str(info.slot_type) for info in alloc_map.device_slots.values()} == {"unified"}
        assert await plugin.available_slots() == {"kvcache.device": Decimal(1)}
        assert [d.device_id for d in await plugin.list_devices()] == ["kvcache"]
