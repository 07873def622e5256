"""What may be set, at each level of the policy, and what it comes to for one session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import attrs
import trafaret as t

from ..engine.adapter import Transport
from ..engine.select import NAMES, Wish
from ..errors import SizeError
from ..sizes import parse_size
from .place import Host, Place, parse_host, parse_place


class Mode(StrEnum):
    """Which sessions get KV cache."""

    EXPLICIT = "explicit"
    """Those that ask."""
    AUTO = "auto"
    """Every inference session that does not refuse."""
    OFF = "off"


class Sharing(StrEnum):
    """Whose sessions share contexts, from the narrowest to the widest.

    A context that is loaded comes faster than one that is computed, so who shares can find out
    which contexts the others have used, by timing.
    """

    SESSION = "session"
    USER = "user"
    PROJECT = "project"
    """All that have the folder. Of one that users mount themselves, that is who may mount it: they
    can read each other's files in it anyway."""

    def is_wider_than(self, other: Sharing) -> bool:
        members = list(Sharing)
        return members.index(self) > members.index(other)


#: The value of a setting that leaves the choice to the plugin.
AUTO = "auto"

#: One context is loaded while another is stored.
DEFAULT_CONCURRENT_TRANSFERS = 2


@attrs.frozen
class Watermarks:
    """Percent of the folder's cap: a sweep begins above the one and ends below the other."""

    high: int
    low: int


@attrs.frozen
class Settings:
    """What applies to one session."""

    mode: Mode = Mode.EXPLICIT

    folder: Place | None = None
    """Mounted for sessions that get KV cache without naming a folder of their own."""

    mount_point: PurePosixPath = PurePosixPath("/kvcache")
    """A folder mounted here is the session's KV folder, whatever its name."""

    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS
    """How many contexts the GPU buffer has to stage at the same time."""

    sharing: Sharing = Sharing.PROJECT
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

    buffer_bytes: int | None = None
    """The GPU buffer that the user asks for. None: as much as transfers need."""

    utilization_floor: Decimal = Decimal(0)
    """The buffer may not take so much that ``gpu_memory_utilization`` falls below this."""

    storage_host: Host | None = None
    """Where folders for projects are made."""

    folder_name: str = "kv-cache"
    """What the plans of sessions call the folder that the policy names."""

    folder_cap_bytes: int | None = None
    """How large a KV folder may become. None: as large as its quota."""

    age_limit_seconds: int | None = None
    """What was not used for so long may go. None: nothing goes for its age."""

    watermarks: Watermarks = Watermarks(high=90, low=75)

    @property
    def folder_limits(self) -> Mapping[str, Any]:
        """As a folder's manifest has them. Empty: the folder has none."""
        limits: dict[str, Any] = {}
        if self.folder_cap_bytes is not None:
            limits |= {
                "cap_bytes": self.folder_cap_bytes,
                "watermarks": {"high": self.watermarks.high, "low": self.watermarks.low},
            }
        if self.age_limit_seconds is not None:
            limits["age_seconds"] = self.age_limit_seconds
        return limits


def _checked[V](parse: Callable[[str], V]) -> Callable[[str], V]:
    """A parser's ValueError in trafaret's words."""

    def check(value: str) -> V:
        try:
            return parse(value)
        except ValueError as e:
            raise t.DataError(str(e), value=value) from e

    return check


def _absolute_path(value: str) -> PurePosixPath:
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise ValueError("must be an absolute path below /, such as /kvcache")
    return path


def _size(value: str) -> int:
    try:
        return parse_size(value)
    except SizeError as e:
        raise ValueError(f"must be a size such as 64GiB ({e})") from e


def _size_or_off(value: str) -> int:
    try:
        return 0 if value == "off" else parse_size(value)
    except SizeError as e:
        raise ValueError(f'must be "off" or a size such as 64GiB ({e})') from e


_SECONDS: Mapping[str, int] = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _duration(value: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,5})([mhdw])", value)
    if match is None:
        raise ValueError("must be a number with m, h, d or w, such as 30d")
    return int(match[1]) * _SECONDS[match[2]]


def _watermarks(value: str) -> Watermarks:
    match = re.fullmatch(r"(\d{1,2})-(\d{1,3})", value)
    if match is None or not 0 < int(match[1]) < int(match[2]) <= 100:
        raise ValueError("must be two percentages, the lower first, such as 75-90")
    return Watermarks(high=int(match[2]), low=int(match[1]))


def _floor(value: str) -> Decimal:
    if not re.fullmatch(r"0|0?\.\d{1,3}", value):
        raise ValueError("must be a share of a GPU's memory such as 0.5")
    return Decimal(value)


def _folder_name(value: str) -> str:
    # People read it in plans and tables, as they read the names of VFolders.
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,54}", value):
        raise ValueError("must be up to 55 letters, digits, dots and dashes")
    return value


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A check for one of several words."""
    allowed = tuple(names)

    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return check


def _text[V](parse: Callable[[str], V]) -> t.Trafaret:
    return t.String() & _checked(parse)


def _not_a_bool(value: Any) -> Any:
    # To Python, true is 1.
    if isinstance(value, bool):
        raise t.DataError("value is not int", value=value)
    return value


_number = t.Any & _not_a_bool

#: Where "auto" leaves the choice to the plugin, whatever wider levels say.
_MAY_BE_AUTO = frozenset({"connector", "transport", "cpu-tier", "io-threads", "direct-io"})

#: Name of a setting → (the field that it becomes, its check). Numbers may be written as text, as
#: on a command line.
SETTINGS: Mapping[str, tuple[str, t.Trafaret]] = {
    "mode": ("mode", _text(_one_of(Mode)) & Mode),
    "folder": ("folder", _text(parse_place)),
    "mount-point": ("mount_point", _text(_absolute_path)),
    "concurrent-transfers": ("concurrent_transfers", _number & t.ToInt(gte=1, lte=64)),
    "sharing": ("sharing", _text(_one_of(Sharing)) & Sharing),
    "connector": ("connector", _text(_one_of(NAMES))),
    "transport": ("transport", _text(_one_of(Transport)) & Transport),
    "cpu-tier": ("cpu_tier_bytes", _text(_size_or_off)),
    "io-threads": ("io_threads", _number & t.ToInt(gte=1, lte=256)),
    "direct-io": ("direct_io", t.ToBool()),
    "utilization-floor": ("utilization_floor", _text(_floor)),
    "storage-host": ("storage_host", _text(parse_host)),
    "folder-name": ("folder_name", _text(_folder_name)),
    "folder-cap": ("folder_cap_bytes", _text(_size)),
    "age-limit": ("age_limit_seconds", _text(_duration)),
    "watermarks": ("watermarks", _text(_watermarks)),
}

_level = t.Dict({
    t.Key(name, to_name=field, optional=True): check for name, (field, check) in SETTINGS.items()
})


def check_level(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Checks what one level of the policy says.

    Args:
        said: name of a setting → value.

    Returns:
        Field → checked value, of those that were said. None: it is left to the plugin.

    Raises:
        trafaret.DataError: a name that is none, or a value out of its range; its ``error`` has the
            reason for each name.
    """
    left = {name for name in _MAY_BE_AUTO if said.get(name) == AUTO}
    checked: Mapping[str, Any] = _level.check({k: v for k, v in said.items() if k not in left})
    return {**checked, **{SETTINGS[name][0]: None for name in left}}


def settings_of(fields: Mapping[str, Any]) -> Settings:
    """Settings of checked fields."""
    wish = Wish(fields.get("connector"), fields.get("transport"))
    others = {k: v for k, v in fields.items() if k not in ("connector", "transport")}
    return Settings(wish=wish, **others)
