"""Where a KV folder lies, as the manager and its storage proxies name it."""

from __future__ import annotations

import re

import attrs

_HOST = r"(?P<proxy>[\w.-]{1,64}):(?P<volume>[\w.-]{1,64})"
_FOLDER = r"(?P<vfid>(?:project|user):[0-9a-f-]{36}/[0-9a-f]{32})"


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
