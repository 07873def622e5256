"""The row of the plugin's slot among the manager's types of slots.

Without it the database refuses what agents report, and they have no capacity.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import database, manager_api
from .bounded import ProgramError, run_bounded
from .check import Finding, Repair, RepairError, Role, failed, ok, skipped
from .client_config import client_is_configured
from .config_file import ConfigFile, judge_file

if TYPE_CHECKING:
    from .host import Host

SLOT = "kvcache.device"

_QUERY = "SELECT slot_name FROM resource_slot_types WHERE slot_name = :slot"

#: As ``backend.ai mgr fixture populate`` takes it. configs/slot-type.json says the same.
FIXTURE: Mapping[str, Any] = {
    "resource_slot_types": [
        {
            "slot_name": SLOT,
            "slot_type": "count",
            "required": False,
            "display_name": "KV Cache",
            "description": "KV cache folder",
            "display_unit": "KV Cache",
            "display_icon": "storage",
            "number_format": {"binary": False, "round_length": 0},
            "rank": 350,
        }
    ]
}

#: The command imports the whole manager first.
_POPULATE_SECONDS = 120.0


def judge_row(is_there: bool, repair: Repair | None = None) -> Finding:
    """Whether the manager knows the slot."""
    if is_there:
        return ok(f"the manager knows {SLOT}")
    return failed(
        f"the manager does not know {SLOT}, so agents with the plugin report no capacity",
        "on a manager's host: `backend.ai kvcache doctor --fix`, or "
        "`backend.ai mgr fixture populate configs/slot-type.json`",
        repair,
    )


def populate(file: ConfigFile) -> str:
    """Adds the row by the manager's own command.

    Raises:
        RepairError: it did not.
    """
    command = [sys.executable, "-m", "ai.backend.cli", "mgr", "-f", str(file.path.resolve())]
    with tempfile.TemporaryDirectory(prefix="kvcache-doctor-") as directory:
        fixture = Path(directory) / "slot-type.json"
        fixture.write_text(json.dumps(FIXTURE))
        try:
            ended = run_bounded([*command, "fixture", "populate", str(fixture)], _POPULATE_SECONDS)
        except (FileNotFoundError, ProgramError) as e:
            raise RepairError(str(e)) from e
    if ended.code != 0:
        raise RepairError(
            "`backend.ai mgr fixture populate configs/slot-type.json` failed; run it to see why"
        )
    return f"{SLOT} is added to the manager's database"


def _in_database(file: ConfigFile) -> Finding:
    try:
        rows = database.ask(file, _QUERY, slot=SLOT)
    except database.DatabaseError as e:
        return failed(str(e), e.remedy)
    return judge_row(bool(rows), partial(populate, file))


def _by_the_api(roles: frozenset[Role]) -> Finding:
    try:
        return judge_row(manager_api.knows_slot(SLOT))
    except manager_api.ApiError as e:
        # Nobody but a client needs a client that works.
        if e.remedy is None or Role.CLIENT not in roles:
            return skipped(str(e))
        return failed(str(e), e.remedy)


def usable_manager_file(host: Host) -> ConfigFile | None:
    file = host.manager_file
    return None if file is None or judge_file(Role.MANAGER, file).remedy else file


def modules_for(host: Host) -> tuple[str, ...]:
    """What is imported to ask: the client's, which talk to the terminal, only where they serve."""
    if usable_manager_file(host):
        return database.MODULES
    return manager_api.MODULES if client_is_configured() else ()


def look_at_slot_type(host: Host) -> Finding:
    """In the manager's database where its file is here, else as its client is told."""
    if (file := usable_manager_file(host)) is not None:
        return _in_database(file)
    if client_is_configured():
        return _by_the_api(host.roles)
    return skipped(
        "the manager was not asked: run this on its host, or where a superadmin's client is "
        "configured"
    )
