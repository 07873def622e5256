"""What people type, on the real manager: the policy, folders for projects, and session flags."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from ai.backend.kvcache.policy.place import parse_place
from devcluster import settings
from devcluster.client import SMALL_IMAGE, Client, connect, model_definition

from .conftest import Folders, running
from .projects import Project, backend_ai, make_project, policy

_PURGE_PROJECT = "mutation($id: UUID!) { purge_group(gid: $id) { ok } }"

_ENDPOINT = "query($id: UUID!) { endpoint(endpoint_id: $id) { environ } }"


@pytest.fixture
def project() -> Iterator[Project]:
    """Nothing of it stays, neither in the policy nor in the manager."""
    project = make_project(f"cli-{uuid.uuid4().hex[:8]}")
    yield project
    if said := project.said():
        policy("unset", *said, "--project", project.id)
    left = project.folders()
    with connect("admin") as admin:
        for folder in left:
            if folder["status"] == "ready":
                admin.api.VFolder.delete_by_id(UUID(folder["id"]).hex)
            admin.api.VFolder(folder["name"], UUID(folder["id"])).delete_trash()
        admin.api.Admin.query(_PURGE_PROJECT, {"id": project.id})


class TestPolicy:
    def test_round_trip(self, project: Project) -> None:
        assert policy("set", "mode", "auto", "--project", project.name) == (
            f"mode is now auto for project {project.name}\n"
        )
        policy("set", "cpu-tier", "40GiB", "--project", project.id)
        assert project.said() == {"mode": "auto", "cpu-tier": "40GiB"}
        shown = policy("show", "--effective", "--project", project.name)
        assert re.search(rf"^mode +project {project.name} +auto$", shown, re.MULTILINE)
        assert re.search(r"^transport +default +auto$", shown, re.MULTILINE)
        assert json.loads(policy("show", "--json"))["projects"][project.id] == project.said()
        policy("unset", "mode", "--project", project.name)
        assert project.said() == {"cpu-tier": "40GiB"}

    def test_bad_value_is_refused(self, project: Project) -> None:
        policy("set", "mode", "explicit", "--project", project.name)
        done = backend_ai("kvcache", "policy", "set", "mode", "on", "--project", project.name)
        assert done.returncode == 2
        assert f"projects.{project.id}.mode = 'on': must be one of explicit, auto, off" in (
            done.stderr
        )
        assert project.said() == {"mode": "explicit"}

    def test_others_may_not(self, project: Project) -> None:
        for words in (["show"], ["set", "mode", "off", "--project", project.id]):
            done = backend_ai("kvcache", "policy", *words, role="user")
            assert done.returncode == 1
            assert "the manager refused" in done.stderr
        assert project.said() == {}


class TestProvision:
    def test_makes_it_once(self, project: Project) -> None:
        text = policy("provision", project.name)
        assert text == (
            f"[1/1] {project.name}: made {project.folder_name} on local:volume1\n"
            "The policy names them now.\n"
        )
        (folder,) = project.folders()
        place = parse_place(project.said()["folder"])
        assert str(place.host) == folder["host"]
        assert place.vfid == f"project:{project.id}/{UUID(folder['id']).hex}"
        assert (folder["usage_mode"], folder["permission"]) == ("general", "ro")
        scope, _, key = place.vfid.partition(":")[2].partition("/")
        path = settings.VOLUME / scope.replace("-", "") / key[:2] / key[2:4] / key[4:]
        assert path.is_dir()

        again = policy("provision", project.id)
        assert again.endswith("The policy named them already.\n")
        assert len(project.folders()) == 1
        assert project.said() == {"folder": str(place)}

    def test_model_folder_of_that_name(self, project: Project) -> None:
        with connect("admin") as admin:
            admin.api.VFolder.create(project.folder_name, group=project.id, usage_mode="model")
        done = backend_ai("kvcache", "policy", "provision", project.name)
        assert done.returncode == 1
        assert f"refused: {project.folder_name} is a folder of usage mode model" in done.stdout
        assert project.said() == {}

    def test_folder_in_the_trash(self, project: Project) -> None:
        policy("provision", project.name)
        (folder,) = project.folders()
        with connect("admin") as admin:
            admin.api.VFolder.delete_by_id(folder["id"])
        done = backend_ai("kvcache", "policy", "provision", project.name)
        assert done.returncode == 1
        assert "is in the trash" in done.stdout


class TestSessionFlags:
    def test_session_with_a_folder(self, client: Client, folders: Folders) -> None:
        done = backend_ai(
            *("session", "create", SMALL_IMAGE, "--name", f"cli-{uuid.uuid4().hex[:8]}"),
            *("--enqueue-only", "-r", "cpu=1", "-r", "mem=512m"),
            *("-v", f"{folders.model}:/models", "--kv-cache", folders.kv),
            *("--kv-cache-cpu", "64MiB"),
            role="user",
        )
        found = re.search(r"Session ID ([0-9a-f-]{36}) is enqueued", done.stdout + done.stderr)
        assert found is not None, done
        try:
            session = running(client, found[1])
            plan = session.plan()
            assert plan["kv_cache"] is True
            assert plan["folder"] == folders.kv
            assert PurePosixPath(plan["storage"]).is_relative_to("/kvcache")
            assert session.environ()["BACKENDAI_KVCACHE_CPU"] == "64MiB"
            assert str(folders.kv_path) in {
                mount["Source"]
                for mount in session.inspect()["Mounts"]
                if mount["Destination"] == "/kvcache"
            }
        finally:
            client.stop_session(found[1])

    def test_service(self, client: Client, model_folder: tuple[str, Path]) -> None:
        name, path = model_folder
        (path / "model-definition.yaml").write_text(model_definition(["sleep", "1"]))
        service = f"cli-{uuid.uuid4().hex[:8]}"
        done = backend_ai(
            *("service", "create", SMALL_IMAGE, name, "0", "--name", service),
            *("-r", "cpu=1", "-r", "mem=512m", "-e", "MINE=1"),
            *("--kv-cache", "auto", "--kv-cache-share", "user"),
            role="user",
        )
        assert done.returncode == 0, done.stderr
        service_id = client.services()[service]
        try:
            answer = client.api.Admin.query(_ENDPOINT, {"id": service_id})["endpoint"]["environ"]
            environ = json.loads(answer)
            assert {name: environ.get(name) for name in ("MINE", "BACKENDAI_KVCACHE")} == {
                "MINE": "1",
                "BACKENDAI_KVCACHE": "auto",
            }
            assert environ["BACKENDAI_KVCACHE_SHARE"] == "user"
        finally:
            client.delete_service(service_id)

    def test_nothing_is_sent_that_cannot_be_used(self, folders: Folders) -> None:
        done = backend_ai(
            *("session", "create", SMALL_IMAGE, "--kv-cache", folders.kv),
            *("--kv-cache-buffer", "much"),
            role="user",
        )
        assert done.returncode == 2
        assert "--kv-cache-buffer: 'much' is not a size" in done.stderr
