"""Controls for KV cache in the WebUI's launcher of model services.

Backend.AI keeps them as parameters of an engine ("runtime variant"); each sets one environment
variable of the sessions. No two parameters of one engine have the same name. Ours are named after
their variable, which is how they are told from others'.

What is not said here is for administrators to choose: order, default, and whether a value must be
given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from ..engine.adapter import Transport
from ..engine.command import Program
from ..engine.select import WAYS
from ..policy.request import BUFFER, CPU_TIER, FOLDER, SWITCH
from ..policy.request import TRANSPORT as TRANSPORT_VARIABLE
from ..policy.settings import AUTO
from .changes import Kept, Needed, changes

#: The WebUI makes a tab "Kv Cache" of it.
CATEGORY = "kv_cache"

#: What Backend.AI calls the engines that adapters exist for. It has no word for Dynamo.
VARIANTS: Mapping[str, Program] = {"vllm": Program.VLLM, "sglang": Program.SGLANG}

#: Parameters that set variables of the session, not arguments of the engine.
ENVIRONMENT = "env"


@attrs.frozen
class Control:
    """What people see, and the variable that it sets."""

    key: str
    """The variable."""
    label: str
    description: str
    """Shown when the mouse is over the label."""
    value_type: str
    """Of Backend.AI: "bool" for check boxes, "str" for the others."""
    ui_option: Mapping[str, Any]
    """How it is drawn, in Backend.AI's JSON."""


@attrs.frozen
class Variant:
    """An engine as the manager has it."""

    id: UUID
    name: str


@attrs.frozen
class Parameter:
    """A control of one engine."""

    variant: Variant
    name: str
    target: str
    category: str | None
    control: Control


def name_of(key: str) -> str:
    """``BACKENDAI_KVCACHE_FOLDER`` → ``backendai-kvcache-folder``, as Backend.AI names its own."""
    return key.lower().replace("_", "-")


#: What the names of all of ours begin with.
PREFIX = name_of(SWITCH)


def _text(placeholder: str) -> Mapping[str, Any]:
    return {"ui_type": "text_input", "text": {"placeholder": placeholder}}


def _select(labels: Mapping[str, str]) -> Mapping[str, Any]:
    items = [{"value": value, "label": label} for value, label in labels.items()]
    return {"ui_type": "select", "choices": {"items": items}}


# No defaults: the WebUI does not send a value that is one. A box that was never touched says
# nothing, and one that was ticked and cleared says no.
_SWITCH = Control(
    SWITCH,
    "KV cache offloading",
    "Keeps the KV cache in a folder, so that a context computed once is loaded instead of computed "
    "again. Untouched: as the administrator has set. Ticked and cleared again: none.",
    "bool",
    {"ui_type": "checkbox"},
)
_FOLDER = Control(
    FOLDER,
    "KV cache folder",
    "The name of one of the additional mounts, a general or data folder. Empty: the one that is "
    "mounted where the administrator has set (/kvcache), or the project's.",
    "str",
    _text("the project's folder"),
)
_TRANSPORT = Control(
    TRANSPORT_VARIABLE,
    "Transport",
    "How contexts come from the folder to the GPU.",
    "str",
    _select({
        AUTO: "Automatic",
        Transport.GDS.value: "GPUDirect Storage",
        Transport.POSIX.value: "Host memory and ordinary files",
    }),
)
_BUFFER = Control(
    BUFFER,
    "GPU buffer",
    "Memory of each GPU that GPUDirect Storage moves contexts through, such as 24GiB. Empty: "
    "computed from the model.",
    "str",
    _text("automatic"),
)
_CPU_TIER = Control(
    CPU_TIER,
    "Host memory",
    "Memory of the session between GPU and folder, such as 64GiB, or off. Empty: as the "
    "administrator has set.",
    "str",
    _text("automatic"),
)

#: In the order in which they are shown.
_ALL = (_SWITCH, _FOLDER, _TRANSPORT, _BUFFER, _CPU_TIER)

#: Those that say nothing to an engine without GPUDirect Storage.
_OF_GDS = (_TRANSPORT, _BUFFER)


def controls_of(program: Program) -> tuple[Control, ...]:
    """Those that make a difference to an engine, in the order in which they are shown."""
    has_gds = any(way.program is program and way.transport is Transport.GDS for way in WAYS)
    return tuple(control for control in _ALL if has_gds or control not in _OF_GDS)


def wanted_parameters(variants: Iterable[Variant]) -> tuple[Parameter, ...]:
    """The parameters that the manager should have, of the variants that it has."""
    return tuple(
        Parameter(variant, name_of(control.key), ENVIRONMENT, CATEGORY, control)
        for variant in variants
        if variant.name in VARIANTS
        for control in controls_of(VARIANTS[variant.name])
    )


def _place(parameter: Parameter) -> tuple[UUID, str]:
    return parameter.variant.id, parameter.name


def identity(parameter: Parameter) -> tuple[UUID, str] | None:
    """What one of ours is known by; None for those of others."""
    key = parameter.control.key
    is_ours = (
        parameter.target == ENVIRONMENT
        and key.startswith(SWITCH)
        and parameter.name == name_of(key)
    )
    return _place(parameter) if is_ours else None


def needed(kept: Iterable[Kept[Parameter]], variants: Sequence[Variant]) -> Needed[Parameter]:
    """How to get from what is kept to what is wanted.

    Args:
        kept: all parameters that are called as ours are.
        variants: all that the manager has.
    """
    kept = tuple(kept)
    wanted = wanted_parameters(variants)
    others = {_place(one.preset) for one in kept if identity(one.preset) is None}
    names = {variant.name for variant in variants}
    return Needed(
        changes(kept, (p for p in wanted if _place(p) not in others), identity),
        (
            *(f"this manager has no variant {name}" for name in VARIANTS if name not in names),
            *(
                f"{p.variant.name} has a parameter {p.name} of somebody else's, which stays"
                for p in wanted
                if _place(p) in others
            ),
        ),
    )
