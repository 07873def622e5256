"""The table of checks, in the order in which people read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import database, etcd, gpu, gpu_direct, manager_api, plugin, slot_type
from .allocation_order import look_at_order
from .check import Check, Finding, Role
from .config_file import judge_file
from .folder import PROBE_SECONDS, look_at_direct, look_at_file_system, look_at_folder_itself
from .host import Host
from .memlock import look_at_memlock
from .network import ANSWER_SECONDS
from .prometheus import look_at_prometheus
from .rdma import look_at_ports
from .reach import look_at_reach
from .storage_proxy import look_at_storage_proxies
from .versions import look_at_versions

_AGENT = frozenset({Role.AGENT})
_MANAGER = frozenset({Role.MANAGER})
_CLIENT = frozenset({Role.CLIENT})
_DAEMONS = _AGENT | _MANAGER
_ALL = _DAEMONS | _CLIENT

#: Three waits one after the other: etcd's port, etcd, and a server that it names.
_SERVER_SECONDS = 3 * ANSWER_SECONDS + 5.0
_FOLDER_SECONDS = _SERVER_SECONDS + PROBE_SECONDS
_GPU_SECONDS = gpu.SMI_SECONDS + 2.0


def _agent_file(host: Host) -> Finding:
    return judge_file(Role.AGENT, host.agent_file)


def _manager_file(host: Host) -> Finding:
    return judge_file(Role.MANAGER, host.manager_file)


def _modules(names: Sequence[str]) -> Callable[[Host], Sequence[str]]:
    """The same on every host."""
    return lambda _: names


CHECKS: tuple[Check, ...] = (
    Check("versions", _ALL, look_at_versions),
    Check("manager", _CLIENT, manager_api.look_at_manager, imports=_modules(manager_api.MODULES)),
    Check("plugin", _AGENT, plugin.look_at_plugin, imports=_modules((plugin.MODULE,))),
    Check("agent.toml", _AGENT, _agent_file),
    Check("allocation-order", _AGENT, look_at_order),
    Check("plugin-lists", _AGENT, plugin.look_at_lists),
    Check("manager.toml", _MANAGER, _manager_file),
    Check("manager-plugin", _MANAGER, plugin.look_at_manager_plugin, needed=False),
    Check("etcd", _DAEMONS, etcd.look_at_etcd, imports=_modules(etcd.MODULES)),
    Check("policy", _DAEMONS, etcd.look_at_policy),
    Check("slot-type", _ALL, slot_type.look_at_slot_type, imports=slot_type.modules_for),
    Check("storage-proxy", _DAEMONS, look_at_storage_proxies, seconds=_SERVER_SECONDS),
    Check(
        "isolation",
        _MANAGER,
        look_at_reach,
        seconds=_SERVER_SECONDS + ANSWER_SECONDS,
        imports=_modules(database.MODULES),
    ),
    Check("prometheus", _MANAGER, look_at_prometheus, needed=False, seconds=_SERVER_SECONDS),
    Check("folder", _ALL, look_at_folder_itself, seconds=_FOLDER_SECONDS),
    Check("file-system", _ALL, look_at_file_system, needed=False, seconds=_FOLDER_SECONDS),
    Check("o-direct", _ALL, look_at_direct, needed=False, seconds=_FOLDER_SECONDS),
    Check("gpu", _AGENT, gpu.look_at_driver, seconds=_GPU_SECONDS),
    Check("nvidia-fs", _AGENT, gpu_direct.look_at_driver, needed=False, seconds=_GPU_SECONDS),
    Check(
        "nvidia-fs-devices",
        _AGENT,
        gpu_direct.look_at_devices,
        needed=False,
        seconds=_GPU_SECONDS,
    ),
    Check("udev", _AGENT, gpu_direct.look_at_udev, needed=False, seconds=_GPU_SECONDS),
    Check("cufile.json", _AGENT, gpu_direct.look_at_cufile, needed=False, seconds=_GPU_SECONDS),
    Check("rdma", _AGENT, look_at_ports, needed=False),
    Check("memlock", _AGENT, look_at_memlock, needed=False, seconds=_GPU_SECONDS),
)

#: Those that look at the folder, which is looked at elsewhere than on agents only when named.
_OF_THE_FOLDER = frozenset({"folder", "file-system", "o-direct"})


def checks_for(host: Host) -> list[Check]:
    """Those that concern this host."""
    return [
        check
        for check in CHECKS
        if check.roles & host.roles
        and (check.name not in _OF_THE_FOLDER or Role.AGENT in host.roles or host.folder)
    ]
