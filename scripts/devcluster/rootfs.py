"""Debian root file systems that container images start from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import cache
from .command import run
from .console import SetupError
from .paths import CACHE, digest_of

RELEASE = "bookworm"
_APT = Path("/etc/apt")
#: What apt has downloaded, and pages nobody reads in a container.
_DISPENSABLE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man")


def debian_rootfs(packages: Sequence[str]) -> Path:
    """A cached tar file of a minimal Debian with `packages` and what they depend on."""
    wanted = sorted(set(packages))
    target = CACHE / "rootfs" / f"{RELEASE}-{digest_of(RELEASE, *wanted)}.tar"
    title = f"Debian {RELEASE} root file system with {', '.join(wanted) or 'nothing more'}"
    return cache.entry(target, title, lambda path: _bootstrap(wanted, path))


def _bootstrap(packages: Sequence[str], tar: Path) -> None:
    if shutil.which("debootstrap") is None:
        raise SetupError("debootstrap is missing: `apt-get install debootstrap`.")
    root = tar.parent / "root"
    include = [f"--include={','.join(packages)}"] if packages else []
    mirror = _configured_mirror()
    source = [mirror] if mirror else []
    run(["debootstrap", "--variant=minbase", *include, RELEASE, root, *source])
    for folder in _DISPENSABLE:
        shutil.rmtree(root / folder, ignore_errors=True)
    run(["tar", "--numeric-owner", "-C", root, "-cf", tar, "."])


def _configured_mirror() -> str | None:
    """The mirror this machine's own apt takes Debian from; None where that cannot be told."""
    sources = [_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))]
    texts = [source.read_text() for source in sources if source.is_file()]
    return next((uri for text in texts for uri in _mirrors_of(text)), None)


def _mirrors_of(text: str) -> Iterator[str]:
    """Mirrors that carry the release in one apt source file, in either of its two notations."""
    for line in text.splitlines():
        one_line = re.match(rf"deb\s+(?:\[.*?\]\s+)?(\S+)\s+{RELEASE}\s", line)
        if one_line:
            yield one_line[1]
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(\w[\w-]*):[ \t]*(.*)$", stanza, flags=re.MULTILINE))
        if RELEASE in fields.get("Suites", "").split() and "deb" in fields.get("Types", "").split():
            yield fields["URIs"].split()[0]
