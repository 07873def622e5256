"""The GraphQL gateway, without which the web server's pages have nothing to show."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import apt, cache, environments
from .command import Argv, run, succeeds
from .console import SetupError
from .paths import CACHE, digest_of
from .settings import CONFIG, TEMPLATES

_SOURCES = TEMPLATES / "gateway"
_FILES = sorted(_SOURCES.glob("*.*"))
_OLDEST_NODE = 18
_NODE_PACKAGES = ("nodejs", "npm")

#: The gateway with all that it requires.
FOLDER = CACHE / "gateways" / digest_of(*_FILES)
#: The manager's two schemas as one, for this version of Backend.AI.
SUPERGRAPH = (
    CACHE
    / "supergraphs"
    / digest_of(
        TEMPLATES / "constraints-backendai.txt",
        _SOURCES / "package-lock.json",
        _SOURCES / "compose.mjs",
    )
)


def prepare() -> None:
    """Makes what the gateway is run from."""
    _ensure_node()
    cache.entry(FOLDER, "Installing the GraphQL gateway", _install)
    cache.entry(SUPERGRAPH, "Composing the GraphQL schemas (half a minute)", _compose)


def _ensure_node() -> None:
    if _node_works():
        return
    apt.ensure(_NODE_PACKAGES)
    if not _node_works():
        raise SetupError(
            f"The GraphQL gateway needs Node.js {_OLDEST_NODE} or later with npm, and the `node` "
            "on PATH is older, or has none."
        )


def _node_works() -> bool:
    too_old = f"parseInt(process.versions.node) < {_OLDEST_NODE}"
    checks = (["node", "-e", f"process.exit({too_old} ? 1 : 0)"], ["npm", "--version"])
    return all(succeeds(check) for check in checks)


def _install(target: Path) -> None:
    target.mkdir()
    for file in _FILES:
        shutil.copy(file, target)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=target)


def _compose(target: Path) -> None:
    schemas: Mapping[str, Argv] = {"graphene.graphql": [], "strawberry.graphql": ["--v2"]}
    workshop = target.parent
    python = environments.backendai() / "bin" / "python"
    manager: Argv = [python, "-m", "ai.backend.cli", "mgr", "-f", CONFIG / "manager.toml"]

    def dump(name: str) -> str:
        command: Argv = [*manager, "api", "dump-gql-schema", *schemas[name]]
        return run([*command, "--output", workshop / name], cwd=CONFIG)

    with ThreadPoolExecutor() as pool:
        list(pool.map(dump, schemas))
    run(["node", FOLDER / "compose.mjs", *(workshop / name for name in schemas), target])
