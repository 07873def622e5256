"""Whether the daemons find the plugin, and may load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import attrs

from .check import Finding, Role, Status, failed, ok, skipped, warning
from .config_file import judge_file

if TYPE_CHECKING:
    from .host import Host

NAME = "kvcache"

#: By which the agent finds it.
GROUP = "backendai_accelerator_v21"

#: By which the manager does.
MANAGER_GROUP = "backendai_webapp_v20"

#: What the agent loads.
MODULE = "ai.backend.kvcache.agent.plugin"

#: What an administrator writes for it.
PREFIX = "ai.backend.kvcache"


@attrs.frozen
class Lists:
    """Two settings of a daemon that say which plugins it loads."""

    section: str
    allowed: str
    blocked: str
    module: str

    @property
    def restart(self) -> str:
        return f"then restart the {self.section}; running sessions stay"


AGENT_LISTS = Lists("agent", "allow-compute-plugins", "block-compute-plugins", MODULE)
MANAGER_LISTS = Lists(
    "manager", "allowed-plugins", "disabled-plugins", "ai.backend.kvcache.manager.webapp"
)

_LOST = "sessions get KV cache, and `kvcache status` cannot show their plans"


def look_at_plugin(host: Host) -> Finding:
    """By the way in which the agent finds it, in this Python."""
    found = list(entry_points(group=GROUP, name=NAME))
    if not found:
        return failed(
            f"this Python has no entry point {NAME} of {GROUP}, so the agent does not see it",
            "install it into the agent's Python: pip install '.[agent]' in a clone; and run this "
            "with that Python",
        )
    try:
        found[0].load()
    except Exception as e:
        return failed(
            f"the agent cannot load it: {type(e).__name__}: {e}",
            "install it into the agent's Python: pip install '.[agent]' in a clone",
        )
    return ok(f"{found[0].value} can be loaded")


def names(patterns: Sequence[str], module: str) -> bool:
    """Whether a list of module prefixes names a module, as Backend.AI reads it."""
    return any(module == pattern or module.startswith(f"{pattern}.") for pattern in patterns)


def _said(section: Mapping[str, Any], name: str) -> Any:
    """Backend.AI takes either spelling."""
    return section.get(name, section.get(name.replace("-", "_")))


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def judge_lists(document: Mapping[str, Any], lists: Lists) -> Finding:
    """Whether a daemon's file lets it load the plugin."""
    section = document.get(lists.section)
    section = section if isinstance(section, Mapping) else {}
    allowed, blocked = (_said(section, name) for name in (lists.allowed, lists.blocked))
    for name, value in ((lists.allowed, allowed), (lists.blocked, blocked)):
        if value is not None and not _is_list_of_texts(value):
            return failed(
                f"[{lists.section}] {name} is no list of texts",
                f'make it a list of module names, such as ["{PREFIX}"]; {lists.restart}',
            )
    for pattern in blocked or ():
        if names([pattern], lists.module):
            return failed(
                f'[{lists.section}] {lists.blocked} has "{pattern}", so the {lists.section} does '
                "not load it",
                f"take it out; {lists.restart}",
            )
    if allowed is not None and not names(allowed, lists.module):
        return failed(
            f'[{lists.section}] {lists.allowed} has no "{PREFIX}", so the {lists.section} does '
            "not load it",
            f'add "{PREFIX}" to it; {lists.restart}',
        )
    return ok("allowed" if allowed is not None else "all plugins are, since none are named")


def look_at_lists(host: Host) -> Finding:
    file = host.agent_file
    if file is None or judge_file(Role.AGENT, file).remedy:
        return skipped("they are in agent.toml, which cannot be read")
    return judge_lists(file.document(), AGENT_LISTS)


def look_at_manager_plugin(host: Host) -> Finding:
    """Of use to those who want to see plans, and to nobody else."""
    if not entry_points(group=MANAGER_GROUP, name=NAME):
        return warning(
            f"this Python has no entry point {NAME} of {MANAGER_GROUP}: {_LOST}",
            "install it into the manager's Python: pip install '.[manager]' in a clone, then "
            "restart the manager",
        )
    file = host.manager_file
    if file is None or judge_file(Role.MANAGER, file).remedy:
        return skipped("its lists are in manager.toml, which cannot be read")
    finding = judge_lists(file.document(), MANAGER_LISTS)
    if finding.status is Status.FAILED:
        return attrs.evolve(finding, status=Status.WARNING, text=f"{finding.text}: {_LOST}")
    return finding
