"""Catches a kernel's configuration while the agent prepares its mounts.

No public callback of a compute plugin sees what a session asked for (folders, environment, start
command, GPUs). The agent calls the callbacks from ``mount_krunner``, a method of the object that
has it all, so that method is wrapped once, and what it was called with is kept in a context
variable while it runs. Kernels that are created at the same time run in tasks of their own and do
not see each other's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

import attrs
from ai.backend.agent.agent import AbstractKernelCreationContext

_METHOD = "mount_krunner"
_MARK = "__kvcache_capture__"


@attrs.frozen
class Captured:
    """What one kernel is made from. All three are the agent's own, live objects."""

    context: Any
    resource_spec: Any
    environ: MutableMapping[str, str]


_current: ContextVar[Captured | None] = ContextVar("kvcache_captured", default=None)


def current() -> Captured | None:
    """The kernel whose callbacks are running; None outside of them, or when not installed."""
    return _current.get()


def install() -> bool:
    """Wraps the agent's method. Returns False when this agent has none of that shape."""
    original = getattr(AbstractKernelCreationContext, _METHOD, None)
    if not inspect.iscoroutinefunction(original):
        return False
    if hasattr(original, _MARK):
        return True
    if list(inspect.signature(original).parameters) != ["self", "resource_spec", "environ"]:
        return False

    @functools.wraps(original)
    async def capturing(self: Any, resource_spec: Any, environ: Any) -> None:
        token = _current.set(Captured(self, resource_spec, environ))
        try:
            await original(self, resource_spec, environ)
        finally:
            _current.reset(token)

    setattr(capturing, _MARK, True)
    setattr(AbstractKernelCreationContext, _METHOD, capturing)
    return True
