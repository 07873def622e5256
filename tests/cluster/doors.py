"""Every way in which Backend.AI lets somebody into a VFolder, as a request to the manager.

The requests are those of its clients: of the command line, of the WebUI's data page and file
browser, and of both interfaces (v1 and v2). They go in an order in which all of them succeed for
the owner of a VFolder (``for_owner``), so that a refusal elsewhere is one of the person, and not of
a request that nobody could make.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import attrs
from ai.backend.client.exceptions import BackendAPIError

from devcluster import database
from devcluster.client import SMALL_IMAGE, Client

from .rest import Answer, ask_manager

OTHER_USER = "user2@lablup.com"


@attrs.frozen
class Door:
    """A request about one VFolder."""

    method: str
    path: str
    """With ``{id}`` in the place of the VFolder's id."""
    body: Mapping[str, Any] | None = None
    for_owner: bool = True
    """Whether it succeeds for the owner of a VFolder, in the order of the table."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def knock(self, role: str, vfolder: str) -> Answer:
        """What the manager answers to a user.

        Args:
            vfolder: its id.
        """
        body = None if self.body is None else json.loads(_filled(json.dumps(self.body), vfolder))
        return ask_manager(role, self.method, _filled(self.path, vfolder), body)


def is_refused(answer: Answer) -> bool:
    """Whether a user got nothing."""
    if answer.status == HTTPStatus.OK and isinstance(answer.body, dict):
        # What concerns several VFolders says of each how it went.
        return answer.body.get("purged_count") == 0 and len(answer.body["failed"]) == 1
    return 400 <= answer.status < 500


def _filled(text: str, vfolder: str) -> str:
    return text.replace("{id}", vfolder).replace("{name}", f"door-{uuid.uuid4().hex[:8]}")


_V1 = "/folders/{id}"
_V2 = "/v2/vfolders/{id}"

#: Both a KV folder and the VFolder of the control have a directory of this name.
_DIRECTORY = "scopes"

DOORS: Sequence[Door] = (
    Door("GET", _V1),
    Door("GET", _V2),
    # Of volumes that have quotas alone.
    Door("GET", "/folders/_/quota?folder_host=local:volume1&id={id}", for_owner=False),
    # Of superadmins alone.
    Door("GET", "/folders/_/usage?folder_host=local:volume1&id={id}", for_owner=False),
    Door("GET", "/folders/_/used-bytes?folder_host=local:volume1&id={id}", for_owner=False),
    Door("GET", f"{_V1}/files?path=."),
    Door("GET", f"{_V1}/files?path={_DIRECTORY}"),
    Door("POST", f"{_V2}/files/list", {"path": "."}),
    Door("POST", f"{_V1}/request-download", {"path": _DIRECTORY, "archive": True}),
    Door("POST", f"{_V1}/request-download-archive", {"files": [_DIRECTORY]}),
    Door("POST", f"{_V2}/download-session", {"path": _DIRECTORY, "archive": True}),
    Door("POST", f"{_V1}/request-upload", {"path": f"{_DIRECTORY}/door", "size": 1}),
    Door("POST", f"{_V2}/upload-session", {"path": f"{_DIRECTORY}/door", "size": 1}),
    Door("POST", f"{_V1}/mkdir", {"path": "{name}"}),
    Door("POST", f"{_V2}/files/mkdir", {"path": "{name}"}),
    Door("POST", f"{_V1}/rename-file", {"target_path": _DIRECTORY, "new_name": "renamed"}),
    Door("POST", f"{_V1}/move-file", {"src": "renamed", "dst": _DIRECTORY}),
    Door("POST", f"{_V1}/move-file", {"src": _DIRECTORY, "dst": "renamed"}),
    Door("POST", f"{_V2}/files/move", {"src": "renamed", "dst": _DIRECTORY}),
    Door("POST", f"{_V1}/update-options", {"cloneable": True}),
    Door("POST", f"{_V1}/clone", {"target_name": "{name}"}),
    Door("POST", f"{_V2}/clone", {"name": "{name}"}),
    Door("POST", f"{_V1}/invite", {"perm": "rw", "emails": [OTHER_USER]}),
    # Of projects' VFolders alone.
    Door("POST", f"{_V1}/share", {"permission": "rw", "emails": [OTHER_USER]}, for_owner=False),
    Door("POST", f"{_V1}/unshare", {"emails": [OTHER_USER]}, for_owner=False),
    Door("POST", f"{_V1}/leave", {}),
    Door("POST", f"{_V1}/rename", {"new_name": "{name}"}),
    Door("POST", f"{_V1}/delete-files-async", {"files": [_DIRECTORY], "recursive": True}),
    Door("DELETE", f"{_V1}/delete-files", {"files": [_DIRECTORY], "recursive": True}),
    Door("POST", f"{_V2}/files/delete", {"files": [_DIRECTORY], "recursive": True}),
    # Of models' VFolders alone.
    Door("POST", f"{_V2}/deploy", {}, for_owner=False),
    Door("DELETE", "/folders", {"vfolderId": "{id}"}),
    Door("POST", "/folders/restore-from-trash-bin", {"vfolderId": "{id}"}),
    Door("DELETE", _V2),
    Door("POST", f"{_V2}/restore"),
    Door("POST", "/v2/vfolders/delete", {"ids": ["{id}"]}),
    Door("POST", "/v2/vfolders/purge", {"ids": ["{id}"]}),
    Door("POST", f"{_V2}/purge", {}),
    # Of admins alone.
    Door("POST", "/folders/purge", {"vfolderId": "{id}"}, for_owner=False),
    Door("POST", "/folders/delete-from-trash-bin", {"vfolderId": "{id}"}),
    Door("DELETE", f"{_V1}/force"),
)

_VFOLDER_NODES = "query { vfolder_nodes { edges { node { row_id name } } } }"
_VFOLDER_LIST = "query { vfolder_list(limit: 100, offset: 0) { items { id name } } }"
_PROJECT_SCOPE = """
query($scope: ScopeField) {
  vfolder_nodes(scope_id: $scope, permission: read_attribute) { edges { node { row_id } } }
}
"""


def listings(role: str, project: str) -> Iterator[tuple[str, Answer]]:
    """(request, answer) of all lists of VFolders that a user may ask for."""
    lists: Sequence[tuple[str, str, Mapping[str, Any] | None]] = (
        ("GET", "/folders", None),
        ("GET", "/folders?all=true", None),
        ("GET", f"/folders?group_id={project}", None),
        ("GET", "/folders/_/shared", None),
        ("GET", "/folders/invitations/list", None),
        ("POST", "/v2/vfolders/my/search", {}),
        ("POST", f"/v2/vfolders/projects/{project}/search", {}),
        ("POST", "/admin/gql", {"query": _VFOLDER_NODES}),
        ("POST", "/admin/gql", {"query": _VFOLDER_LIST}),
        (
            "POST",
            "/admin/gql",
            {"query": _PROJECT_SCOPE, "variables": {"scope": f"project:{project}"}},
        ),
    )
    for method, path, body in lists:
        yield f"{method} {path} {body or ''}", ask_manager(role, method, path, body)


def mounts(client: Client, type_: str, project: str, source: str | uuid.UUID) -> bool:
    """Whether a session that a user asks for mounts what the user names. It is ended again.

    Args:
        type_: ``system`` is that of SFTP sessions.
        source: a VFolder's name or id, with or without a directory in it.
    """
    by_id = isinstance(source, uuid.UUID)
    try:
        session = client.api.ComputeSession.get_or_create(
            SMALL_IMAGE,
            name=f"door-{uuid.uuid4().hex[:8]}",
            type_=type_,
            group_name=project,
            no_reuse=True,
            enqueue_only=True,
            resources={"cpu": 1, "mem": "512m"},
            **({"mount_ids": [source]} if by_id else {"mounts": [source]}),
        )
    except BackendAPIError as e:
        if not 400 <= e.status < 500:
            raise
        return False
    try:
        # Backend.AI leaves out without a word what looks like an id and a directory in it.
        found = database.query(f"SELECT vfolder_mounts FROM sessions WHERE id = '{session.id}'")
        return found.strip() not in ("", "[]", "null")
    finally:
        with suppress(BackendAPIError):
            session.destroy(forced=True)
