"""The late way: for an agent whose kernel creation has another shape than can be captured.

The kernel's files are written by then, so its start command stays as it is.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from ..errors import KVCacheError
from ..plan.decide import Preparation, prepare, without_kv_cache
from ..plan.entitle import entitle
from ..plan.session import Session
from ..policy.policy import Policy
from .apply import append_environment, write_files
from .facts import gpus_of_environ, session_of


def read_late(directory: Path, kernel_id: str) -> Session:
    """Of the kernel's stored configuration, beside the plugin's directory."""
    kernel_config = pickle.loads((directory.parent / "kconfig.dat").read_bytes())
    return session_of(
        kernel_id,
        kernel_config,
        kernel_config["environ"],
        gpus_of_environ(kernel_config["environ"]),
        is_settled=True,
    )


def prepare_late(directory: Path, session: Session, policy: Policy) -> Preparation | None:
    """Adds to the kernel's written environment. None: the session is none of ours."""
    try:
        entitlement = entitle(session, policy)
        if entitlement is None:
            return None
        preparation = prepare(session, entitlement.settings)
    except KVCacheError as e:
        preparation = without_kv_cache(session.kernel_id, str(e))
    directory.mkdir(exist_ok=True)
    write_files(directory, preparation.files, preparation.links)
    append_environment(directory.parent / "environ.txt", preparation.environment)
    return preparation
