"""``backend.ai kvcache`` and ``python -m ai.backend.kvcache``: one file for each command."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NoReturn

import click

#: Name → module, which has the command under the same name.
_COMMANDS: Mapping[str, str] = {
    "doctor": ".doctor",
    "indicators": ".indicators",
    "plan": ".plan",
    "policy": ".policy",
    "presets": ".presets",
    "sessions": ".sessions",
    "status": ".status",
    "webui": ".webui",
}


class _Commands(click.Group):
    """Commands whose modules are read when they are needed.

    ``backend.ai`` loads this group at each start, whatever command is run: so that takes no time,
    and nothing that is wrong with one of our commands is in the way of another, or of the client's.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        try:
            command: click.Command = getattr(import_module(_COMMANDS[cmd_name], __name__), cmd_name)
        except Exception as e:
            return _unavailable(cmd_name, e)
        return command


def _unavailable(name: str, error: Exception) -> click.Command:
    """A command that says why it is none."""
    reason = f"{name} cannot be loaded: {type(error).__name__}: {error}"

    def fail() -> NoReturn:
        raise click.ClickException(reason)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, settings, fail, help=reason)


@click.group(cls=_Commands)
def kvcache() -> None:
    """KV cache folders for LLM inference sessions."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets another in its place, not a traceback.
            stream.reconfigure(errors="replace")


try:
    from .extend import add_session_flags

    add_session_flags()
except Exception:
    # The client is not installed, or another than we know. Its own commands work without our flags.
    logging.getLogger(__name__).debug("no session flags", exc_info=True)
