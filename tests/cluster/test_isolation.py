"""Folders that are provisioned for projects: nobody but agents gets into them."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from devcluster import demo
from devcluster.client import SMALL_IMAGE, Client, connect, model_definition, wait_until
from devcluster.tinytext import long_prompt

from .conftest import PolicySetter, RunningSession, kv_mounts, running, session_starter
from .doors import DOORS, is_refused, listings, mounts
from .projects import (
    OWN_PROJECT,
    USER,
    VOLUME,
    Project,
    ProjectFolder,
    backend_ai,
    new_vfolder,
    policy,
    project_admin,
)
from .rest import ask_manager
from .test_doctor import MANAGER_TOML, doctor


def vfolder_id(folder: ProjectFolder) -> str:
    """As both of the manager's interfaces write it."""
    return str(uuid.UUID(folder.id))


def digests(directory: Path) -> dict[str, str | None]:
    """Path of everything in a directory → a file's digest."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        )
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def own_vfolder() -> Iterator[str]:
    """A VFolder of the user's with a directory as a KV folder has it; its id."""
    name = f"door-{uuid.uuid4().hex[:8]}"
    with connect("user") as user:
        path = user.ensure_folder(name)
        (made,) = (f for f in user.api.VFolder.list() if f["name"] == name)
    (path / "scopes").mkdir()
    (path / "scopes" / "block").write_text("block")
    yield str(uuid.UUID(made["id"]))
    with connect("user") as user:
        # The clones, and what is left of it.
        for left in user.api.VFolder.list():
            if left["name"].startswith("door-") and left["status"] == "ready":
                user.api.VFolder(left["name"]).delete()


class TestDoors:
    """That a request is refused says something where the same request can succeed."""

    def test_are_open_to_the_owner_of_a_vfolder(self, own_vfolder: str) -> None:
        mine = own_vfolder, uuid.UUID(own_vfolder).hex
        shown = [
            listing
            for listing, answer in listings("user", str(uuid.UUID(int=1)))
            if any(key in json.dumps(answer.body) for key in mine)
        ]
        # Not those of VFolders of projects, and of those that are shared with the user.
        assert len(shown) == 5, shown
        with connect("user") as user:
            for type_ in ("interactive", "system"):
                for source in (own_vfolder, uuid.UUID(own_vfolder)):
                    assert mounts(user, type_, "default", source)
        outcomes = {str(door): door.knock("user", own_vfolder).status for door in DOORS}
        closed = [str(door) for door in DOORS if door.for_owner and outcomes[str(door)] >= 300]
        assert closed == []


def try_all_doors(folder: ProjectFolder, role: str) -> list[str]:
    """The ways by which a user of the cluster gets anything of a folder."""
    key = vfolder_id(folder)
    open_doors = [
        f"{door}: {answer.status} {answer.body}"
        for door in DOORS
        if not is_refused(answer := door.knock(role, key))
    ]
    open_doors += [
        listing
        for listing, answer in listings(role, folder.project)
        if any(name in json.dumps(answer.body) for name in (key, folder.id))
    ]
    with connect(role) as client:
        mine = client.ensure_folder("auto-mode-own")
        with suppress(FileExistsError):
            (mine / "link").symlink_to(folder.path)
        sources: tuple[str | uuid.UUID, ...] = (
            *(uuid.UUID(key), key, folder.id, f"{key}/scopes", str(folder.path)),
            *("kv-cache", f"kv-cache-{folder.project[:8]}", "..", "../.."),
            *("auto-mode-own/..", f"auto-mode-own/../{folder.id}"),
            *("auto-mode-own/link", "auto-mode-own/link/scopes"),
        )
        open_doors += [
            f"mount {source} in a session of type {type_}"
            for type_ in ("interactive", "system")
            for project in (OWN_PROJECT, "default")
            for source in sources
            if mounts(client, type_, project, source)
        ]
    done = backend_ai(
        *("session", "create", SMALL_IMAGE, "--name", f"door-{uuid.uuid4().hex[:8]}"),
        *("--enqueue-only", "-r", "cpu=1", "-r", "mem=512m", "--kv-cache", key),
        role=role,
    )
    if done.returncode == 0:
        open_doors.append("session create --kv-cache")
    return open_doors


#: Run in a session. It empties the memory of LMCache's server; what is in the folder stays.
CLEAR_SERVER = """
import sys, urllib.request
url = f"http://{sys.argv[1]}:{sys.argv[2]}/cache/clear"
urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30)
"""


def forget(url: str, session: RunningSession) -> None:
    """The engine has nothing in its memory any more, as after a restart."""

    def is_reset() -> bool | None:
        request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["success"] or None

    wait_until("vLLM's letting go of its blocks", is_reset, 60, every=0.5)
    (server,) = session.plan()["metrics"]
    session.run("python3", "-c", CLEAR_SERVER, server["host"], str(server["port"]))


class TestService:
    """Made by the command, in a project where sessions have to ask."""

    @pytest.fixture
    def service(
        self,
        client: Client,
        image: str,
        tiny_model: Path,
        own_folder: ProjectFolder,
        set_policy: PolicySetter,
    ) -> Iterator[str]:
        # All that an administrator does.
        policy("provision", OWN_PROJECT)
        model, name = "auto-mode-tiny", f"auto-{uuid.uuid4().hex[:8]}"
        demo.ensure_model(client, model, tiny_model, model_definition(demo.START_COMMAND))
        done = backend_ai(
            *("service", "create", f"local/{image}", model, "1", "--name", name),
            *("-p", OWN_PROJECT, "--kv-cache", "auto", "-r", "cpu=2", "-r", "mem=6g"),
            *("--model-definition-path", "model-definition.yaml", "--public"),
            # Its memory can be emptied without a restart, which takes a minute.
            *("-e", "VLLM_SERVER_DEV_MODE=1"),
            role="user",
        )
        assert done.returncode == 0, done.stderr
        service_id = client.services()[name]
        yield service_id
        client.delete_service(service_id)

    def test_stores_and_loads_while_nobody_else_gets_in(
        self, client: Client, service: str, own_project: Project, own_folder: ProjectFolder
    ) -> None:
        url, session_id = demo.wait_for_service(client, service)
        session = running(client, session_id)
        scope = own_folder.path / "scopes" / own_folder.scope
        assert kv_mounts(session) == {"/kvcache": (str(scope), True)}
        plan = session.plan()
        namespace = plan["namespace"]["name"]
        assert plan["storage"] == f"/kvcache/ns/{namespace}"

        files = scope / "ns" / namespace
        before = len(list(files.glob("*.data")))
        prompt = long_prompt(1500, seed=time.time_ns())
        cold = demo.ask(url, prompt)
        demo.wait_for_stores(scope, namespace)
        # Whole chunks of 256 tokens, each a file.
        chunks = cold.prompt_tokens // 256
        assert chunks >= 5
        assert len(list(files.glob("*.data"))) == before + chunks

        kept = digests(files)
        assert try_all_doors(own_folder, "user") == []
        with project_admin(own_project, USER):
            assert try_all_doors(own_folder, "user") == []
        assert try_all_doors(own_folder, "domain-admin") == []
        assert digests(files) == kept
        assert sorted(path.name for path in own_folder.path.iterdir()) == ["scopes"]

        forget(url, session)
        warm = demo.ask(url, prompt)
        assert warm.text == cold.text
        figures = demo.wait_for_hits(client, session.id)
        assert float(figures["kvcache_loaded_tokens"]) == chunks * 256
        # A prompt that nobody has asked before is stored as before.
        demo.ask(url, long_prompt(600, seed=time.time_ns()))
        wait_until(
            "The new prompt's chunks",
            lambda: len(list(files.glob("*.data"))) >= before + chunks + 2 or None,
            60,
        )


class TestVFolderOfEarlierVersions:
    """It is the project's, and its members see it as ``ro``."""

    @pytest.fixture
    def old_folder(self, own_project: Project, set_policy: PolicySetter) -> Iterator[ProjectFolder]:
        name = f"kv-cache-{own_project.id[:8]}"
        with new_vfolder(own_project, name, permission="ro") as folder:
            set_policy(folder.policy())
            yield folder

    def test_is_replaced_when_that_is_agreed_to(
        self,
        client: Client,
        own_project: Project,
        old_folder: ProjectFolder,
        model_folder: tuple[str, Path],
    ) -> None:
        asks = {"environ": {"BACKENDAI_KVCACHE": "auto"}, "project": OWN_PROJECT}
        models: dict[str, str | None] = {model_folder[0]: "/models"}
        old_scope = old_folder.path / "scopes" / old_folder.scope
        new_scope = own_project.folder.path / "scopes" / old_folder.scope
        with session_starter(client) as start:
            first = start(models, **asks)
            assert kv_mounts(first) == {"/kvcache": (str(old_scope), True)}

            # What is wrong with it: who may only read makes directories in it.
            made = ask_manager(
                "user", "POST", f"/folders/{vfolder_id(old_folder)}/mkdir", {"path": "by-a-member"}
            )
            assert made.status == HTTPStatus.OK
            assert (old_folder.path / "by-a-member").is_dir()
            code, found = doctor("--config", MANAGER_TOML)
            assert code == 1
            assert found["isolation"]["status"] == "failed"
            name = f"kv-cache-{own_project.id[:8]}"
            assert (
                f"the VFolder {name}, which is reached by the members of project {OWN_PROJECT}"
                in (found["isolation"]["text"])
            )
            assert f"policy provision --yes {own_project.id}" in found["isolation"]["remedy"]

            refused = backend_ai("kvcache", "policy", "provision", OWN_PROJECT)
            assert refused.returncode == 1
            assert f"refused: its folder is the VFolder {name} (" in refused.stdout
            assert "Run this with --yes" in refused.stdout
            assert own_project.said() == {"folder": old_folder.place}

            text = policy("provision", "--yes", OWN_PROJECT)
            assert f"in the place of the VFolder {name} ({old_folder.place})" in text
            assert "The old one stays as it is" in text
            assert own_project.said() == {"folder": own_project.folder.place}
            code, found = doctor("--config", MANAGER_TOML)
            assert (code, found["isolation"]["status"]) == (0, "ok")

            # A link of a member's in the old folder is in the way of nobody.
            second = start(models, **asks)
            assert kv_mounts(second) == {"/kvcache": (str(new_scope), True)}
            assert kv_mounts(first) == {"/kvcache": (str(old_scope), True)}
            namespace = first.plan()["storage"]
            first.run("touch", f"{namespace}/still-there")
            assert (old_scope / namespace.removeprefix("/kvcache/") / "still-there").exists()
        assert "has its folder on local:volume1" in policy("provision", "--yes", OWN_PROJECT)


class TestUnmanagedVFolder:
    """Backend.AI lets admins of domains make VFolders of any path of the hosts."""

    def test_is_what_doctor_names(
        self, own_folder: ProjectFolder, set_policy: PolicySetter
    ) -> None:
        set_policy(own_folder.policy())
        name = f"unmanaged-{uuid.uuid4().hex[:8]}"
        with connect("domain-admin") as admin:
            admin.api.VFolder.create(
                name, host=str(VOLUME), unmanaged_path=str(own_folder.path / "scopes")
            )
            try:
                _, found = doctor("--config", MANAGER_TOML)
                assert found["isolation"]["status"] == "failed"
                assert (
                    f"the unmanaged VFolder {name} of domain-admin@lablup.com leads to"
                    in (found["isolation"]["text"])
                )
            finally:
                admin.api.VFolder(name).delete()
                admin.api.VFolder(name).delete_trash()
