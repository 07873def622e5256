"""Projects of the cluster, and what is typed for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ai.backend.kvcache.cli.policy_store import read_document
from ai.backend.kvcache.policy.place import Host, parse_place, provisioned_place
from devcluster import configuration, database, settings
from devcluster.client import connect

#: Ids of the cluster's users. "other-user" is a member of the default project alone.
USER = "dfa9da54-4b28-432f-be29-c0d680c7a412"
OTHER_USER = "009fb1a4-487c-4f6e-9b1b-228b94b1d040"

#: The project of which "user" is a member as well. It stays, since its sessions are remembered.
OWN_PROJECT = "kvcache-own"

#: Where projects' folders are made here.
VOLUME = Host("local", "volume1")

_PROJECTS = "query { groups { id name } }"

_MAKE_PROJECT = """
mutation($name: String!, $input: GroupInput!) {
  create_group(name: $name, props: $input) { group { id } }
}
"""
_ADD_MEMBERS = """
mutation($id: UUID!, $input: ModifyGroupInput!) {
  modify_group(gid: $id, props: $input) { ok msg }
}
"""

_ALLOWED = {
    "local:volume1": ["create-vfolder", "delete-vfolder", "modify-vfolder", "mount-in-session"]
}


def backend_ai(
    *words: str, role: str = "admin", stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``backend.ai`` as its users do."""
    program = Path(sys.executable).with_name("backend.ai")
    return subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **configuration.client_environment(role)},
    )


def policy(*words: str) -> str:
    """What the policy command prints to an administrator."""
    done = backend_ai("kvcache", "policy", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@attrs.frozen
class ProjectFolder:
    """A folder of a project's own."""

    project: str
    """Its id."""
    place: str
    """As a policy writes it."""

    @property
    def id(self) -> str:
        """As the manager's users write it."""
        return self.place.rpartition("/")[2]

    @property
    def path(self) -> Path:
        """On this machine."""
        # As the storage proxy lays a volume out.
        scope, _, key = parse_place(self.place).vfid.partition(":")[2].partition("/")
        return settings.VOLUME / scope.replace("-", "") / key[:2] / key[2:4] / key[4:]

    @property
    def scope(self) -> str:
        return f"project-{self.project}"

    def at(self, proxy: str) -> ProjectFolder:
        """The same, asked of a storage proxy by another name."""
        return attrs.evolve(self, place=self.place.replace("local:", f"{proxy}:", 1))

    def policy(self, **site: Any) -> dict[str, Any]:
        return {**site, "projects": {self.project: {"folder": self.place}}}


@attrs.frozen
class Project:
    """One of the manager's."""

    id: str
    name: str

    @property
    def folder(self) -> ProjectFolder:
        """The one that is provisioned for it, whether it is there or not."""
        return ProjectFolder(self.id, str(provisioned_place(VOLUME, self.id)))

    def said(self) -> dict[str, Any]:
        """What the stored policy says for it."""
        with connect("admin") as admin:
            document = read_document(admin.api)
        said: dict[str, Any] = document.get("projects", {}).get(self.id, {})
        return said

    def vfolders(self) -> list[dict[str, Any]]:
        """Its VFolders, as the manager has them."""
        with connect("admin") as admin:
            return [dict(f) for f in admin.api.VFolder.list() if f["group"] == self.id]


def find_project(name: str) -> Project | None:
    with connect("admin") as admin:
        groups = admin.api.Admin.query(_PROJECTS, {})["groups"]
    return next((Project(g["id"], name) for g in groups if g["name"] == name), None)


def make_project(name: str, *members: str) -> Project:
    """
    Args:
        members: ids of users.
    """
    described = {
        "domain_name": "default",
        "description": "",
        "is_active": True,
        "allowed_vfolder_hosts": json.dumps(_ALLOWED),
    }
    with connect("admin") as admin:
        made = admin.api.Admin.query(_MAKE_PROJECT, {"name": name, "input": described})
        project = Project(made["create_group"]["group"]["id"], name)
        if members:
            added = {"user_update_mode": "add", "user_uuids": list(members)}
            admin.api.Admin.query(_ADD_MEMBERS, {"id": project.id, "input": added})
    return project


@contextmanager
def new_vfolder(project: Project, name: str, **options: Any) -> Iterator[ProjectFolder]:
    """A VFolder of a project's; as earlier versions provisioned it, with ``permission="ro"``."""
    # Of several clients that are open, the last one's keys count, so this one does not stay open.
    with connect("admin") as admin:
        made = admin.api.VFolder.create(name, group=project.id, usage_mode="general", **options)
    place = f"{made['host']}/{made['quota_scope_id']}/{made['id'].replace('-', '')}"
    yield ProjectFolder(project.id, place)
    with connect("admin") as admin:
        admin.api.VFolder(name).delete()


@contextmanager
def project_admin(project: Project, user: str) -> Iterator[None]:
    """A user has the role of the project's admin for as long.

    Args:
        user: the user's id.
    """
    # The first is of the projects that came with the database, the second of those made since.
    names = f"'role_project_{project.id[:8]}_admin', 'project-{project.id[:8]}-admin'"
    role = f"SELECT id FROM roles WHERE name IN ({names})"
    database.query(f"INSERT INTO user_roles (user_id, role_id) SELECT '{user}', ({role})")
    try:
        yield
    finally:
        database.query(f"DELETE FROM user_roles WHERE user_id = '{user}' AND role_id = ({role})")
