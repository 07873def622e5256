"""The storage proxies: whether they answer with the secret that etcd has, and what they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import KVCacheError
from ..policy.storage_proxy import TOKEN_HEADER, StorageProxy
from .check import Finding, Role, failed, ok, skipped, warning
from .config_file import ConfigError
from .etcd import EtcdContent, EtcdError
from .loops import run
from .network import UnreachableError, get_json, public

if TYPE_CHECKING:
    from .host import Host

_REFUSED = (401, 403)


class VolumeError(KVCacheError):
    """A volume was named that no storage proxy serves."""


@attrs.frozen
class Volume:
    """One volume of a proxy."""

    name: str
    backend: str
    path: Path
    """On every node that mounts it."""


@attrs.frozen
class ProxyAnswer:
    """What one proxy said."""

    proxy: StorageProxy
    problem: str | None = None
    remedy: str = ""
    volumes: tuple[Volume, ...] = ()


type StorageAnswers = tuple[ProxyAnswer, ...]


def volumes_of(body: Any) -> tuple[Volume, ...] | None:
    """The volumes in a proxy's answer; None where it is no such answer."""
    try:
        return tuple(
            Volume(str(v["name"]), str(v["backend"]), Path(v["path"])) for v in body["volumes"]
        )
    except (KeyError, TypeError):
        return None


async def _ask(proxy: StorageProxy) -> ProxyAnswer:
    url = f"{proxy.address.rstrip('/')}/volumes"
    key = f"volumes/proxies/{proxy.name}"
    try:
        answer = await get_json(url, {TOKEN_HEADER: proxy.secret}, verify=proxy.verify)
    except UnreachableError as e:
        return ProxyAnswer(
            proxy, str(e), f"start it, open the way to it, or correct {key}/manager_api in etcd"
        )
    if answer.status in _REFUSED:
        return ProxyAnswer(
            proxy,
            "it refuses the secret that etcd has for it",
            f"make {key}/secret in etcd the same as [api.manager] secret of its storage-proxy.toml",
        )
    volumes = volumes_of(answer.body) if answer.status == 200 else None
    if volumes is None:
        return ProxyAnswer(
            proxy,
            f"it answers with status {answer.status} and no list of volumes",
            f"correct {key}/manager_api in etcd, or look at its log",
        )
    return ProxyAnswer(proxy, volumes=volumes)


def ask_storage_proxies(proxies: Sequence[StorageProxy]) -> StorageAnswers:
    """Asks all at the same time."""

    async def ask() -> list[ProxyAnswer]:
        return await asyncio.gather(*map(_ask, proxies))

    return tuple(run(ask()))


def path_of_volume(name: str, answers: StorageAnswers) -> Path:
    """Where the volume PROXY:VOLUME lies on nodes.

    Raises:
        VolumeError: nobody serves it.
    """
    paths = {f"{a.proxy.name}:{v.name}": v.path for a in answers for v in a.volumes}
    if name not in paths:
        raise VolumeError(f"there is no volume {name!r}, only {', '.join(paths) or 'none'}")
    return paths[name]


def judge_answers(content: EtcdContent, answers: StorageAnswers, roles: frozenset[Role]) -> Finding:
    """Whether all can be used. An agent asks them only for folders that a policy mounts."""
    problems = [
        (f"{a.proxy.name} at {public(a.proxy.address)}: {a.problem}", a.remedy)
        for a in answers
        if a.problem is not None
    ]
    problems += [
        (
            f"{name}: etcd has no address or no secret of it",
            f"set volumes/proxies/{name}/manager_api and secret in etcd",
        )
        for name in content.incomplete_proxies
    ]
    if not answers and not problems:
        problems = [("etcd knows none", "set volumes/proxies in etcd, as every Backend.AI has it")]
    if problems:
        make = failed if Role.MANAGER in roles else warning
        return make("; ".join(p for p, _ in problems), "; ".join(r for _, r in problems))
    return ok("; ".join(_served(answer) for answer in answers))


def _served(answer: ProxyAnswer) -> str:
    volumes = ", ".join(f"{v.name} ({v.backend})" for v in answer.volumes)
    return f"{answer.proxy.name} at {public(answer.proxy.address)}: {volumes or 'no volumes'}"


def look_at_storage_proxies(host: Host) -> Finding:
    try:
        content = host.etcd()
    except (ConfigError, EtcdError):
        return skipped("their addresses are in etcd, which was not asked")
    return judge_answers(content, host.storage(), host.roles)
