"""Who gets KV cache, and how: one document, from the site to a resource group to a project.

It is one value in etcd, so that a reader never sees half of a change::

    {"mode": "explicit", "cpu-tier": "40GiB",
     "resource-groups": {"old-gpus": {"mode": "off"}},
     "projects": {"<uuid>": {"mode": "auto", "folder": "local:volume1/project:<uuid>/<hex>"}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import attrs
import trafaret as t

from .. import strict_json
from ..errors import PolicyError
from .place import Place
from .settings import Mode, Settings, check_level, settings_of

#: Below the plugin's own prefix in etcd.
POLICY_KEY = "policy"

#: What Backend.AI keeps for the plugin.
ETCD_PREFIX = "config/plugins/accelerator/kvcache/"

#: The policy among it.
ETCD_KEY = f"{ETCD_PREFIX}{POLICY_KEY}"

RESOURCE_GROUPS = "resource-groups"
PROJECTS = "projects"

#: etcd takes no larger value by itself; one of a thousand projects has 200 KiB.
MAX_BYTES = 2**20

type Fields = Mapping[str, Any]


@attrs.frozen
class NamedFolder:
    """A KV folder that a policy names."""

    kind: str | None
    """RESOURCE_GROUPS or PROJECTS: what names it. None: the site."""
    name: str
    """The resource group's name, or the project's id."""
    place: Place


@attrs.frozen
class Policy:
    """A checked policy."""

    site: Fields = attrs.field(factory=dict)
    resource_groups: Mapping[str, Fields] = attrs.field(factory=dict)
    projects: Mapping[str, Fields] = attrs.field(factory=dict)

    def settings_for(self, resource_group: str | None, project: str | None) -> Settings:
        """What applies to a session.

        The narrower level wins; only ``mode = off`` of a wider one cannot be undone.

        Args:
            resource_group: its name. None: not known.
            project: its id. None: a session of no project.
        """
        levels = (
            self.site,
            self.resource_groups.get(resource_group or "", {}),
            self.projects.get(project or "", {}),
        )
        fields = {field: value for level in levels for field, value in level.items()}
        if any(level.get("mode") is Mode.OFF for level in levels):
            fields["mode"] = Mode.OFF
        return settings_of(fields)

    def named_folders(self) -> Iterator[NamedFolder]:
        """The folders that the site, resource groups and projects name."""
        levels: tuple[tuple[str | None, Mapping[str, Fields]], ...] = (
            (None, {"": self.site}),
            (RESOURCE_GROUPS, self.resource_groups),
            (PROJECTS, self.projects),
        )
        for kind, said in levels:
            for name, fields in said.items():
                if "folder" in fields:
                    yield NamedFolder(kind, name, fields["folder"])


def _problems(where: str, said: Mapping[str, Any], error: t.DataError) -> list[str]:
    reasons = error.as_dict()
    if not isinstance(reasons, dict):
        return [f"{where or 'the policy'}: {reasons}"]
    return [f"{where}{key} = {said.get(key)!r:.100}: {reason}" for key, reason in reasons.items()]


def levels_of_kind(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """What a document says for all resource groups, or all projects, unchecked.

    Raises:
        PolicyError: it is no mapping of names to settings.
    """
    levels = document.get(kind, {})
    if not isinstance(levels, dict) or not all(isinstance(v, dict) for v in levels.values()):
        raise PolicyError(f"{kind} must map names to settings, such as {{NAME: {{mode: off}}}}")
    return levels


def is_project_id(text: str) -> bool:
    """Whether a text is an id as policies write those of projects."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def check_policy(document: Any) -> Policy:
    """Checks a policy as people and programs write it.

    Raises:
        PolicyError: it is none; the message names every wrong setting with its value.
    """
    if not isinstance(document, dict):
        raise PolicyError(f"a policy maps names to values, and {document!r:.100} does not")
    projects = levels_of_kind(document, PROJECTS)
    if strange := [name for name in projects if not is_project_id(name)]:
        raise PolicyError(f"{PROJECTS} are named by their ids, and {strange[0]!r} is none")
    resource_groups = levels_of_kind(document, RESOURCE_GROUPS)
    site = {k: v for k, v in document.items() if k not in (PROJECTS, RESOURCE_GROUPS)}
    problems: list[str] = []

    def checked(where: str, said: Mapping[str, Any]) -> Fields:
        try:
            return check_level(said)
        except t.DataError as e:
            problems.extend(_problems(where, said, e))
            return {}

    policy = Policy(
        site=checked("", site),
        resource_groups={
            name: checked(f"{RESOURCE_GROUPS}.{name}.", said)
            for name, said in resource_groups.items()
        },
        projects={name: checked(f"{PROJECTS}.{name}.", said) for name, said in projects.items()},
    )
    if problems:
        raise PolicyError(f"the policy is not usable: {'; '.join(problems)}")
    return policy


def read_policy(text: str | None) -> dict[str, Any]:
    """The document in etcd's value; an empty one where there is none.

    Raises:
        PolicyError: it is no JSON object.
    """
    try:
        document = strict_json.parse((text or "{}").encode())
    except ValueError as e:
        raise PolicyError(
            f"{ETCD_KEY} holds no usable JSON ({e}); `backend.ai kvcache policy set` writes it"
        ) from e
    if not isinstance(document, dict):
        raise PolicyError(f"{ETCD_KEY} holds {document!r:.100} in the place of an object")
    return document


def policy_text(document: Mapping[str, Any]) -> str:
    """The value to put into etcd.

    Raises:
        PolicyError: it is too large.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    if len(text.encode()) > MAX_BYTES:
        raise PolicyError(f"the policy has more than {MAX_BYTES} bytes")
    return text


def parse_plugin_config(config: Mapping[str, Any]) -> Policy:
    """The policy among what Backend.AI keeps for the plugin.

    Raises:
        PolicyError: there is one, and it is not usable.
    """
    text = config.get(POLICY_KEY)
    if text is not None and not isinstance(text, str):
        raise PolicyError(f"{ETCD_KEY} has keys below it; delete them")
    return check_policy(read_policy(text))
