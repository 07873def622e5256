"""Whether users reach the KV folders that the policy names.

Who reaches a KV folder reads what others' sessions keep in it, and can change what these sessions
load. Backend.AI's file API lets the members of a project write to the project's VFolders whatever
their permission, and the admins of any domain to every user's VFolder (run, 26.4.16). So a folder
is out of users' reach only where the manager has no VFolder for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..errors import KVCacheError, PolicyError
from ..policy.policy import PROJECTS, NamedFolder, parse_plugin_config
from . import database
from .check import Finding, failed, ok, skipped, warning
from .slot_type import usable_manager_file

if TYPE_CHECKING:
    from .host import Host

#: Tables and columns that Backend.AI 26.4.16 and 26.9.6 have in common.
_QUERY = """
SELECT v.id::text AS id, v.name, v.status::text AS status, v.unmanaged_path,
       v.ownership_type::text AS ownership, v.creator, u.email, g.name AS project
FROM vfolders v LEFT JOIN users u ON u.uuid = v."user" LEFT JOIN groups g ON g.id = v."group"
WHERE v.id::text = ANY(CAST(:ids AS text[])) OR v.unmanaged_path IS NOT NULL
ORDER BY v.name
"""

#: Of VFolders that lead nowhere any more. One in the trash still does.
_GONE = frozenset({"delete-ongoing", "delete-complete", "delete-error"})


@attrs.frozen
class VFolder:
    """One of the manager's."""

    id: str
    name: str
    status: str
    ownership: str
    """``user`` or ``group``."""
    owner: str
    """A user's address, or a project's name."""
    unmanaged_path: Path | None = None
    """A path of the hosts that the VFolder stands for. None: it lies in a volume."""

    @property
    def reached_by(self) -> str:
        """Those who read and write in it, for people."""
        if self.ownership == "group":
            return f"the members of project {self.owner} and the admins of its domain"
        return f"{self.owner}, whom it is shared with, and the admins of all domains"


def vfolder_of(row: database.Row) -> VFolder:
    """A VFolder as the query finds it."""
    is_of_project = row["ownership"] == "group"
    return VFolder(
        id=row["id"],
        name=row["name"],
        status=row["status"],
        ownership=row["ownership"],
        owner=(row["project"] if is_of_project else row["email"]) or row["creator"] or "nobody",
        unmanaged_path=Path(row["unmanaged_path"]) if row["unmanaged_path"] else None,
    )


def judge_reach(
    named: Sequence[NamedFolder], vfolders: Sequence[VFolder], volumes: Mapping[str, Path]
) -> Finding:
    """Whether VFolders lead into KV folders.

    Args:
        named: by the policy.
        volumes: ``proxy:volume`` → where it lies on the nodes; those that are known.
    """
    present = [vfolder for vfolder in vfolders if vfolder.status not in _GONE]
    by_id = {vfolder.id: vfolder for vfolder in present}
    unmanaged = [(v, v.unmanaged_path) for v in present if v.unmanaged_path is not None]
    texts: list[str] = []
    remedies: dict[str, None] = {}
    is_serious = False
    for folder in named:
        if (vfolder := by_id.get(str(folder.place.folder_id))) is not None:
            texts.append(
                f"{_names_it(folder)} the VFolder {vfolder.name}, which is reached by "
                f"{vfolder.reached_by}"
            )
            remedies[_replace(folder)] = None
            is_serious |= vfolder.ownership == "group"
        if (volume := volumes.get(str(folder.place.host))) is None:
            continue
        path = folder.place.path_in(volume)
        for vfolder, target in unmanaged:
            if path.is_relative_to(target) or target.is_relative_to(path):
                texts.append(
                    f"the unmanaged VFolder {vfolder.name} of {vfolder.owner} leads to {target}, "
                    f"and so into the folder that {_names_it(folder)}"
                )
                remedies[f"delete the unmanaged VFolder {vfolder.name}"] = None
                is_serious = True
    if not texts:
        return ok("no VFolder leads into a KV folder" if named else "the policy names no folder")
    make = failed if is_serious else warning
    return make("; ".join(texts), "; ".join(remedies))


def _names_it(folder: NamedFolder) -> str:
    if folder.kind is None:
        return "the site has"
    kind = "project" if folder.kind == PROJECTS else "resource group"
    return f"{kind} {folder.name} has"


def _replace(folder: NamedFolder) -> str:
    if folder.kind == PROJECTS:
        return f"`backend.ai kvcache policy provision --yes {folder.name}`"
    group = "" if folder.kind is None else f" --resource-group {folder.name}"
    return (
        f"`backend.ai kvcache policy provision --all`, then `… policy unset folder{group}`, unless "
        "all of these may see each other's contexts"
    )


def look_at_reach(host: Host) -> Finding:
    file = usable_manager_file(host)
    if file is None:
        return skipped("the manager's database was not asked, since its file cannot be used")
    try:
        policy = parse_plugin_config(host.etcd().plugin)
    except PolicyError:
        return skipped("the policy cannot be used")
    except KVCacheError:
        return skipped("the policy is in etcd, which was not asked")
    named = list(policy.named_folders())
    try:
        rows = database.ask(file, _QUERY, ids=[str(n.place.folder_id) for n in named])
    except database.DatabaseError as e:
        return skipped(str(e))
    volumes = {f"{a.proxy.name}:{v.name}": v.path for a in host.storage() for v in a.volumes}
    return judge_reach(named, list(map(vfolder_of, rows)), volumes)
