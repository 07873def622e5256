"""Which of a session's folders is its KV folder."""

from __future__ import annotations

from ..errors import FolderError
from ..policy.request import FOLDER
from ..policy.settings import Settings
from .session import Mount, Session


def find_folder(session: Session, settings: Settings) -> tuple[Mount, str]:
    """The KV folder and why it is that one, for a session that names one or has one mounted.

    Raises:
        FolderError: it is not mounted, read-only, or a model folder.
    """
    name = session.environ.get(FOLDER)
    if name:
        found = next((m for m in session.mounts if m.name == name), None)
        why = f"named by {FOLDER}"
        if found is None:
            mounted = ", ".join(m.name for m in session.mounts) or "none"
            raise FolderError(
                f"{FOLDER} = {name!r} is not among the session's mounted folders "
                f"({mounted}); mount it too"
            )
    else:
        found = next(m for m in session.mounts if m.container_path == settings.mount_point)
        why = f"mounted at {settings.mount_point}"
    if found.is_model:
        raise FolderError(f"{found.name!r} is a model folder; a KV folder is a general or data one")
    if not found.writable:
        raise FolderError(f"{found.name!r} is mounted read-only; mount it read-write")
    return found, why
