"""A running session's plan, as the manager knows it and a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import trafaret as t

from ..sizes import MAX_BYTES
from .table import table

_TEXT = t.String(allow_blank=True)

_PLAN = t.Dict(
    {
        t.Key("no_kv_cache_because"): t.Null | _TEXT,
        t.Key("engine"): t.Null | _TEXT,
        t.Key("folder"): t.Null | _TEXT,
        t.Key("storage"): t.Null | _TEXT,
        t.Key("namespace"): t.Null | t.Dict({t.Key("name"): _TEXT}, ignore_extra="*"),
        t.Key("decisions"): t.List(
            t.Dict(
                {t.Key("what"): _TEXT, t.Key("value"): t.Any, t.Key("why"): _TEXT},
                ignore_extra="*",
            )
        ),
        t.Key("refused"): t.Mapping(_TEXT, _TEXT),
        t.Key("warnings"): t.List(_TEXT),
    },
    ignore_extra="*",
)


@attrs.frozen
class SessionPlan:
    """A plan, or why it is not known."""

    content: Mapping[str, Any] | None
    """As plan.json has it."""
    unknown_because: str | None = None

    @property
    def host_bytes(self) -> int | None:
        """Host memory between GPU and folder. None: not known."""
        size = (self.content or {}).get("host_bytes")
        return size if type(size) is int and 0 < size <= MAX_BYTES else None

    def text(self) -> str:
        """For people. A plan may be the session's own word, so it is shown as text alone."""
        if self.content is None:
            return f"plan: not known, {self.unknown_because}"
        try:
            return _text(_PLAN.check(self.content))
        except t.DataError as e:
            return printable(f"plan: not understood: {e}")


def _text(plan: Mapping[str, Any]) -> str:
    if plan["no_kv_cache_because"] is not None:
        return printable(f"no KV cache because {plan['no_kv_cache_because']}")
    namespace = plan["namespace"] and plan["namespace"]["name"]
    head = [
        (name, printable(value))
        for name, value in (
            ("engine", plan["engine"]),
            ("folder", plan["folder"]),
            ("namespace", namespace),
            ("storage", plan["storage"]),
        )
        if value is not None
    ]
    decisions = [
        tuple(map(printable, (decision["what"], _value(decision["value"]), decision["why"])))
        for decision in plan["decisions"]
    ]
    notes = [printable(f"not {way}: {why}") for way, why in plan["refused"].items()]
    notes += [printable(f"warning: {warning}") for warning in plan["warnings"]]
    parts = [
        table(head, text=(0, 1)) if head else "",
        table([("decided", "value", "why"), *decisions], text=(0, 1, 2)) if decisions else "",
        "\n".join(notes),
    ]
    return "\n\n".join(filter(None, parts))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def printable(text: str) -> str:
    """Without what could move a terminal's cursor or turn its text around."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
