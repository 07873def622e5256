"""The late way: for an agent whose kernel creation has another shape than can be captured.

The kernel's files are written by then, so its start command stays as it is, and a session that
would get KV cache is told in its plan why it gets none.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from ..errors import KVCacheError
from ..plan.decide import Preparation, without_kv_cache
from ..plan.entitle import entitle
from ..plan.session import Session
from ..policy.policy import Policy
from .apply import write_files
from .facts import session_of

_REASON = (
    "this version of Backend.AI's agent creates sessions in a way that the plugin does not know, "
    "so it cannot change the start command; install a version of the plugin that knows this agent"
)


def read_late(directory: Path, kernel_id: str) -> Session:
    """Of the kernel's stored configuration, beside the plugin's directory."""
    kernel_config = pickle.loads((directory.parent / "kconfig.dat").read_bytes())
    return session_of(kernel_id, kernel_config, kernel_config["environ"], None)


def prepare_late(directory: Path, session: Session, policy: Policy) -> Preparation | None:
    """Writes the session's plan. None: the session is none of ours."""
    try:
        if entitle(session, policy) is None:
            return None
        reason = _REASON
    except KVCacheError as e:
        reason = str(e)
    preparation = without_kv_cache(session.kernel_id, reason)
    directory.mkdir(exist_ok=True)
    write_files(directory, preparation.files)
    return preparation
