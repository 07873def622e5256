"""Python environments: two that all clones share, and one that adds this clone to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import cache
from .command import Argv, run, succeeds
from .console import SetupError, step
from .paths import CACHE, CLONE, digest_of
from .settings import PYTHON, TEMPLATES, VENV

#: What decides whether this clone must be installed again.
_METADATA = ("setup.cfg", "setup.py", "pyproject.toml")


def python() -> Path:
    """The machine's Python of the version that Backend.AI needs.

    A pyenv shim may stand on PATH and still fail, so every candidate is really run.
    """
    check = f"import sys; sys.exit(sys.version_info[:2] != ({PYTHON.replace('.', ', ')}))"
    for candidate in _candidates():
        if succeeds([candidate, "-c", check]):
            return candidate
    raise SetupError(
        f"Backend.AI needs Python {PYTHON}, and no `python{PYTHON}` that runs was found on PATH "
        "or under pyenv.\nInstall it in one of these ways:\n"
        f"  pyenv install {PYTHON} (see https://github.com/pyenv/pyenv)\n"
        f"  uv python install {PYTHON}, then put it on PATH\n"
        f"  apt-get install python{PYTHON} python{PYTHON}-venv, on a Debian that carries it"
    )


def _candidates() -> Iterator[Path]:
    on_path = shutil.which(f"python{PYTHON}")
    if on_path:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{PYTHON}*/bin/python"), reverse=True)


def backendai() -> Path:
    """Backend.AI's manager, agent, storage proxy and client, and the development tools."""
    return _shared("backendai")


def appproxy() -> Path:
    """Backend.AI's app proxy, apart because its requirements contradict the manager's."""
    return _shared("appproxy")


def _shared(name: str) -> Path:
    requirements = TEMPLATES / f"requirements-{name}.txt"
    constraints = TEMPLATES / f"constraints-{name}.txt"
    interpreter = python()
    digest = digest_of(requirements, constraints, run([interpreter, "--version"]))

    def make(target: Path) -> None:
        run([interpreter, "-m", "venv", target])
        pip: Argv = [target / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "-r", requirements, "-c", constraints])

    title = f"Installing {requirements.name} (one or two minutes)"
    return cache.entry(CACHE / "venvs" / f"{name}-{digest}", title, make)


def site_packages(venv: Path) -> Path:
    return venv / "lib" / f"python{PYTHON}" / "site-packages"


def overlay() -> Path:
    """This clone's environment: the shared one underneath, this repository on top.

    Plug-ins are found by their installed entry points, which must not be seen by other clones.
    """
    base = backendai()
    metadata = [CLONE / name for name in _METADATA if (CLONE / name).exists()]
    stamp = VENV / "made-from"
    made_from = digest_of(str(base), *metadata)
    if stamp.exists() and stamp.read_text() == made_from:
        return VENV
    with step("Installing this repository into its own environment"):
        shutil.rmtree(VENV, ignore_errors=True)
        run([python(), "-m", "venv", "--without-pip", VENV])
        (site_packages(VENV) / "shared.pth").write_text(f"{site_packages(base)}\n")
        _adopt_scripts(base)
        pip: Argv = [VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        editable: Argv = ["--no-deps", "--no-build-isolation", "--editable", CLONE]
        run([*pip, "install", "--quiet", *editable])
        stamp.write_text(made_from)
    return VENV


def _adopt_scripts(base: Path) -> None:
    """Gives the overlay the shared environment's programs, run by the overlay's interpreter."""
    own = VENV / "bin"
    for script in sorted((base / "bin").iterdir()):
        target = own / script.name
        if target.exists() or script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and b"python" in content.splitlines()[0]:
            _, _, body = content.partition(b"\n")
            target.write_bytes(f"#!{own / 'python'}\n".encode() + body)
            target.chmod(0o755)
        else:
            target.symlink_to(script)
