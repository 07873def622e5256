"""Which VFolders lead into KV folders. tests/cluster/test_isolation.py asks a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.doctor.check import Finding, Status, ok
from ai.backend.kvcache.doctor.reach import VFolder, judge_reach, vfolder_of
from ai.backend.kvcache.policy.place import Host, parse_place, provisioned_place
from ai.backend.kvcache.policy.policy import PROJECTS, RESOURCE_GROUPS, NamedFolder

CHAT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
VOLUMES = {"local:volume1": Path("/vfroot/volume1")}
ID = "586b7d5a-2983-4eb3-b94e-47eb8a151564"

#: As earlier versions made it.
OLD = parse_place(f"local:volume1/project:{CHAT}/{ID.replace('-', '')}")
NEW = provisioned_place(Host("local", "volume1"), CHAT)
NEW_PATH = "/vfroot/volume1/6c592a8d25c9588ba6d56a89a9fbb8eb/3b/82/ae61f9965bbeb60bbf15c6d7ffa5"


def row(**facts: Any) -> dict[str, Any]:
    """As the query finds the VFolder of OLD."""
    return {
        "id": ID,
        "name": "kv-cache-2de2b969",
        "status": "ready",
        "unmanaged_path": None,
        "ownership": "group",
        "creator": "admin@example.com",
        "email": None,
        "project": "chat",
        **facts,
    }


def judged(
    place: Any, *vfolders: VFolder, kind: str | None = PROJECTS, name: str = CHAT
) -> Finding:
    return judge_reach([NamedFolder(kind, name, place)], vfolders, VOLUMES)


def test_provisioned_folder() -> None:
    assert judged(NEW, vfolder_of(row())) == ok("no VFolder leads into a KV folder")
    assert judge_reach([], [], {}) == ok("the policy names no folder")


def test_vfolder_of_a_project() -> None:
    finding = judged(OLD, vfolder_of(row()))
    assert finding.status is Status.FAILED
    assert finding.text == (
        f"project {CHAT} has the VFolder kv-cache-2de2b969, which is reached by the members of "
        "project chat and the admins of its domain"
    )
    assert finding.remedy == f"`backend.ai kvcache policy provision --yes {CHAT}`"


def test_vfolder_of_a_user() -> None:
    mine = vfolder_of(row(name="mine", ownership="user", email="user@example.com", project=None))
    finding = judged(OLD, mine)
    assert finding.status is Status.WARNING
    assert "the VFolder mine, which is reached by user@example.com, whom it is shared with" in (
        finding.text
    )


@pytest.mark.parametrize("ownership", ["user", "group"])
def test_owner_who_is_gone(ownership: str) -> None:
    orphan = vfolder_of(row(ownership=ownership, project=None))
    assert "admin@example.com" in judged(OLD, orphan).text


@pytest.mark.parametrize(
    ("kind", "name", "text", "remedy"),
    [
        (None, "", "the site has the VFolder", "`… policy unset folder`"),
        (
            RESOURCE_GROUPS,
            "h100",
            "resource group h100 has the VFolder",
            "`… policy unset folder --resource-group h100`",
        ),
    ],
)
def test_at_wider_levels(kind: str | None, name: str, text: str, remedy: str) -> None:
    finding = judged(OLD, vfolder_of(row()), kind=kind, name=name)
    assert text in finding.text
    assert remedy in str(finding.remedy)


@pytest.mark.parametrize(
    ("status", "is_reached"),
    [("delete-pending", True), ("delete-ongoing", False), ("delete-complete", False)],
)
def test_of_what_is_deleted(status: str, is_reached: bool) -> None:
    """Files of a VFolder in the trash are still served to those who know its id."""
    assert (judged(OLD, vfolder_of(row(status=status))).status is Status.FAILED) is is_reached


@pytest.mark.parametrize(
    ("path", "leads_there"),
    [
        (NEW_PATH, True),
        (f"{NEW_PATH}/scopes/project-{CHAT}", True),
        ("/vfroot", True),
        ("/", True),
        (f"{NEW_PATH}-other", False),
        ("/vfroot/volume2", False),
    ],
)
def test_unmanaged_vfolder(path: str, leads_there: bool) -> None:
    unmanaged = vfolder_of(
        row(
            id="11111111-2983-4eb3-b94e-47eb8a151564",
            name="paths",
            ownership="user",
            email="domain-admin@example.com",
            project=None,
            unmanaged_path=path,
        )
    )
    finding = judged(NEW, unmanaged)
    if not leads_there:
        assert finding.status is Status.OK
        return
    assert finding.status is Status.FAILED
    assert finding.text.startswith(
        f"the unmanaged VFolder paths of domain-admin@example.com leads to {path}"
    )
    assert finding.remedy == "delete the unmanaged VFolder paths"
    # Where the volume lies is not known while its proxy does not answer.
    assert judge_reach([NamedFolder(PROJECTS, CHAT, NEW)], [unmanaged], {}).status is Status.OK
