"""The settings as they are shown to people who set them."""

from __future__ import annotations

from typing import Any

import attrs

from ..engine.adapter import Transport
from ..engine.select import NAMES
from .settings import AUTO, Mode, Settings, Sharing

_DEFAULTS = Settings()


@attrs.frozen
class Description:
    """One setting. Its names, defaults and choices are written as in a policy."""

    name: str
    default: str | int | None
    """None: nothing is said."""
    meaning: str
    choices: tuple[str, ...] | None = None
    """None: it is no choice from a list."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "default": self.default,
            "meaning": self.meaning,
            "choices": self.choices and list(self.choices),
        }


#: In the order of SETTINGS.
DESCRIPTIONS = (
    Description(
        "mode",
        str(_DEFAULTS.mode),
        "explicit: sessions that ask; auto: inference sessions that do not refuse; off: none",
        tuple(map(str, Mode)),
    ),
    Description("folder", None, "the KV folder of sessions that name none"),
    Description(
        "mount-point",
        str(_DEFAULTS.mount_point),
        "where it is mounted; a folder that users mount there is their KV folder",
    ),
    Description(
        "concurrent-transfers",
        _DEFAULTS.concurrent_transfers,
        "contexts that the GPU buffer stages at the same time",
    ),
    Description(
        "sharing",
        str(_DEFAULTS.sharing),
        "whose sessions share contexts",
        tuple(map(str, Sharing)),
    ),
    Description(
        "connector", AUTO, "the way by which engines keep KV cache, by name", (AUTO, *NAMES)
    ),
    Description(
        "transport",
        AUTO,
        "by GPUDirect Storage, or through host memory and ordinary files",
        (AUTO, *map(str, Transport)),
    ),
    Description(
        "cpu-tier",
        AUTO,
        "host memory of a session between GPU and folder: off, or a size such as 256GiB",
    ),
    Description("io-threads", AUTO, "threads that read and write on each GPU"),
    Description("direct-io", AUTO, "whether the page cache is passed by", (AUTO, "true", "false")),
    Description(
        "utilization-floor",
        str(_DEFAULTS.utilization_floor),
        "the buffer may not lower gpu_memory_utilization below this, such as 0.5",
    ),
    Description("storage-host", None, "where folders for projects are made, such as local:volume1"),
    Description("folder-name", _DEFAULTS.folder_name, "what plans of sessions call the folder"),
    Description("folder-cap", None, "how large a KV folder may become, such as 2TiB"),
    Description("age-limit", None, "what was not used for so long may go, such as 30d"),
    Description(
        "watermarks",
        f"{_DEFAULTS.watermarks.low}-{_DEFAULTS.watermarks.high}",
        "percent of the cap: a sweep begins above the second, and ends below the first",
    ),
)
