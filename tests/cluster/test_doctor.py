"""The doctor on a real agent's, manager's and client's host, by the real command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from devcluster import command, configuration, database, settings

BACKEND_AI = Path(sys.executable).with_name("backend.ai")

AGENT_TOML = settings.CONFIG / "agent.toml"
MANAGER_TOML = settings.CONFIG / "manager.toml"

#: What the daemons' files and etcd have, and nobody may be shown.
SECRETS = (
    settings.DB_PASSWORD,
    settings.values()["storage_secret"],
    *(secret for _, secret in configuration.CREDENTIALS.values()),
)


def doctor(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code, check → what was found)."""
    ended = subprocess.run(
        [BACKEND_AI, "kvcache", "doctor", "--json", *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not any(secret in ended.stdout + ended.stderr for secret in SECRETS)
    answer = json.loads(ended.stdout)
    assert answer["ok"] is (ended.returncode == 0)
    return ended.returncode, {check["check"]: check for check in answer["checks"]}


def statuses(found: Mapping[str, Mapping[str, Any]], *names: str) -> dict[str, str]:
    return {name: found[name]["status"] for name in names}


def test_agents_host() -> None:
    code, found = doctor("--config", AGENT_TOML, "--folder", "local:volume1")
    needed = ("plugin", "agent.toml", "allocation-order", "plugin-lists", "etcd", "policy")
    assert statuses(found, *needed, "versions") == dict.fromkeys([*needed, "versions"], "ok")
    assert found["etcd"]["text"] == f"127.0.0.1:{settings.PORTS['etcd']}, namespace 'local'"
    assert found["storage-proxy"]["text"] == (
        f"local at http://127.0.0.1:{settings.PORTS['storage_manager']}: volume1 (vfs)"
    )
    assert str(settings.VOLUME) in found["folder"]["text"]
    assert found["folder"]["status"] in ("ok", "warning")
    assert found["o-direct"]["text"] == "files are written and read with it"
    assert not any(path.name.startswith(".kvcache-doctor") for path in settings.VOLUME.iterdir())
    assert found["slot-type"]["status"] == "skipped"
    assert code == 0


def test_managers_host() -> None:
    code, found = doctor("--config", MANAGER_TOML)
    assert {check["status"] for check in found.values()} == {"ok"}
    assert found["slot-type"]["text"] == "the manager knows kvcache.device"
    assert found["prometheus"]["text"] == f"127.0.0.1:{settings.PORTS['prometheus']}"
    assert code == 0


def test_a_host_that_is_both() -> None:
    code, found = doctor("--config", AGENT_TOML, "--config", MANAGER_TOML)
    assert statuses(found, "agent.toml", "manager.toml", "slot-type") == {
        "agent.toml": "ok",
        "manager.toml": "ok",
        "slot-type": "ok",
    }
    assert code == 0


@pytest.mark.parametrize(
    ("role", "slot_type", "text"),
    [
        ("admin", "ok", "the manager knows kvcache.device"),
        ("user", "skipped", "the manager tells superadmins only"),
    ],
)
def test_client(role: str, slot_type: str, text: str) -> None:
    code, found = doctor("--role", "client", environment=configuration.client_environment(role))
    assert found["manager"]["text"] == (f"{settings.manager_url()}, Backend.AI {settings.VERSION}")
    assert (found["slot-type"]["status"], found["slot-type"]["text"]) == (slot_type, text)
    assert code == 0


def test_client_with_other_keys() -> None:
    environment = configuration.client_environment("user")
    code, found = doctor(
        "--role", "client", environment={**environment, "BACKEND_SECRET_KEY": "none"}
    )
    assert found["slot-type"]["text"] == "the manager refuses the client's keys"
    assert found["slot-type"]["status"] == "failed"
    assert code == 1


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            'allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem"]',
            'allocation-order has no "kvcache": no session starts',
        ),
        (
            'allocation-order = ["kvcache", "cuda", "rocm", "tpu", "cpu", "mem"]',
            'allocation-order has "kvcache" before "cuda", "rocm", "tpu": sessions with GPUs get '
            "GPU_COUNT=0",
        ),
    ],
)
def test_broken_allocation_order(broken: str, text: str, tmp_path: Path) -> None:
    copy = tmp_path / "agent.toml"
    whole = AGENT_TOML.read_text()
    (order,) = re.findall(r"^allocation-order = .*$", whole, re.MULTILINE)
    copy.write_text(whole.replace(order, broken))

    code, found = doctor("--config", copy)
    assert code == 1
    assert [c for c, found_ in found.items() if found_["status"] == "failed"] == [
        "allocation-order"
    ]
    assert found["allocation-order"]["text"] == text
    right = 'allocation-order = ["cuda", "rocm", "tpu", "cpu", "mem", "kvcache"]'
    assert found["allocation-order"]["remedy"] == (
        f"set {right}; then restart the agent; running sessions stay"
    )

    code, found = doctor("--config", copy, "--fix")
    assert code == 0
    assert copy.read_text() == whole.replace(order, right)
    code, found = doctor("--config", copy, "--fix")
    assert (code, found["allocation-order"]["fixed"]) == (0, None)
    assert len(list(tmp_path.glob("agent.toml.*.bak"))) == 1


@pytest.fixture
def manager_without_row(tmp_path: Path) -> Iterator[Path]:
    """A manager.toml whose database has an empty table of slot types, and nothing else.

    It is of the same PostgreSQL. In the cluster's own the row cannot go: agents that run need it.
    """
    name = f"doctor_{uuid.uuid4().hex[:8]}"
    login = {
        "PGUSER": settings.DB_USER,
        "PGPASSWORD": settings.DB_PASSWORD,
        "PGHOST": settings.HOST,
        "PGPORT": str(settings.PORTS["postgres"]),
    }
    dump: command.Argv = [
        database.program("pg_dump"),
        "--schema-only",
        "--table=resource_slot_types",
        "backend",
    ]
    table = command.run(dump, env=login)
    command.run([database.program("createdb"), name], env=login)
    try:
        command.run(
            [database.program("psql"), "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={name}"],
            env=login,
            stdin=table,
        )
        copy = tmp_path / "manager.toml"
        whole = MANAGER_TOML.read_text()
        assert whole.count('name = "backend"') == 1
        copy.write_text(whole.replace('name = "backend"', f'name = "{name}"'))
        yield copy
    finally:
        command.run([database.program("dropdb"), "--force", name], env=login)


def test_missing_slot_type(manager_without_row: Path) -> None:
    code, found = doctor("--config", manager_without_row)
    assert code == 1
    assert [c for c, found_ in found.items() if found_["status"] == "failed"] == ["slot-type"]
    assert found["slot-type"]["text"] == (
        "the manager does not know kvcache.device, so agents with the plugin report no capacity"
    )
    assert (
        "`backend.ai mgr fixture populate configs/slot-type.json`" in (found["slot-type"]["remedy"])
    )
    assert found["slot-type"]["can_be_fixed"] is True

    code, found = doctor("--config", manager_without_row, "--fix")
    assert code == 0
    assert found["slot-type"]["fixed"] == "kvcache.device is added to the manager's database"
    code, found = doctor("--config", manager_without_row, "--fix")
    assert (code, found["slot-type"]["fixed"]) == (0, None)


def test_a_database_without_the_table(tmp_path: Path) -> None:
    copy = tmp_path / "manager.toml"
    copy.write_text(MANAGER_TOML.read_text().replace('name = "backend"', 'name = "postgres"'))
    code, found = doctor("--config", copy, "--fix")
    assert code == 1
    assert found["slot-type"]["text"] == "the manager's database has no table of slot types"


def test_a_database_that_refuses(tmp_path: Path) -> None:
    copy = tmp_path / "manager.toml"
    wrong = MANAGER_TOML.read_text().replace(settings.DB_PASSWORD, "wrong")
    copy.write_text(wrong)
    code, found = doctor("--config", copy)
    assert code == 1
    assert found["slot-type"]["text"] == ("the manager's database refuses the user or the password")
