"""The host that is looked at, and what several checks want to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

from .check import Role
from .client_config import client_is_configured
from .config_file import ConfigFile, found, role_of
from .etcd import EtcdContent, read_etcd
from .folder import FolderFacts, look_at_folder
from .gpu import GpuFacts, look_at_gpus
from .once import Once
from .storage_proxy import StorageAnswers, ask_storage_proxies, path_of_volume

#: The package that makes a host one of this role.
PACKAGES = {
    Role.AGENT: "backend.ai-agent",
    Role.MANAGER: "backend.ai-manager",
    Role.CLIENT: "backend.ai-client",
}


_DAEMONS = (Role.AGENT, Role.MANAGER)


@attrs.define(eq=False)
class Host:
    """This host. The functions are called once, whoever asks first."""

    roles: frozenset[Role]
    reason: str
    """Why it is taken for one of these roles."""
    agent_file: ConfigFile | None = None
    manager_file: ConfigFile | None = None
    folder: str | None = None
    """A path, or a volume as PROXY:VOLUME."""
    etcd: Once[EtcdContent] = attrs.field(init=False)
    storage: Once[StorageAnswers] = attrs.field(init=False)
    folder_facts: Once[FolderFacts] = attrs.field(init=False)
    gpus: Once[GpuFacts] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.etcd = Once(lambda: read_etcd(self.daemon_file))
        self.storage = Once(lambda: ask_storage_proxies(self.etcd().proxies))
        self.folder_facts = Once(lambda: look_at_folder(self._folder_path()))
        self.gpus = Once(look_at_gpus)

    @property
    def daemon_file(self) -> ConfigFile | None:
        """A file that says where etcd is."""
        return self.agent_file or self.manager_file

    def _folder_path(self) -> Path:
        folder = self.folder or ""
        return Path(folder) if folder.startswith("/") else path_of_volume(folder, self.storage())


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _by_itself(files: dict[Role, ConfigFile]) -> tuple[frozenset[Role], str]:
    if files:
        paths = ", ".join(str(file.path) for file in files.values())
        return frozenset(files), f"by {paths}"
    if client_is_configured():
        return frozenset({Role.CLIENT}), "since the client is configured"
    daemons = [role for role in _DAEMONS if _is_installed(PACKAGES[role])]
    if daemons:
        packages = ", ".join(PACKAGES[role] for role in daemons)
        return frozenset(daemons), f"since it has {packages}"
    return frozenset({Role.CLIENT}), "since it has neither agent nor manager"


def _named(roles: Sequence[Role], configs: Sequence[Path]) -> dict[Role, ConfigFile]:
    files = [ConfigFile(path) for path in configs]
    daemons = [role for role in roles if role is not Role.CLIENT]
    if len(files) == len(daemons) == 1:
        # It is meant for this one, whatever is in it.
        return {daemons[0]: files[0]}
    return {role_of(file): file for file in files}


def this_host(
    roles: Sequence[Role] = (), configs: Sequence[Path] = (), folder: str | None = None
) -> Host:
    """This host as the command line describes it.

    Args:
        roles: what it is. Nothing: what its configuration files and packages say.
        configs: files of daemons. Of one that is not named, the usual places are searched.
        folder: what was said of the KV folder.
    """
    files = _named(roles, configs)
    # Whoever names files and no roles means these files and no others.
    for role in _DAEMONS if roles or not configs else ():
        if role not in files and (usual := found(role)) is not None:
            files[role] = usual
    wanted, reason = (frozenset(roles), "as you say") if roles else _by_itself(files)
    return Host(
        roles=wanted,
        reason=reason,
        agent_file=files.get(Role.AGENT) if Role.AGENT in wanted else None,
        manager_file=files.get(Role.MANAGER) if Role.MANAGER in wanted else None,
        folder=folder,
    )
