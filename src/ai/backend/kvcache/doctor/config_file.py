"""A daemon's TOML file: where it is, and what is in it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import KVCacheError
from .check import Finding, Role, failed, ok

#: Of the whole machine.
SITE = Path("/etc/backend.ai")

#: Names the file of whichever daemon is started with it.
_ENVIRONMENT = "BACKEND_CONFIG_FILE"

#: Tables that only one daemon's file has.
_TABLES: Mapping[str, Role] = {
    "agent": Role.AGENT,
    "container": Role.AGENT,
    "manager": Role.MANAGER,
    "db": Role.MANAGER,
}


class ConfigError(KVCacheError):
    """A daemon's file cannot be read."""


@attrs.frozen
class ConfigFile:
    """A file that was found or named. It is read anew whenever somebody asks."""

    path: Path

    def text(self) -> str:
        """Its text.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return self.path.read_bytes().decode()
        except OSError as e:
            raise ConfigError(f"{self.path} cannot be read: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"{self.path} is no text in UTF-8, at byte {e.start}") from e

    def document(self) -> dict[str, Any]:
        """Its content.

        Raises:
            ConfigError: it cannot be read, or is no TOML.
        """
        try:
            return tomllib.loads(self.text())
        except tomllib.TOMLDecodeError as e:
            raise ConfigError(f"{self.path} is no valid TOML: {e}") from e


def usual_paths(role: Role) -> list[Path]:
    """Where Backend.AI looks for the file of a daemon, in its order."""
    if named := os.environ.get(_ENVIRONMENT):
        return [Path(named)]
    name = f"{role}.toml"
    return [
        Path.cwd() / name,
        Path.home() / ".config" / "backend.ai" / name,
        SITE / name,
    ]


def found(role: Role) -> ConfigFile | None:
    """The file that a daemon started here would read."""
    for path in usual_paths(role):
        file = ConfigFile(path)
        if path.is_file() and role_of(file) is role:
            return file
    return None


def role_of(file: ConfigFile) -> Role:
    """Whose file it is: by its tables, or where it cannot be read, by its name."""
    try:
        document = file.document()
    except ConfigError:
        document = {}
    for table in document:
        if table in _TABLES:
            return _TABLES[table]
    return Role.MANAGER if "manager" in file.path.name else Role.AGENT


def judge_file(role: Role, file: ConfigFile | None) -> Finding:
    """Whether there is a file that can be read."""
    if file is None:
        places = ", ".join(str(path) for path in _shown(role))
        return failed(
            f"there is no {role}.toml: not in {places}",
            "say where it is: --config PATH; or what this host is: --role",
        )
    try:
        document = file.document()
    except ConfigError as e:
        return failed(
            str(e),
            "correct it, run this as a user who may read it, or name another: "
            f"--config PATH/{role}.toml",
        )
    if role_of(file) is not role:
        others = ", ".join(f"[{table}]" for table in document) or "nothing"
        return failed(
            f"{file.path} has {others}, and is no {role}'s file",
            f"name the {role}'s: --config PATH/{role}.toml",
        )
    return ok(str(file.path))


def _shown(role: Role) -> Iterator[Path]:
    for path in usual_paths(role):
        yield path.parent if path.name == f"{role}.toml" else path
