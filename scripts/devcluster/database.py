"""PostgreSQL: its data folder, and the prepared databases of the manager and the app proxy.

Making the databases takes a minute, so they are dumped into the shared cache once made, and
restored from there by every other clone and after every reset.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import cache, environments
from .command import Argv, run, succeeds
from .console import SetupError, say, step
from .paths import CACHE, CLONE, STATE, digest_of
from .settings import CONFIG, DATA, DB_PASSWORD, DB_USER, HOST, PORTS, TEMPLATES, rendered

#: Debian's package makes this user; PostgreSQL refuses to run as root.
SYSTEM_USER = "postgres"
FOLDER = DATA / "postgres"
DATABASES = ("backend", "appproxy")

_FIXTURES = (
    "example-users",
    "example-keypairs",
    "example-resource-slot-types",
    "example-resource-presets",
    "example-runtime-variants",
    "example-runtime-variant-presets",
    "example-roles",
    "example-prometheus-query-preset-categories",
    "example-prometheus-query-presets",
)
#: The slot's type is what an administrator populates too.
_OWN_FIXTURES = (TEMPLATES / "fixtures" / "cluster.json", CLONE / "configs" / "slot-type.json")
_SQL = TEMPLATES / "database.sql"
#: `app-proxy-coordinator schema` fails for want of an argument; the command behind it works.
_APPPROXY_SCHEMA = "from ai.backend.appproxy.coordinator.cli.dbschema import oneshot; oneshot()"
_STAMP = STATE / "database-made-from"
_LOGIN = {"PGUSER": DB_USER, "PGPASSWORD": DB_PASSWORD, "PGHOST": HOST, "PGPORT": ""}


def program(name: str) -> Path:
    """One of PostgreSQL's programs, of the newest version installed; Debian keeps them off PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version_of)
    if not found:
        raise SetupError("PostgreSQL is not installed: `apt-get install postgresql`.")
    return found[-1]


def _version_of(program_path: Path) -> int:
    return int(program_path.parts[-3])


def initialize() -> None:
    """Makes PostgreSQL's data folder, if there is none yet."""
    if not FOLDER.exists():
        workshop = FOLDER.with_name("postgres.new")
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir(parents=True)
        password = workshop.with_name("postgres.password")
        password.write_text(DB_PASSWORD)
        user = pwd.getpwnam(SYSTEM_USER)
        for path in (workshop, password):
            os.chown(path, user.pw_uid, user.pw_gid)
        run(
            [
                *as_its_user(),
                program("initdb"),
                f"--pgdata={workshop}",
                f"--username={DB_USER}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            cwd=Path("/"),
        )
        password.unlink()
        workshop.rename(FOLDER)


def as_its_user() -> list[str]:
    """What to put before a program of PostgreSQL's, which refuses to run as root.

    Its own user may not enter root's home, where a clone often lies, so it is given the right to.
    """
    right = "+dac_read_search"
    return [
        *("setpriv", f"--reuid={SYSTEM_USER}", f"--regid={SYSTEM_USER}", "--clear-groups"),
        *(f"--inh-caps={right}", f"--ambient-caps={right}"),
    ]


def answers() -> bool:
    return succeeds([program("pg_isready"), "-q", "-h", HOST, "-p", str(PORTS["postgres"])])


def query(sql: str, database: str = "backend") -> str:
    """Runs SQL statements, all or none of them; returns the rows without decoration."""
    return _psql(database, "--tuples-only", "--no-align", "--single-transaction", stdin=sql)


def prepare() -> None:
    """Fills the databases, once in this clone's life."""
    made_from = digest_of(
        *_OWN_FIXTURES,
        rendered(_SQL),
        TEMPLATES / "constraints-backendai.txt",
        TEMPLATES / "constraints-appproxy.txt",
        str(program("postgres")),
    )
    if _STAMP.exists():
        if _STAMP.read_text() != made_from:
            say("The database was made from other inputs; `./scripts/cluster reset` makes it anew.")
        return
    target = CACHE / "databases" / f"{made_from}.sql"
    dump = cache.entry(target, "Making the databases (about a minute)", _make)
    with step("Restoring the prepared databases"):
        _drop_all()
        _psql("postgres", "--file", str(dump))
    _STAMP.write_text(made_from)


def _make(dump: Path) -> None:
    _drop_all()
    for name in DATABASES:
        _psql("postgres", "--command", f"CREATE DATABASE {name}")
    backendai = environments.backendai() / "bin" / "python"
    appproxy = environments.appproxy() / "bin" / "python"
    manager: Argv = [backendai, "-m", "ai.backend.cli", "mgr", "-f", CONFIG / "manager.toml"]
    run([*manager, "schema", "oneshot", "-f", CONFIG / "alembic-manager.ini"], cwd=CONFIG)
    run([appproxy, "-c", _APPPROXY_SCHEMA, "-f", CONFIG / "alembic-appproxy.ini"], cwd=CONFIG)
    merged = dump.with_name("fixture.json")
    merged.write_text(json.dumps(_merged_fixture()))
    run([*manager, "fixture", "populate", merged], cwd=CONFIG)
    query(rendered(_SQL))
    databases = [_pg_dump(name) for name in DATABASES]
    dump.write_text("\n".join(databases))


def _pg_dump(database: str) -> str:
    return run([program("pg_dump"), "--create", database], env=_login())


def _drop_all() -> None:
    for name in DATABASES:
        _psql("postgres", "--command", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _psql(database: str, *arguments: str, stdin: str | None = None) -> str:
    options = ["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--dbname={database}"]
    return run([program("psql"), *options, *arguments], env=_login(), stdin=stdin)


def _login() -> dict[str, str]:
    return {**_LOGIN, "PGPORT": str(PORTS["postgres"])}


def _merged_fixture() -> Mapping[str, list[dict[str, Any]]]:
    """Backend.AI's own fixtures and ours as one: each run of its command line costs seconds."""
    packaged = environments.site_packages(environments.backendai()) / "ai/backend/install/fixtures"
    sources = [packaged / f"{name}.json" for name in _FIXTURES] + [*_OWN_FIXTURES]
    tables: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        for table, rows in json.loads(source.read_text()).items():
            if not table.startswith("__"):
                tables.setdefault(table, []).extend(rows)
    for preset in tables["resource_presets"]:
        # Packaged as a text, which the database's integer column refuses.
        if "shared_memory" in preset:
            preset["shared_memory"] = int(preset["shared_memory"])
    return tables
