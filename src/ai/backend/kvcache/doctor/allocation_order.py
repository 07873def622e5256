"""``[resource] allocation-order`` of agent.toml, which has to name the plugin, and where."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from .check import Finding, RepairError, Role, failed, ok, skipped, warning
from .config_file import ConfigError, ConfigFile, judge_file

if TYPE_CHECKING:
    from .host import Host

KEY = "kvcache"

#: Backend.AI takes either spelling.
_SPELLINGS = ("allocation-order", "allocation_order")

#: What Backend.AI goes by where nothing is said.
_DEFAULT = ("cuda", "rocm", "tpu", "cpu", "mem")

#: Of the host itself; all others are accelerators.
_INTRINSIC = frozenset({"cpu", "mem"})

_RESTART = "then restart the agent; running sessions stay"


def order_of(document: Mapping[str, Any]) -> Any:
    """What agent.toml says; None where it says nothing."""
    resource = document.get("resource")
    if not isinstance(resource, Mapping):
        return None
    return next((resource[key] for key in _SPELLINGS if key in resource), None)


def right_order(order: Sequence[str] | None) -> list[str]:
    """The same with the plugin at its end."""
    return [key for key in (_DEFAULT if order is None else order) if key != KEY] + [KEY]


def _quoted(keys: Sequence[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


def judge_order(order: Any, numa_nodes: int) -> Finding:
    """Whether sessions start, get their GPUs, and the cores near them.

    Backend.AI allocates in this order. It takes the number of a session's GPUs from the first
    accelerator, and the cores from the NUMA nodes of whatever it allocated just before, which the
    plugin's device has none of.

    Args:
        order: as agent.toml has it; None where it says nothing.
        numa_nodes: of this host.
    """
    if order is None:
        return failed(
            f'there is no [resource] allocation-order, and Backend.AI\'s own has no "{KEY}": '
            "no session starts",
            f"add allocation-order = {json.dumps(right_order(None))} to [resource]; {_RESTART}",
        )
    if not isinstance(order, list) or not all(isinstance(key, str) for key in order):
        return failed(
            "allocation-order is no list of texts",
            f"set it to {json.dumps(right_order(None))}; {_RESTART}",
        )
    remedy = f"set allocation-order = {json.dumps(right_order(order))}; {_RESTART}"
    if KEY not in order:
        return failed(f'allocation-order has no "{KEY}": no session starts', remedy)
    behind = order[order.index(KEY) + 1 :]
    if accelerators := [key for key in behind if key not in _INTRINSIC]:
        return failed(
            f'allocation-order has "{KEY}" before {_quoted(accelerators)}: '
            "sessions with GPUs get GPU_COUNT=0",
            remedy,
        )
    if "cpu" in behind and numa_nodes > 1:
        return warning(
            f'allocation-order has "{KEY}" before "cpu": sessions with GPUs get cores of any of '
            f"the {numa_nodes} NUMA nodes, not of their GPUs'",
            remedy,
        )
    return ok(", ".join(order))


def repaired(text: str) -> str:
    """An agent.toml with the order put right, and all else as it was, comments too.

    Raises:
        RepairError: it is no TOML, or not one that can be changed with care.
    """
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError as e:
        raise RepairError("tomlkit is missing, which comes with backend.ai-agent") from e
    try:
        document: Any = tomlkit.parse(text)
        before = tomllib.loads(text)
        resource = document.setdefault("resource", tomlkit.table())
        key = next((key for key in _SPELLINGS if key in resource), None)
        if key is None:
            resource[_SPELLINGS[0]] = list(_DEFAULT)
            key = _SPELLINGS[0]
        order = resource[key]
        while KEY in order:
            order.remove(KEY)
        order.append(KEY)
        after = tomllib.loads(changed := tomlkit.dumps(document))
    except (TOMLKitError, tomllib.TOMLDecodeError, AttributeError, TypeError) as e:
        raise RepairError(f"[resource] cannot be changed: {type(e).__name__}") from e
    expected = {**before, "resource": {**before.get("resource", {})}}
    expected["resource"][key] = right_order(order_of(before))
    if after != expected:
        raise RepairError("[resource] is written in a way that cannot be changed with care")
    return changed


def write_with_backup(path: Path, text: str, now: datetime) -> Path:
    """Puts a new text into a file, and keeps the old one beside it.

    Whoever reads it at that time finds one of the two whole. Owner and mode stay.

    Returns:
        The backup, ``<name>.<time>.bak``.

    Raises:
        RepairError: it cannot be written.
    """
    target = path.resolve()
    backup = target.with_name(f"{target.name}.{now:%Y%m%dT%H%M%SZ}.bak")
    try:
        # Both hold what the file holds, which may be a password.
        _copy(target, backup)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _copy_owner_and_mode(target, Path(name))
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise RepairError(f"{path} cannot be written: {e.strerror}") from e
    return backup


def _copy(source: Path, target: Path) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(source.read_bytes())
    _copy_owner_and_mode(source, target)


def _copy_owner_and_mode(source: Path, target: Path) -> None:
    status = source.stat()
    # Without being root one owns it already, or keeps it as one's own.
    with suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid)
    shutil.copymode(source, target)


def repair_order(file: ConfigFile) -> str:
    """Puts the order right in the file.

    Raises:
        RepairError: it stays as it is.
    """
    try:
        text = file.text()
    except ConfigError as e:
        raise RepairError(str(e)) from e
    backup = write_with_backup(file.path, repaired(text), datetime.now(UTC))
    return f"allocation-order is put right in {file.path}; what it was is in {backup.name}"


def numa_nodes() -> int:
    """Of this host."""
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1


def look_at_order(host: Host) -> Finding:
    file = host.agent_file
    if file is None or judge_file(Role.AGENT, file).remedy:
        return skipped("it is in agent.toml, which cannot be read")
    finding = judge_order(order_of(file.document()), numa_nodes())
    if finding.remedy is None:
        return finding
    return attrs.evolve(finding, repair=partial(repair_order, file))
