"""What people type, on the real manager: the policy, folders for projects, and session flags."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path, PurePosixPath

import pytest

from devcluster import database
from devcluster.client import SMALL_IMAGE, Client, connect, model_definition

from .conftest import Folders, running
from .projects import VOLUME, Project, backend_ai, make_project, policy
from .rest import ask

_PURGE_PROJECT = "mutation($id: UUID!) { purge_group(gid: $id) { ok } }"

_ENDPOINT = "query($id: UUID!) { endpoint(endpoint_id: $id) { environ } }"


@pytest.fixture
def project() -> Iterator[Project]:
    """Nothing of it stays, neither in the policy nor on the volume nor in the manager."""
    project = make_project(f"cli-{uuid.uuid4().hex[:8]}")
    yield project
    if said := project.said():
        policy("unset", *said, "--project", project.id)
    assert ask("admin", "DELETE", f"/folders/{VOLUME}/{project.id}").status == HTTPStatus.OK
    with connect("admin") as admin:
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
            f"[1/1] {project.name}: made its folder on local:volume1\nThe policy names them now.\n"
        )
        folder = project.folder
        assert project.said() == {"folder": folder.place}
        assert folder.path.is_dir()
        assert list(folder.path.iterdir()) == []
        # The manager knows nothing of it, and its quota scope is no project's.
        assert project.vfolders() == []
        scope = uuid.UUID(folder.place.partition("project:")[2].partition("/")[0])
        assert database.query(f"SELECT count(*) FROM groups WHERE id = '{scope}'").strip() == "0"
        key = uuid.UUID(folder.id)
        assert database.query(f"SELECT count(*) FROM vfolders WHERE id = '{key}'").strip() == "0"

        (folder.path / "kept").touch()
        again = policy("provision", project.id)
        assert again == (
            f"[1/1] {project.name}: has its folder on local:volume1\n"
            "The policy named them already.\n"
        )
        # As after an interruption before it was named.
        policy("unset", "folder", "--project", project.id)
        again = policy("provision", project.id)
        assert again == (
            f"[1/1] {project.name}: has its folder on local:volume1\nThe policy names them now.\n"
        )
        assert project.said() == {"folder": folder.place}
        assert (folder.path / "kept").exists()

        shutil.rmtree(folder.path)
        assert "made its folder on local:volume1 anew, since it was gone" in (
            policy("provision", project.id)
        )
        assert folder.path.is_dir()

    @pytest.mark.parametrize(
        ("host", "message"),
        [
            ("nowhere:volume1", "there is no storage proxy 'nowhere', only local"),
            ("local:volume9", "has no volume 'volume9', only volume1"),
            ("volume1", "must be a storage host such as local:volume1"),
        ],
    )
    def test_where_there_is_no_volume(self, project: Project, host: str, message: str) -> None:
        answer = ask("admin", "POST", "/folders", {"project": project.id, "host": host})
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert message in answer.message

    def test_of_no_project(self) -> None:
        answer = ask("admin", "POST", "/folders", {"project": str(uuid.UUID(int=7))})
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert "there is no such project" in answer.message

    def test_is_removed_for_good(self, project: Project) -> None:
        policy("set", "mode", "explicit", "--project", project.id)
        policy("provision", project.name)
        (project.folder.path / "block").write_text("block")
        answer = ask("admin", "DELETE", f"/folders/{VOLUME}/{project.id}")
        assert answer.status == HTTPStatus.CONFLICT
        assert "the policy names it" in answer.message
        assert (project.folder.path / "block").exists()

        text = policy("unprovision", project.name, "--yes")
        assert text == (
            f"{project.name}: the policy does not name its folder any more\n"
            f"{project.name}: its folder on local:volume1 is removed\n"
        )
        assert not project.folder.path.exists()
        assert project.said() == {"mode": "explicit"}


class TestSessionFlags:
    def test_session_with_a_folder(self, client: Client, folders: Folders) -> None:
        done = backend_ai(
            *("session", "create", SMALL_IMAGE, "--name", f"cli-{uuid.uuid4().hex[:8]}"),
            *("--enqueue-only", "-r", "cpu=1", "-r", "mem=512m"),
            *("-v", f"{folders.model}:/models", "--kv-cache", folders.kv),
            *("-e", "BACKENDAI_KVCACHE_COMMAND=vllm serve /models", "--kv-cache-cpu", "64MiB"),
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
