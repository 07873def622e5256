"""What a session's user says: variables in its environment, set by hand or by our flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import trafaret as t

from ..errors import PolicyError, SizeError
from ..sizes import parse_size
from .settings import AUTO, Settings, check_level

#: Whether this session is to have KV cache.
SWITCH = "BACKENDAI_KVCACHE"

#: The name of a mounted folder.
FOLDER = "BACKENDAI_KVCACHE_FOLDER"

#: The line by which a person is going to start the engine in a session that starts none by itself.
COMMAND = "BACKENDAI_KVCACHE_COMMAND"

#: GPU memory for transfers.
BUFFER = "BACKENDAI_KVCACHE_BUFFER"

TRANSPORT = "BACKENDAI_KVCACHE_TRANSPORT"
CPU_TIER = "BACKENDAI_KVCACHE_CPU"
SHARING = "BACKENDAI_KVCACHE_SHARE"

#: Variable → the setting that it overrides.
_SETTINGS: Mapping[str, str] = {TRANSPORT: "transport", CPU_TIER: "cpu-tier", SHARING: "sharing"}

#: What a switch may say; the WebUI's checkboxes say "true" and "false".
_SWITCH: Mapping[str, bool] = {
    "auto": True,
    "on": True,
    "true": True,
    "1": True,
    "off": False,
    "false": False,
    "0": False,
}


@attrs.frozen
class Request:
    """Checked."""

    wanted: bool | None = None
    """None: not said."""
    folder: str | None = None
    """The name of a mounted folder. None: the one at the mount point, or the project's."""
    buffer_bytes: int | None = None
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    """Of Settings, checked."""

    def narrow(self, settings: Settings) -> Settings:
        """The administrator's settings with the user's own.

        Raises:
            PolicyError: the user asks for what the administrator does not allow.
        """
        sharing = self.fields.get("sharing", settings.sharing)
        if sharing.is_wider_than(settings.sharing):
            raise PolicyError(
                f"{SHARING} = {str(sharing)!r} shares contexts more widely than the "
                f"administrator allows ({settings.sharing}); leave it out or choose a narrower one"
            )
        transport = self.fields.get("transport", settings.wish.transport)
        return attrs.evolve(
            settings,
            sharing=sharing,
            cpu_tier_bytes=self.fields.get("cpu_tier_bytes", settings.cpu_tier_bytes),
            wish=attrs.evolve(settings.wish, transport=transport),
            buffer_bytes=self.buffer_bytes,
        )


def _switch(environ: Mapping[str, str]) -> bool | None:
    value = environ.get(SWITCH)
    if value is None:
        return None
    if value.lower() not in _SWITCH:
        raise PolicyError(f"{SWITCH} = {value!r} is neither auto nor off")
    return _SWITCH[value.lower()]


def _buffer_bytes(environ: Mapping[str, str]) -> int | None:
    value = environ.get(BUFFER)
    if value in (None, "", AUTO):
        return None
    try:
        return parse_size(value)
    except SizeError as e:
        raise PolicyError(f"{BUFFER}: {e}") from e


def read_request(environ: Mapping[str, str]) -> Request:
    """Reads a session's environment. An empty variable says nothing.

    Raises:
        PolicyError: a value cannot be used; the message names variable, value and remedy.
    """
    said = {v: environ[v] for v in (*_SETTINGS, SWITCH, FOLDER, BUFFER) if environ.get(v)}
    try:
        fields = check_level({name: said[v] for v, name in _SETTINGS.items() if v in said})
    except t.DataError as e:
        variables = {name: variable for variable, name in _SETTINGS.items()}
        raise PolicyError(
            "; ".join(
                f"{variables[name]} = {said[variables[name]]!r}: {reason}"
                for name, reason in e.as_dict().items()
            )
        ) from e
    return Request(_switch(said), said.get(FOLDER), _buffer_bytes(said), fields)
