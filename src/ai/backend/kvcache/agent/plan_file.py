"""The plan of a kernel, as it lies in the kernel's configuration folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from ai.backend.logging import BraceStyleAdapter

from ..beneath import open_file
from ..plan.plan import PLAN_FILE
from ..plan.published import MAX_PLAN_BYTES, decode

log = BraceStyleAdapter(logging.getLogger(__spec__.name))


def read_plan(scratch_root: Path, kernel_id: str) -> dict[str, Any] | None:
    """The plan of a session that asked for KV cache, whether it has it or not.

    What lies in that folder is shown to the session's user, so no link in it leads to another file
    of this host.

    Args:
        scratch_root: where the agent keeps its kernels' folders.

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
        log.warning("kernel {}: its {} cannot be read: {}", kernel_id, PLAN_FILE, e)
        return None
