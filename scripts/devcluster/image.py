"""The engine image: a Debian root file system and a folder of Python packages, joined.

No image registry takes part. pip and debootstrap fetch what the image is made of, both results are
kept in the shared cache, and `docker import` gets them as one tar stream.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from . import cache, docker
from .command import run, succeeds, tail
from .console import SetupError, say, step
from .paths import CACHE, CLONE, digest_of
from .rootfs import debian_rootfs

#: Where Debian's Python looks for packages that are not Debian's, whoever runs it.
_PACKAGES_FOLDER = "/usr/local/lib/python3.11/dist-packages"

#: Wheels for Debian 12: Python 3.11 and glibc up to 2.36.
WHEEL_TARGET = (
    *("--python-version", "3.11", "--implementation", "cp", "--only-binary=:all:"),
    *(word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)),
    *(
        word
        for platform in (
            *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)),
            *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
            *("linux_x86_64", "any"),
        )
        for word in ("--platform", platform)
    ),
)

_DIGEST_LABEL = "ai.backend.kvcache.image-inputs"


@dataclass(frozen=True)
class Recipe:
    """A folder under images/ that says what an image is made of."""

    folder: Path

    @property
    def requirements(self) -> Path:
        return self.folder / "requirements.txt"

    @property
    def overlay(self) -> Path:
        """Files that go into the image as they are, at the same place below /."""
        return self.folder / "root"

    @property
    def debian_packages(self) -> list[str]:
        return (self.folder / "packages.txt").read_text().split()

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        return tomllib.loads((self.folder / "image.toml").read_text())

    @property
    def reference(self) -> str:
        return str(self._settings["reference"])

    @property
    def labels(self) -> Mapping[str, str]:
        return {**self._settings["labels"], _DIGEST_LABEL: self.digest}

    @property
    def environment(self) -> Mapping[str, str]:
        return dict(self._settings["env"])

    @cached_property
    def digest(self) -> str:
        """Of everything the image depends on, this module included."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.folder)) for path in files]
        return digest_of(*names, *files, Path(__file__))


CPU_ENGINE = Recipe(CLONE / "images" / "vllm-cpu")


def engine_image(python: Path, recipe: Recipe = CPU_ENGINE) -> str:
    """The reference of the engine image in the local Docker, built if it is absent or outdated.

    `python` is an interpreter that has pip, of any version: it only fetches and unpacks wheels.
    """
    if _built_digest(recipe.reference) == recipe.digest:
        return recipe.reference
    rootfs = debian_rootfs(recipe.debian_packages)
    site = _site_packages(python, recipe, rootfs)
    with step(f"Image {recipe.reference}"), _replacing(recipe.reference):
        _import_image(recipe, rootfs, site)
    return recipe.reference


def _built_digest(reference: str) -> str | None:
    if not docker.answers():
        raise SetupError("Docker does not answer: start dockerd, or check your rights to it.")
    return (docker.labels_of(reference) or {}).get(_DIGEST_LABEL)


def _site_packages(python: Path, recipe: Recipe, rootfs: Path) -> Path:
    """A cached folder with all Python packages, compiled by the Python that will run them."""
    digest = digest_of(recipe.requirements, *WHEEL_TARGET, rootfs.name)
    target = CACHE / "engine" / f"site-{digest}"

    def install(site: Path) -> None:
        _pip_install(python, site, "--no-deps", "--requirement", recipe.requirements)
        _complete_torch(python, site, recipe.requirements)
        with _rootfs_image(rootfs) as image:
            _compile(site, image)

    return cache.entry(target, f"Python packages of {recipe.reference}", install)


def _pip_install(python: Path, site: Path, *arguments: str | Path) -> None:
    run([
        *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-compile", "--target", site, *WHEEL_TARGET, *arguments),
    ])


def _complete_torch(python: Path, site: Path, requirements: Path) -> None:
    """Adds what torch needs to be imported, where it is not the build for CPUs.

    The registry's own torch wheel is the CUDA build, which runs without a GPU but not without
    NVIDIA's libraries; they are left out by --no-deps. A package source that has the CPU build
    names it by its local version.
    """
    (torch,) = site.glob("torch-*.dist-info")
    if "+cpu" in torch.name:
        return
    version = torch.name.removeprefix("torch-").removesuffix(".dist-info")
    say(f"This machine's package source has the CUDA build of torch {version}: more to install")
    _pip_install(python, site, "--constraint", requirements, f"torch=={version}")


def _compile(site: Path, image: str) -> None:
    """Compiling beforehand halves an engine's start.

    Unchecked: no file in an image changes, so no start needs to compare its age. The file left
    out is one that torch carries for newer Pythons.
    """
    run([
        *("docker", "run", "--rm", "--network", "none"),
        *("--volume", f"{site}:{_PACKAGES_FOLDER}", image),
        *("python3", "-m", "compileall", "-q", "-j0", "-x", "py312_intrinsics"),
        *("--invalidation-mode", "unchecked-hash", _PACKAGES_FOLDER),
    ])


@contextmanager
def _rootfs_image(rootfs: Path) -> Iterator[str]:
    """The bare root file system as an image without a name, for as long as it is needed."""
    identity = run(["docker", "import", rootfs]).strip()
    try:
        yield identity
    finally:
        run(["docker", "rmi", identity])


@contextmanager
def _replacing(reference: str) -> Iterator[None]:
    """Frees the space of the image that loses its name here, unless a container uses it."""
    outdated = run(["docker", "images", "--quiet", reference]).split()
    yield
    for identity in outdated:
        succeeds(["docker", "rmi", identity], timeout=60.0)


def _import_image(recipe: Recipe, rootfs: Path, site: Path) -> None:
    settings = [
        *(f"ENV {_assignment(item)}" for item in recipe.environment.items()),
        *(f"LABEL {_assignment(item)}" for item in recipe.labels.items()),
    ]
    changes = [word for setting in settings for word in ("--change", setting)]
    importer = subprocess.Popen(
        ["docker", "import", *changes, "-", recipe.reference],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert importer.stdin is not None
    broken = False
    try:
        _write_image(importer.stdin, recipe, rootfs, site)
    except BrokenPipeError:
        broken = True  # Docker gave up. What it printed says why.
    _, errors = importer.communicate()
    if broken or importer.returncode != 0:
        raise SetupError(f"`docker import` failed:\n{tail(errors.decode(errors='replace'))}")


def _assignment(item: tuple[str, str]) -> str:
    """One name and value as a Dockerfile instruction takes them."""
    name, value = item
    return f"{name}={json.dumps(value)}"


def _write_image(stream: IO[bytes], recipe: Recipe, rootfs: Path, site: Path) -> None:
    """No path may come twice, not even a folder's: Docker refuses that."""
    with tarfile.open(fileobj=stream, mode="w|", bufsize=1 << 20) as image:
        with tarfile.open(rootfs, mode="r|", bufsize=1 << 20) as base:
            for member in base:
                image.addfile(member, base.extractfile(member) if member.isreg() else None)
        for package in sorted(site.iterdir()):
            # Scripts name the Python of the machine that built the image.
            if package.name != "bin":
                image.add(package, f"{_PACKAGES_FOLDER}/{package.name}", filter=_owned_by_root)
        for path in sorted(recipe.overlay.rglob("*")):
            if path.is_file():
                image.add(path, str(path.relative_to(recipe.overlay)), filter=_owned_by_root)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
