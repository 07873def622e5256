"""The plans of kernels, as they lie in the kernels' configuration folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ai.backend.logging import BraceStyleAdapter

from ..beneath import open_file
from ..plan.plan import PLAN_FILE
from ..plan.published import MAX_PLAN_BYTES, decode

log = BraceStyleAdapter(logging.getLogger(__spec__.name))


def read_plan(
    scratch_root: Path, kernel_id: str, level: int = logging.WARNING
) -> dict[str, Any] | None:
    """The plan of a session that asked for KV cache, whether it has it or not.

    What lies in that folder is shown to the session's user, so no link in it leads to another file
    of this host.

    Args:
        scratch_root: where the agent keeps its kernels' folders.
        level: at which a file that cannot be read is logged.

    Returns:
        None for every other session, and for a file that is no plan.
    """
    config = scratch_root / kernel_id / "config"
    try:
        with os.fdopen(open_file(config, config / "kvcache" / PLAN_FILE), "rb") as file:
            return decode(file.read(MAX_PLAN_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        log.log(level, "kernel {}: its {} cannot be read: {}", kernel_id, PLAN_FILE, e)
        return None


class PlanFiles:
    """Reads the plan of each kernel until it has been read once.

    A plan does not change while its session runs. That there is none is never remembered: a file
    that cannot be read now, is missing while it is replaced, or is half written, may be there at
    the next tick.
    """

    def __init__(self, scratch_root: Path) -> None:
        self._scratch_root = scratch_root
        self._plans: dict[str, dict[str, Any] | None] = {}

    def read(self, kernel_ids: Collection[str]) -> Mapping[str, dict[str, Any]]:
        """Kernel id → plan, for those of these kernels that have one. Forgets all other kernels.

        It reads files, so it is not for the event loop's thread.
        """
        self._plans = {kernel_id: self._plan(kernel_id) for kernel_id in kernel_ids}
        return {kernel_id: plan for kernel_id, plan in self._plans.items() if plan is not None}

    def _plan(self, kernel_id: str) -> dict[str, Any] | None:
        known = self._plans.get(kernel_id)
        if known is not None:
            return known
        # A file that stays unreadable is reported once, not at every tick.
        level = logging.DEBUG if kernel_id in self._plans else logging.WARNING
        return read_plan(self._scratch_root, kernel_id, level)
