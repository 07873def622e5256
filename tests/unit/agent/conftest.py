"""Kernels as the agent hands them to the plugin.

The agent's ``mount_krunner`` is replaced here by one that only runs the plugin's callbacks: the
real one needs Docker and a container. tests/cluster runs the real one.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from ai.backend.agent.agent import AbstractKernelCreationContext

from ai.backend.kvcache.agent import device
from ai.backend.kvcache.agent.plugin import DeviceAllocation, KVCachePlugin

GIB = 2**30

#: Of an image whose LMCache is right for its vLLM in all its ways, with GPUs and without.
LABELS = {
    "ai.backend.kvcache.engine-version": "0.20.2",
    "ai.backend.kvcache.lmcache-version": "0.4.6",
}


@attrs.define
class FakeKernel:
    """One kernel on its way through the agent."""

    context: Any
    resource_spec: Any
    environ: dict[str, str]
    config_dir: Path
    docker_args: dict[str, Any] = attrs.field(factory=dict)
    #: For each device that the agent attaches: what the callbacks get.
    device_allocs: list[DeviceAllocation] = attrs.field(factory=lambda: [{device.SLOT: {}}])

    @property
    def source_path(self) -> Path:
        return self.config_dir / "kvcache"

    async def create(self) -> None:
        await AbstractKernelCreationContext.mount_krunner(
            self.context, self.resource_spec, self.environ
        )


@pytest.fixture
def scratch_root(tmp_path: Path) -> Path:
    path = tmp_path / "scratches"
    path.mkdir()
    return path


@pytest.fixture
def folders(make_folders: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    """(model folder, KV folder)."""
    return make_folders("llama-3.1-8b")


@pytest.fixture
def make_kernel(scratch_root: Path, folders: tuple[Path, Path]) -> Callable[..., FakeKernel]:
    model, kv = folders

    def make(*, with_folder: bool = True, environ: dict[str, str] | None = None) -> FakeKernel:
        kernel_id = str(uuid.uuid4())
        config_dir = scratch_root / kernel_id / "config"
        config_dir.mkdir(parents=True)
        mounts = [
            {"name": "model", "host_path": str(model), "kernel_path": "/models",
             "mount_perm": "ro", "usage_mode": "model"},
            {"name": "kv", "host_path": str(kv), "kernel_path": "/kvcache",
             "mount_perm": "rw", "usage_mode": "general"},
        ]  # fmt: skip
        # Sequences arrive from the manager as tuples.
        kernel_config: dict[str, Any] = {
            "mounts": tuple(mounts[: 2 if with_folder else 1]),
            "image": {"canonical": "local/stable/vllm:1", "labels": dict(LABELS)},
            "resource_opts": {"shmem": 64 * 2**20},
            "internal_data": {
                "model_definition": {
                    "models": (
                        {
                            "name": "m",
                            "model_path": "/models",
                            "service": {
                                "start_command": ("vllm", "serve", "{model_path}"),
                                "port": 8000,
                            },
                        },
                    )
                }
            },
        }
        devices = [SimpleNamespace(device_id="0", memory_size=80 * GIB)]
        kernel = FakeKernel(
            context=SimpleNamespace(
                kernel_id=kernel_id,
                kernel_config=kernel_config,
                container_configs=[],
                computer_docker_args={},
                computers={"cuda": SimpleNamespace(devices=devices)},
            ),
            resource_spec=SimpleNamespace(
                allocations={"cpu": {"cpu": {"0": Decimal(1)}}}, mounts=[]
            ),
            environ={"LOCAL_USER_ID": "-1", "USER_SECRET": "s3cr3t", **(environ or {})},
            config_dir=config_dir,
        )
        kernel.context.kernel = kernel
        return kernel

    return make


@pytest.fixture
async def plugin(
    scratch_root: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KVCachePlugin]:
    plugin = KVCachePlugin(
        {},
        {
            "container": {"scratch-root": scratch_root},
            # Nothing listens there.
            "etcd": {"namespace": "test", "addr": "127.0.0.1:1"},
        },
    )

    no_docker: Any = None  # The plugin never calls it.

    async def mount_krunner(self: Any, resource_spec: Any, environ: Any) -> None:
        kernel: FakeKernel = self.kernel
        for device_alloc in kernel.device_allocs:
            kernel.docker_args.update(await plugin.generate_docker_args(no_docker, device_alloc))
            kernel.source_path.mkdir(exist_ok=True)
            await plugin.generate_mounts(kernel.source_path, device_alloc)

    monkeypatch.setattr(AbstractKernelCreationContext, "mount_krunner", mount_krunner)
    await plugin.init()
    yield plugin
    await plugin.cleanup()
