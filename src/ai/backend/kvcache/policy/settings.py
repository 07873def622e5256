"""The administrator's settings, as the agent reads them from etcd.

They lie under ``config/plugins/accelerator/kvcache/``; Backend.AI hands them over as a nested
mapping of strings. They are checked once, here, and are a frozen object from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import attrs
import trafaret as t

from ..errors import PolicyError


class Sharing(StrEnum):
    """Whose sessions share a namespace.

    A context that is loaded comes faster than one that is computed, so who shares a namespace can
    find out which contexts the others have used, by timing.
    """

    FOLDER = "folder"
    """All that mount the folder."""
    PROJECT = "project"
    USER = "user"


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


def _absolute_path(value: str) -> PurePosixPath:
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise t.DataError("must be an absolute path below /, such as /kvcache", value=value)
    return path


_settings_iv = t.Dict({
    t.Key("mount-point", to_name="mount_point", optional=True): t.String() & _absolute_path,
    t.Key("concurrent-transfers", to_name="concurrent_transfers", optional=True): t.ToInt(
        gte=1, lte=64
    ),
    t.Key("sharing", optional=True): t.Enum(*Sharing) & Sharing,
}).ignore_extra("*")
# Backend.AI keeps keys of its own beside a plugin's, hence ignore_extra.


def parse_settings(config: Mapping[str, Any]) -> Settings:
    """Checks what etcd holds.

    Raises:
        PolicyError: a value is out of its range; the message names key, value and remedy.
    """
    try:
        return Settings(**_settings_iv.check(dict(config)))
    except t.DataError as e:
        problems = "; ".join(
            f"{key} = {config.get(key)!r}: {reason}" for key, reason in e.as_dict().items()
        )
        raise PolicyError(
            f"config/plugins/accelerator/kvcache is not usable ({problems}). "
            "Correct or delete the key."
        ) from e
