"""Everything the plugin decided for one session, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from ..engine.adapter import MetricsEndpoint
from ..folder.namespace import Namespace
from .gpu import Budget

#: The name of the plan in the session's configuration folder.
PLAN_FILE = "plan.json"


@attrs.frozen
class Decision:
    """One thing that was decided."""

    what: str
    value: Any
    why: str


@attrs.frozen
class Plan:
    """A session with KV cache, or the reason why it has none."""

    kernel_id: str
    no_kv_cache_because: str | None
    folder: str | None = None
    storage: PurePosixPath | None = None
    """The namespace's directory in the container."""
    namespace: Namespace | None = None
    folder_cap_bytes: int | None = None
    """How large the folder may become, as the policy says it."""
    adapter: str | None = None
    budget: Budget | None = None
    host_bytes: int | None = None
    """Host memory between GPU and folder, of all ranks."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    arguments: tuple[str, ...] = ()
    """What is added to the engine's command line."""
    add_by_hand: str | None = None
    """The command to run in a session that starts no engine by itself."""
    metrics: tuple[MetricsEndpoint, ...] = ()
    refused: Mapping[str, str] = attrs.field(factory=dict)
    """The ways that the session cannot go: adapter → why not."""
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as plan.json holds it."""
        return {
            "kernel_id": self.kernel_id,
            "kv_cache": self.no_kv_cache_because is None,
            "no_kv_cache_because": self.no_kv_cache_because,
            "folder": self.folder,
            "storage": self.storage and str(self.storage),
            "folder_cap_bytes": self.folder_cap_bytes,
            "namespace": self.namespace
            and {"name": self.namespace.name, "description": dict(self.namespace.description)},
            "engine": self.adapter,
            "refused": dict(self.refused),
            "budget": self.budget
            and {
                **attrs.asdict(self.budget),
                "utilization_before": str(self.budget.utilization_before),
                "utilization": str(self.budget.utilization),
            },
            "host_bytes": self.host_bytes,
            "environment": dict(self.environment),
            "arguments": list(self.arguments),
            "add_by_hand": self.add_by_hand,
            "metrics": [attrs.asdict(endpoint) for endpoint in self.metrics],
            "decisions": [attrs.asdict(d) for d in self.decisions],
            "warnings": list(self.warnings),
        }
