"""etcd: whether it answers as the daemons ask it, and what it says of KV caches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import KVCacheError, PolicyError
from ..policy.policy import parse_plugin_config
from ..policy.storage_proxy import StorageProxy, read_storage_proxy
from .check import Finding, failed, ok, skipped
from .config_file import ConfigError, ConfigFile
from .loops import run
from .network import UnreachableError, connect, in_time, reason_of

if TYPE_CHECKING:
    from .host import Host

_VOLUMES = "volumes"
_PLUGIN = "config/plugins/accelerator/kvcache"

#: Where the manager reads its settings besides its file; the later one wins.
_METRIC_LEVELS = (
    "config/metric",
    "ai/backend/config/common/metric",
    "ai/backend/config/manager/metric",
)

#: By which the daemons let an environment win over their file.
_OVERRIDES: Mapping[str, str] = {
    "namespace": "BACKEND_NAMESPACE",
    "addr": "BACKEND_ETCD_ADDR",
    "user": "BACKEND_ETCD_USER",
    "password": "BACKEND_ETCD_PASSWORD",
}

MODULES = ("ai.backend.common.etcd", "ai.backend.common.configs.etcd")


class EtcdError(KVCacheError):
    """etcd was not asked. The message holds nothing secret."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


@attrs.frozen
class EtcdContent:
    """What it has that concerns KV caches."""

    namespace: str
    addresses: tuple[str, ...]
    is_empty: bool = False
    """Whether it has nothing that every Backend.AI has."""
    proxies: tuple[StorageProxy, ...] = ()
    incomplete_proxies: tuple[str, ...] = ()
    """Those without an address or a secret, or not understood."""
    plugin: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    metric: tuple[Mapping[str, Any], ...] = attrs.field(default=(), repr=False)
    """The manager's settings of Prometheus, the later one winning."""


def _proxies(volumes: Any) -> tuple[list[StorageProxy], list[str]]:
    """(those that can be asked, the names of the others)."""
    found = volumes.get("proxies") if isinstance(volumes, Mapping) else None
    entries = found if isinstance(found, Mapping) else {}
    proxies = {name: read_storage_proxy(name, said) for name, said in entries.items()}
    return (
        [proxy for proxy in proxies.values() if proxy is not None],
        [name for name, proxy in proxies.items() if proxy is None],
    )


def content_of(
    namespace: str,
    addresses: tuple[str, ...],
    volumes: Any,
    plugin: Any,
    metric: tuple[Any, ...],
) -> EtcdContent:
    """What etcd's keys say."""
    proxies, incomplete = _proxies(volumes)
    return EtcdContent(
        namespace=namespace,
        addresses=addresses,
        is_empty=not volumes,
        proxies=tuple(proxies),
        incomplete_proxies=tuple(incomplete),
        plugin=plugin if isinstance(plugin, Mapping) else {},
        metric=tuple(level for level in metric if isinstance(level, Mapping)),
    )


def _with_overrides(section: Any) -> dict[str, Any]:
    environment = {
        key: os.environ[variable] for key, variable in _OVERRIDES.items() if variable in os.environ
    }
    return {**(section if isinstance(section, Mapping) else {}), **environment}


def _connection_of(file: ConfigFile) -> Any:
    """Backend.AI's own description of how to reach it.

    Raises:
        ConfigError: the file cannot be read.
        EtcdError: there is no such description.
    """
    section = _with_overrides(file.document().get("etcd"))
    try:
        from ai.backend.common.configs.etcd import EtcdConfig
    except ImportError as e:
        raise EtcdError(
            f"Backend.AI's packages are not installed here ({e.name} is missing)",
            "run this with the Python of the daemon",
        ) from e
    try:
        return EtcdConfig.model_validate(section).to_dataclass()
    except Exception as e:
        # Of Backend.AI's own, and its text may show what it does not understand.
        raise EtcdError(
            f"[etcd] of {file.path} cannot be understood", "correct its addr and namespace"
        ) from e


def read_etcd(file: ConfigFile | None) -> EtcdContent:
    """Asks etcd as the daemon with this file would.

    Raises:
        ConfigError: the file cannot be read.
        EtcdError: it does not answer, or refuses.
    """
    if file is None:
        raise ConfigError("no file of a daemon says where etcd is")
    return run(_read(_connection_of(file), file))


async def _read(config: Any, file: ConfigFile) -> EtcdContent:
    from ai.backend.common.etcd import AsyncEtcd

    addresses = tuple(f"{address.host}:{address.port}" for address in config.addrs)
    outcomes = await asyncio.gather(
        *(connect(address.host, address.port) for address in config.addrs),
        return_exceptions=True,
    )
    problems = [
        f"{address}: {outcome}"
        for address, outcome in zip(addresses, outcomes, strict=True)
        if isinstance(outcome, UnreachableError)
    ]
    if len(problems) == len(addresses):
        raise EtcdError(
            f"etcd cannot be reached: {'; '.join(problems)}",
            f"start it, open the way to it, or correct [etcd] addr in {file.path}",
        )
    try:
        async with in_time(), AsyncEtcd.create_from_config(config) as etcd:
            return content_of(
                config.namespace,
                addresses,
                await etcd.get_prefix(_VOLUMES),
                await etcd.get_prefix(_PLUGIN),
                tuple([await etcd.get_prefix(level) for level in _METRIC_LEVELS]),
            )
    except TimeoutError as e:
        raise EtcdError(
            f"etcd at {', '.join(addresses)}: {reason_of(e)}", "look at etcd and its log"
        ) from e
    except Exception as e:
        # Of its client's own, whose first argument says what the server said.
        said = e.args[0].get("message") if e.args and isinstance(e.args[0], dict) else None
        raise EtcdError(
            f"etcd at {', '.join(addresses)} refuses: {said or type(e).__name__}",
            f"correct [etcd] user and password in {file.path}, or look at etcd",
        ) from e


def judge_content(content: EtcdContent) -> Finding:
    """Whether it is a Backend.AI's."""
    where = f"{', '.join(content.addresses)}, namespace {content.namespace!r}"
    if content.is_empty:
        return failed(
            f"{where} has no volumes",
            "correct [etcd] namespace, which must be the manager's, or set the site up",
        )
    return ok(where)


def look_at_etcd(host: Host) -> Finding:
    try:
        content = host.etcd()
    except ConfigError as e:
        return skipped(str(e))
    except EtcdError as e:
        return failed(str(e), e.remedy)
    return judge_content(content)


def judge_policy(plugin: Mapping[str, Any]) -> Finding:
    """Whether the administrator's settings can be used."""
    try:
        parse_plugin_config(plugin)
    except PolicyError as e:
        return failed(
            str(e), "correct it with `backend.ai kvcache policy`; agents go by the last good one"
        )
    return ok("can be used" if plugin else "none is set, so every setting has its default")


def look_at_policy(host: Host) -> Finding:
    try:
        content = host.etcd()
    except (ConfigError, EtcdError):
        return skipped("it is in etcd, which was not asked")
    return judge_policy(content.plugin)
