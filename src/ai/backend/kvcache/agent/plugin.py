"""The compute plugin: Backend.AI's callbacks, and nothing behind them that could break a session.

An exception in a callback would leave the session hanging in its creation, so each callback turns
every fault into a session without KV cache, one log line that names the kernel, and a plan that
says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import aiodocker
import attrs
from ai.backend.agent.alloc_map import AbstractAllocMap
from ai.backend.agent.resources import AbstractComputeDevice, AbstractComputePlugin
from ai.backend.agent.stats import (
    ContainerMeasurement,
    NodeMeasurement,
    ProcessMeasurement,
    StatContext,
)
from ai.backend.agent.types import Container, MountInfo
from ai.backend.common.configs.etcd import EtcdConfig
from ai.backend.common.etcd import AsyncEtcd
from ai.backend.common.types import (
    AcceleratorMetadata,
    DeviceId,
    DeviceModelInfo,
    SlotName,
    SlotTypes,
)
from ai.backend.logging import BraceStyleAdapter

from .. import __version__
from ..engine.select import NAMES, adapter_named
from ..engine.versions import Versions
from ..errors import KVCacheError, PolicyError
from ..gds.host import look_at_gds
from ..plan.decide import Preparation, prepare, prepare_with_folder, without_kv_cache
from ..plan.entitle import Entitlement, entitle, needs_project
from ..plan.namespace import says_versions
from ..plan.session import Session
from ..policy.policy import Policy, parse_plugin_config
from . import capture, device
from .apply import change_kernel, docker_arguments, write_files
from .collector import Collector
from .facts import gpus_of, session_of
from .image import find_versions
from .late import prepare_late, read_late
from .occupied import without_occupied
from .projects import Projects, connect_store
from .publish import PlanPublisher
from .settings_reader import SettingsReader
from .storage import StorageProxies

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

type DeviceAllocation = Mapping[SlotName, Mapping[DeviceId, Decimal]]

#: A file server that hangs must not hang the creation of a kernel.
PREPARE_TIMEOUT_SECONDS = 10.0

#: Docker answers this from memory; the image's package folders are listed once.
INSPECT_TIMEOUT_SECONDS = 3.0

#: What was decided in one callback for the later ones of the same kernel.
_preparation: ContextVar[Preparation | None] = ContextVar("kvcache_preparation", default=None)

#: The late way: the kernel's folder, for the last callback of the same kernel.
_late_directory: ContextVar[Path | None] = ContextVar("kvcache_late_directory", default=None)


class KVCachePlugin(AbstractComputePlugin):
    """Called for every kernel, since its slot is of type UNIFIED."""

    key = device.KEY
    slot_types: Sequence[tuple[SlotName, SlotTypes]] = [(device.SLOT, SlotTypes.UNIFIED)]
    exclusive_slot_types: set[str] = set()  # noqa: RUF012 (declared so by the base class)

    _root = Path("/")
    """Where this host's files lie."""

    _policy: Policy
    _told: Mapping[str, Any]
    _captures: bool
    _executor: ThreadPoolExecutor
    _collector: Collector
    _publisher: PlanPublisher
    _settings_reader: SettingsReader
    _storage: StorageProxies
    _projects: Projects

    async def init(self, context: Any | None = None) -> None:
        self._policy = Policy()
        self._projects = Projects(partial(connect_store, self.local_config))
        await self.update_plugin_config(self.plugin_config)
        # Of its own: where a file server hangs, it uses up our threads and not the agent's.
        self._executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix="kvcache-prepare")
        for name in NAMES:
            # Read now, so that a package that is upgraded under a running agent does not become
            # half old and half new.
            adapter_named(name)
        scratch_root = Path(self.local_config["container"]["scratch-root"])
        self._collector = Collector(scratch_root)
        self._publisher = PlanPublisher(scratch_root)
        self._settings_reader = SettingsReader(lambda: self._told, self.update_plugin_config)
        self._storage = StorageProxies(partial(_connect_etcd, self.local_config))
        self._captures = capture.install()
        if not self._captures:
            log.warning(
                "this agent's kernel creation has another shape than expected: start commands "
                "cannot be changed, so sessions get no KV cache, and their plans say so"
            )

    async def cleanup(self) -> None:
        await self._collector.close()
        await self._publisher.close()
        await self._settings_reader.close()
        await self._projects.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def update_plugin_config(self, plugin_config: Mapping[str, Any]) -> None:
        self._told = plugin_config
        try:
            self._policy = parse_plugin_config(plugin_config)
        except PolicyError as e:
            log.error("keeping the previous policy: {}", e)
            return
        self.plugin_config = plugin_config
        if self._policy.projects:
            self._projects.connect()

    def get_metadata(self) -> AcceleratorMetadata:
        return device.METADATA

    def get_version(self) -> str:
        return __version__

    async def extra_info(self) -> Mapping[str, str]:
        return {}

    async def list_devices(self) -> Collection[AbstractComputeDevice]:
        return device.list_devices()

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {device.SLOT: Decimal(1)}

    async def create_alloc_map(self) -> AbstractAllocMap:
        return device.create_alloc_map()

    async def generate_docker_args(
        self, docker: aiodocker.docker.Docker, device_alloc: DeviceAllocation
    ) -> Mapping[str, Any]:
        """Decides; nothing of the kernel is changed before its files are written."""
        if device.is_requested(device_alloc):
            # The call that every kernel gets follows, and would take what is set for the user's.
            return {}
        captured = capture.current()
        preparation = None if captured is None else await self._prepare_captured(docker, captured)
        _preparation.set(preparation)
        if captured is None or preparation is None:
            return {}
        return docker_arguments(await without_occupied(captured, preparation))

    async def generate_mounts(
        self, source_path: Path, device_alloc: DeviceAllocation
    ) -> list[MountInfo]:
        """Carries out what was decided. The agent has just made ``source_path``, empty."""
        if device.is_requested(device_alloc):
            return []
        captured, preparation = capture.current(), _preparation.get()
        if captured is None:
            _late_directory.set(source_path)
        elif preparation is not None:
            await self._carry_out(captured, preparation, source_path)
        if captured is None or preparation is None:
            await asyncio.to_thread(_remove_empty_directory, source_path)
        return []

    async def generate_resource_data(self, device_alloc: DeviceAllocation) -> Mapping[str, str]:
        """The late way, for an agent whose kernel creation could not be captured."""
        directory = _late_directory.get()
        if directory is None:
            return {}
        _late_directory.set(None)
        kernel_id = _kernel_id_of(directory)
        try:
            loop, policy = asyncio.get_running_loop(), self._policy
            async with asyncio.timeout(PREPARE_TIMEOUT_SECONDS):
                session = await loop.run_in_executor(
                    self._executor, read_late, directory, kernel_id
                )
                session = await self._with_project(session, policy)
                preparation = await loop.run_in_executor(
                    self._executor, prepare_late, directory, session, policy
                )
            if preparation is not None:
                _log_outcome(preparation)
        except Exception as e:
            log.warning("kernel {}: no KV cache: {!r}", kernel_id, e)
        return {}

    async def _prepare_captured(
        self, docker: aiodocker.docker.Docker, captured: capture.Captured
    ) -> Preparation | None:
        kernel_id = str(captured.context.kernel_id)
        try:
            session = session_of(
                kernel_id,
                captured.context.kernel_config,
                captured.environ,
                gpus_of(captured.resource_spec.allocations, captured.context.computers),
            )
        except Exception:
            log.exception("kernel {}: left alone, its configuration is not understood", kernel_id)
            return None
        try:
            preparation = await self._prepare_session(docker, session)
        except KVCacheError as e:
            preparation = without_kv_cache(kernel_id, str(e))
        except Exception as e:
            log.exception("kernel {}: a fault of the plugin", kernel_id)
            preparation = without_kv_cache(kernel_id, f"a fault of the plugin: {e!r}")
        if preparation is not None:
            _log_outcome(preparation)
        return preparation

    async def _prepare_session(
        self, docker: aiodocker.docker.Docker, session: Session
    ) -> Preparation | None:
        # The one that is in force now, however often it changes before this is through.
        policy = self._policy
        session = await self._with_project(session, policy)
        entitlement = entitle(session, policy)
        if entitlement is None:
            return None
        folder = await self._folder_of(entitlement)
        found = await _versions_in(docker, session)
        session = attrs.evolve(session, image=attrs.evolve(session.image, found=found))
        return await self._prepare(session, entitlement, folder)

    async def _with_project(self, session: Session, policy: Policy) -> Session:
        """The session with its project, as far as that is known."""
        if session.session_id is None or not needs_project(session, policy):
            return session
        project = await self._projects.project_of(session.session_id)
        return attrs.evolve(session, project_id=project)

    async def _folder_of(self, entitlement: Entitlement) -> Path | None:
        """Where the folder lies that is still to be mounted; None where there is none."""
        if entitlement.to_mount is None:
            return None
        return await self._storage.path_of(entitlement.to_mount.place)

    async def _prepare(
        self, session: Session, entitlement: Entitlement, folder: Path | None
    ) -> Preparation:
        settings, to_mount = entitlement.settings, entitlement.to_mount

        def work() -> Preparation:
            here = attrs.evolve(session, gds=look_at_gds(self._root) if session.gpus else None)
            if folder is None or to_mount is None:
                return prepare(here, settings)
            return prepare_with_folder(here, settings, folder, to_mount.scope)

        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(PREPARE_TIMEOUT_SECONDS):
                return await loop.run_in_executor(self._executor, work)
        except TimeoutError:
            return without_kv_cache(
                session.kernel_id,
                "the model folder or the KV folder did not answer within "
                f"{PREPARE_TIMEOUT_SECONDS:.0f} s on this node",
            )

    async def _carry_out(
        self, captured: capture.Captured, preparation: Preparation, directory: Path
    ) -> None:
        # Not in our own threads: the agent's scratch disk has nothing to do with file servers.
        kernel_id = preparation.plan.kernel_id
        try:
            await asyncio.to_thread(write_files, directory, preparation.files, preparation.links)
        except Exception as e:
            log.warning("kernel {}: no KV cache: its files cannot be written: {!r}", kernel_id, e)
            return
        try:
            change_kernel(captured, preparation)
        except Exception as e:
            log.exception("kernel {}: no KV cache: a fault of the plugin", kernel_id)
            instead = without_kv_cache(kernel_id, f"a fault of the plugin: {e!r}")
            with contextlib.suppress(OSError):
                await asyncio.to_thread(write_files, directory, instead.files)

    async def gather_container_measures(
        self, ctx: StatContext, container_ids: Sequence[str]
    ) -> Sequence[ContainerMeasurement]:
        try:
            self._settings_reader.tick(ctx.agent.etcd)
            self._publisher.tick(ctx.agent, container_ids)
            return await self._collector.collect(ctx.agent.kernel_registry, container_ids)
        except Exception:
            log.exception("sessions could not be measured in this tick")
            return []

    async def gather_node_measures(self, ctx: StatContext) -> Sequence[NodeMeasurement]:
        return []

    async def gather_process_measures(
        self, ctx: StatContext, pid_map: Mapping[int, str]
    ) -> Sequence[ProcessMeasurement]:
        return []

    async def get_hooks(self, distro: str, arch: str) -> Sequence[Path]:
        return []

    async def restore_from_container(
        self, container: Container, alloc_map: AbstractAllocMap
    ) -> None:
        """Nothing is held in memory that a restart would lose."""

    async def get_attached_devices(
        self, device_alloc: DeviceAllocation
    ) -> Sequence[DeviceModelInfo]:
        return []

    async def get_docker_networks(self, device_alloc: DeviceAllocation) -> list[str]:
        return []


def _connect_etcd(local_config: Mapping[str, Any]) -> AsyncEtcd:
    """With the agent's own access."""
    config = EtcdConfig.model_validate(local_config["etcd"])
    return AsyncEtcd.create_from_config(config.to_dataclass())


async def _versions_in(docker: aiodocker.docker.Docker, session: Session) -> Versions:
    """What the image's files say, where its labels do not."""
    if says_versions(session.image):
        return Versions()
    try:
        async with asyncio.timeout(INSPECT_TIMEOUT_SECONDS):
            return await find_versions(docker, session.image.name)
    except Exception as e:
        # The plan says what is assumed then.
        log.debug("kernel {}: its image cannot be looked into: {!r}", session.kernel_id, e)
        return Versions()


def _log_outcome(preparation: Preparation) -> None:
    plan = preparation.plan
    if plan.no_kv_cache_because is not None:
        log.warning("kernel {}: no KV cache: {}", plan.kernel_id, plan.no_kv_cache_because)
    else:
        log.info("kernel {}: KV cache in {} by {}", plan.kernel_id, plan.storage, plan.adapter)


def _kernel_id_of(directory: Path) -> str:
    """The agent's layout: ``<scratch>/<kernel id>/config/kvcache``."""
    return directory.parent.parent.name


def _remove_empty_directory(directory: Path) -> None:
    """A session that did not ask for KV cache finds no trace of the plugin."""
    try:
        directory.rmdir()
    except OSError as e:
        log.warning("kernel {}: {} remains: {}", _kernel_id_of(directory), directory.name, e)
