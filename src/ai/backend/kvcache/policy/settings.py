"""The administrator's settings, as the agent reads them from etcd.

They lie under ``config/plugins/accelerator/kvcache/``; Backend.AI hands them over as a nested
mapping of strings. They are checked once, here, and are a frozen object from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import attrs
import trafaret as t

from ..engine.adapter import Transport
from ..engine.select import NAMES, Wish
from ..errors import PolicyError, SizeError
from ..sizes import parse_size


class Sharing(StrEnum):
    """Whose sessions share a namespace.

    A context that is loaded comes faster than one that is computed, so who shares a namespace can
    find out which contexts the others have used, by timing.
    """

    FOLDER = "folder"
    """All that mount the folder."""
    PROJECT = "project"
    USER = "user"


#: The value of a setting that leaves the choice to the plugin.
AUTO = "auto"

#: One context is loaded while another is stored.
DEFAULT_CONCURRENT_TRANSFERS = 2


@attrs.frozen
class Settings:
    """What applies to every session of this agent."""

    mount_point: PurePosixPath = PurePosixPath("/kvcache")
    """A folder mounted here is the session's KV folder, whatever its name."""

    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS
    """How many contexts the GPU buffer has to stage at the same time."""

    sharing: Sharing = Sharing.FOLDER
    """Whose sessions load each other's contexts from one folder."""

    wish: Wish = attrs.field(factory=Wish)
    """Which way of keeping KV cache is taken."""

    cpu_tier_bytes: int | None = None
    """Host memory of a session between GPU and folder. 0: no more than transfers need. None: a
    part of the session's."""

    io_threads: int | None = None
    """Threads of each rank that read and write. None: the engine's own number."""

    direct_io: bool | None = None
    """Whether the page cache is passed by. None: as the engine does it by itself."""


def _absolute_path(value: str) -> PurePosixPath:
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise t.DataError("must be an absolute path below /, such as /kvcache", value=value)
    return path


def _size(value: str) -> int:
    try:
        return 0 if value == "off" else parse_size(value)
    except SizeError as e:
        raise t.DataError(f'must be "off" or a size such as 64GiB ({e})', value=value) from e


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A check for one of several words."""
    allowed = tuple(names)

    def check(value: str) -> str:
        if value not in allowed:
            raise t.DataError(f"must be one of {', '.join(allowed)}", value=value)
        return value

    return check


#: Where "auto" says the same as nothing.
_MAY_BE_AUTO = frozenset({"connector", "transport", "cpu-tier", "io-threads", "direct-io"})

_settings_iv = t.Dict({
    t.Key("mount-point", to_name="mount_point", optional=True): t.String() & _absolute_path,
    t.Key("concurrent-transfers", to_name="concurrent_transfers", optional=True): t.ToInt(
        gte=1, lte=64
    ),
    t.Key("sharing", optional=True): t.String() & _one_of(Sharing) & Sharing,
    t.Key("connector", optional=True): t.String() & _one_of(NAMES),
    t.Key("transport", optional=True): t.String() & _one_of(Transport) & Transport,
    t.Key("cpu-tier", to_name="cpu_tier_bytes", optional=True): t.String() & _size,
    t.Key("io-threads", to_name="io_threads", optional=True): t.ToInt(gte=1, lte=256),
    t.Key("direct-io", to_name="direct_io", optional=True): t.ToBool(),
}).ignore_extra("*")
# Backend.AI keeps keys of its own beside a plugin's, hence ignore_extra.


def parse_settings(config: Mapping[str, Any]) -> Settings:
    """Checks what etcd holds.

    Raises:
        PolicyError: a value is out of its range; the message names key, value and remedy.
    """
    try:
        said = {k: v for k, v in config.items() if not (k in _MAY_BE_AUTO and v == AUTO)}
        checked = _settings_iv.check(said)
        wish = Wish(checked.pop("connector", None), checked.pop("transport", None))
        return Settings(wish=wish, **checked)
    except t.DataError as e:
        problems = "; ".join(
            f"{key} = {config.get(key)!r}: {reason}" for key, reason in e.as_dict().items()
        )
        raise PolicyError(
            f"config/plugins/accelerator/kvcache is not usable ({problems}). "
            "Correct or delete the key."
        ) from e
