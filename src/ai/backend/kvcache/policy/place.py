"""Where a KV folder lies, as the manager and its storage proxies name it."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID, uuid5

import attrs

_HOST = r"(?P<proxy>[\w.-]{1,64}):(?P<volume>[\w.-]{1,64})"
_FOLDER = r"(?P<vfid>(?:project|user):[0-9a-f-]{36}/[0-9a-f]{32})"

#: From it and a project's id come the ids of the project's provisioned folder. The value says
#: nothing; it never changes, since folders that exist are found by it.
_PROVISIONED = UUID("7d1f4c0e-3b65-4f0a-9a53-1f0a8f6f5f3a")


@attrs.frozen
class Host:
    """A volume of a storage proxy."""

    proxy: str
    volume: str

    def __str__(self) -> str:
        return f"{self.proxy}:{self.volume}"


@attrs.frozen
class Place:
    """A folder on it."""

    host: Host
    vfid: str
    """``<quota scope>/<folder id>``, such as ``project:<uuid>/<32 hex digits>``."""

    def __str__(self) -> str:
        return f"{self.host}/{self.vfid}"

    @property
    def folder_id(self) -> UUID:
        """The id that a VFolder there has, if there is one."""
        return UUID(self.vfid.partition("/")[2])

    def path_in(self, volume: Path) -> Path:
        """Where the folder lies below its volume, as all of Backend.AI's volumes lay it out.

        Source: ``mangle_vfpath`` of the storage proxy's ``volumes/abc.py``, 26.4.16 and 26.9.6.
        """
        scope, folder = self.vfid.partition(":")[2].split("/")
        return volume / UUID(scope).hex / folder[:2] / folder[2:4] / folder[4:]


def parse_host(text: str) -> Host:
    """``proxy:volume``.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(_HOST, text)
    if match is None:
        raise ValueError("must be a storage host such as local:volume1")
    return Host(match["proxy"], match["volume"])


def parse_place(text: str) -> Place:
    """``proxy:volume/project:<uuid>/<32 hex digits>``.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(f"{_HOST}/{_FOLDER}", text)
    if match is None:
        raise ValueError(
            "must be a storage host and a folder's id, such as "
            "local:volume1/project:00000000-0000-0000-0000-000000000000/"
            "0123456789abcdef0123456789abcdef; `backend.ai kvcache policy provision` writes it"
        )
    return Place(Host(match["proxy"], match["volume"]), match["vfid"])


def provisioned_place(host: Host, project: str) -> Place:
    """Where the folder lies that is provisioned for a project.

    Neither the quota scope nor the folder is anybody's in Backend.AI: no user and no project has
    the quota scope's id, and the manager's database has no VFolder of the folder's id. So none of
    the manager's routes leads into the folder. The ids come from the project's id alone, so that a
    folder that was made before is found again.

    Args:
        project: the project's id.
    """
    scope = uuid5(_PROVISIONED, str(UUID(project)))
    return Place(host, f"project:{scope}/{uuid5(scope, 'kv-cache').hex}")


def is_provisioned(place: Place, project: str) -> bool:
    """Whether a place is the project's own, which ``provisioned_place`` gives."""
    return place == provisioned_place(place.host, project)
