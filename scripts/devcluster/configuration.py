"""Writes the daemons' configuration, the folders they need, and how clients reach them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .command import run
from .console import SetupError
from .paths import STATE
from .settings import (
    CONFIG,
    DATA,
    IPC,
    LOGS,
    RUN,
    TEMPLATES,
    VENV,
    VOLUME,
    manager_url,
    rendered,
)

#: A Unix socket's path has 108 bytes; Backend.AI appends up to 50 to the folder of its sockets.
_LONGEST_IPC_PATH = 57

#: Key pairs of the users in Backend.AI's own fixtures, known to all the world.
CREDENTIALS: Mapping[str, tuple[str, str]] = {
    "admin": ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    "domain-admin": ("AKIAHUKCHDEZGEXAMPLE", "cWbsM_vBB4CzTW7JdORRMx8SjGI3-wEXAMPLEKEY"),
    "user": ("AKIANABBDUSEREXAMPLE", "C8qnIo29EZvXkPK_MXcuAakYTy4NYrxwmCEyNPlf"),
    "other-user": ("AKIANATWOUSEREXAMPLE", "P7oxTDdzHbEpUSs5v7r7EWj9yKstp8VpZ7SEyA-g"),
}

#: What the same users type into the WebUI.
LOGINS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin@lablup.com", "wJalrXUt"),
    "domain-admin": ("domain-admin@lablup.com", "cWbsM_vB"),
    "user": ("user@lablup.com", "C8qnIo29"),
    "other-user": ("user2@lablup.com", "P7oxTDdz"),
}


def write() -> None:
    """Writes everything anew: the same input gives the same files."""
    if len(str(IPC)) > _LONGEST_IPC_PATH:
        raise SetupError(
            f"The path {IPC} is too long for Unix sockets: {len(str(IPC))} characters, and "
            f"{_LONGEST_IPC_PATH} fit. Clone the repository to a shorter path."
        )
    for folder in (CONFIG, DATA, IPC, LOGS, RUN, VOLUME):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("agent", "commit", "abuse", "redis", "scratches"):
        (DATA / name).mkdir(exist_ok=True)
    # The format of folders in a volume; Backend.AI refuses a volume without it.
    (VOLUME / "version.txt").write_text("3")
    for template in sorted((TEMPLATES / "daemons").iterdir()):
        (CONFIG / template.name).write_text(rendered(template))
    _make_manager_key()
    for role in CREDENTIALS:
        lines = [f"{name}={value}\n" for name, value in client_environment(role).items()]
        client_file(role).write_text("".join(lines))


def client_file(role: str) -> Path:
    """A file of environment variables with which `backend.ai` acts as this user."""
    return STATE / f"client-{role}.env"


def client_environment(role: str) -> dict[str, str]:
    access_key, secret_key = CREDENTIALS[role]
    return {
        "BACKEND_ENDPOINT": manager_url(),
        "BACKEND_ENDPOINT_TYPE": "api",
        "BACKEND_ACCESS_KEY": access_key,
        "BACKEND_SECRET_KEY": secret_key,
        "BACKEND_DOMAIN": "default",
        "BACKEND_GROUP": "default",
    }


def _make_manager_key() -> None:
    """The key that the manager signs its calls to agents with."""
    if not (CONFIG / "manager.key_secret").exists():
        make = "import sys, zmq.auth; zmq.auth.create_certificates(sys.argv[1], 'manager')"
        run([VENV / "bin" / "python", "-c", make, CONFIG])
