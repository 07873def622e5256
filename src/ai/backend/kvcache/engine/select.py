"""Which ways a session can go, and which adapter it therefore gets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import attrs
from packaging.version import Version

from ..errors import DeclinedError
from .adapter import EngineAdapter, Transport
from .command import Program
from .compatibility import incompatibility, unanswered
from .traits import Trait, Traits
from .versions import LABELS, TITLES, Versions


@attrs.frozen
class Way:
    """When an adapter may be taken."""

    program: Program
    device: str | None
    """Backend.AI's name of the GPUs' kind. None: no GPUs."""
    adapter: str
    """The adapter's name, and its module's with "_" for "-"."""
    transport: Transport
    needs: Mapping[str, str]
    """Package → oldest version."""
    only_by_name: bool = False
    """Never taken unless it is asked for."""
    leads_before: Mapping[str, str] = attrs.field(factory=dict)
    """Package → the version before which this way is tried before those that stand above it."""


#: LMCache inside vLLM is the fastest way where it is right, and it is not maintained for vLLM 0.26
#: and later (compatibility.py, layout-in-process).
_UP_TO_0_25 = {"vllm": "0.26.0"}

#: In the order in which they are tried. Why versions have to be as new as that, the adapters say.
WAYS = (
    Way(Program.VLLM, "cuda", "lmcache-mp", Transport.POSIX, {"lmcache": "0.4.6"}),
    Way(Program.VLLM, "cuda", "vllm-tiering", Transport.POSIX, {"vllm": "0.32.0"}),
    Way(
        Program.VLLM,
        "cuda",
        "lmcache-gds",
        Transport.GDS,
        {"lmcache": "0.3.0"},
        leads_before=_UP_TO_0_25,
    ),
    Way(
        Program.VLLM,
        "cuda",
        "lmcache-posix",
        Transport.POSIX,
        {"lmcache": "0.3.0"},
        leads_before=_UP_TO_0_25,
    ),
    Way(Program.VLLM, "cuda", "dynamo-kvbm", Transport.POSIX, {"kvbm": "1.0.0"}, True),
    Way(Program.VLLM, None, "lmcache-mp", Transport.POSIX, {"lmcache": "0.4.6"}),
    Way(Program.SGLANG, "cuda", "sglang-hicache", Transport.POSIX, {"sglang": "0.5.15"}),
    Way(Program.DYNAMO, "cuda", "lmcache-gds", Transport.GDS, {"lmcache": "0.3.0"}, True),
    Way(Program.DYNAMO, "cuda", "lmcache-posix", Transport.POSIX, {"lmcache": "0.3.0"}, True),
    Way(Program.DYNAMO, "cuda", "dynamo-kvbm", Transport.POSIX, {"kvbm": "1.0.0"}, True),
)

#: What people may name.
NAMES = tuple(dict.fromkeys(way.adapter for way in WAYS))

#: Adapter → how it moves what it loads and stores.
TRANSPORTS: Mapping[str, Transport] = {way.adapter: way.transport for way in WAYS}


@attrs.frozen
class Wish:
    """What is asked for by name. None: whatever fits."""

    adapter: str | None = None
    transport: Transport | None = None


def adapter_named(name: str) -> EngineAdapter:
    """The adapter of that name, whose module is read only now."""
    module = import_module(f".adapters.{name.replace('-', '_')}", __package__)
    adapter: EngineAdapter = module.ADAPTER
    return adapter


def candidates(program: Program, device: str | None, wish: Wish) -> tuple[Way, ...]:
    """The ways that a session may go, whatever its versions are.

    Args:
        device: Backend.AI's name of the GPUs' kind. None: no GPUs.

    Raises:
        DeclinedError: there is none, or none that is wished for.
    """
    running = [way for way in WAYS if way.program is program and way.device == device]
    if not running:
        on = "without GPUs" if device is None else f"on {device!r} accelerators"
        raise DeclinedError(f"KV cache folders are not known to work for {program} {on}")
    wanted = tuple(
        way
        for way in running
        if (way.adapter == wish.adapter if wish.adapter else not way.only_by_name)
        and wish.transport in (None, way.transport)
    )
    if not wanted:
        asked = ", ".join(
            f"{name} = {value}"
            for name, value in (("connector", wish.adapter), ("transport", wish.transport))
            if value
        )
        possible = ", ".join(f"{way.adapter} ({way.transport})" for way in running)
        if asked:
            problem = f"{asked} does not go with this session, which runs {program}; it can have"
        else:
            problem = f"{program} has KV cache only where connector names a way; it can be"
        raise DeclinedError(f"{problem} {possible}")
    return wanted


def _leads(way: Way, versions: Versions) -> bool:
    return any(
        (release := versions.known_release(package)) is not None and release < Version(first)
        for package, first in way.leads_before.items()
    )


def obstacle(way: Way, versions: Versions, traits: Traits) -> str | None:
    """Why a session cannot go a way with these versions; None where nothing is known against it."""
    unknown: list[str] = []
    for package, oldest in way.needs.items():
        if versions.lacks(package):
            return f"the image has no {TITLES[package]}"
        release = versions.known_release(package)
        if release is None:
            unknown.append(package)
        elif release < Version(oldest):
            return (
                f"{TITLES[package]} {versions.of(package)} is too old, {oldest} or later is needed"
            )
    adapter = adapter_named(way.adapter)
    if (known := incompatibility(adapter, versions, traits)) is not None:
        return known
    unknown += unanswered(adapter, versions, traits)
    if not unknown:
        return None
    titles = " and ".join(TITLES[package] for package in dict.fromkeys(unknown))
    labels = " and ".join(dict.fromkeys(LABELS[p] for p in unknown if p in LABELS))
    return (
        f"nobody can tell which {titles} the image has, and with some versions this way answers "
        "wrongly or does not start" + (f"; say it in the image's label {labels}" if labels else "")
    )


@attrs.frozen
class Selection:
    """The ways of a session, judged by its versions and traits."""

    ways: tuple[Way, ...]
    """Those that it can go, the better one first. Empty: none."""
    refused: Mapping[str, str]
    """The adapters of all others, and why they cannot be taken."""
    order: tuple[str, ...]
    """The adapters of all ways, in the order in which they are tried."""

    @property
    def adapter(self) -> EngineAdapter | None:
        """The adapter of the best way; None where no way is left."""
        return adapter_named(self.ways[0].adapter) if self.ways else None


def select(
    program: Program,
    device: str | None,
    versions: Versions,
    traits: Traits = frozenset(),
    wish: Wish | None = None,
) -> Selection:
    """Which ways a session can go, by what is known of its versions.

    Args:
        device: Backend.AI's name of the GPUs' kind. None: no GPUs.
        traits: what the session has besides. That it has GPUs follows from the device.

    Raises:
        DeclinedError: there is no way for such a program or device, or none that is wished for.
    """
    if device is not None:
        traits |= {Trait.GPUS}
    ways = candidates(program, device, wish or Wish())
    ways = tuple(sorted(ways, key=lambda way: not _leads(way, versions)))
    judged = [(way, obstacle(way, versions, traits)) for way in ways]
    return Selection(
        ways=tuple(way for way, why in judged if why is None),
        refused={way.adapter: why for way, why in judged if why is not None},
        order=tuple(way.adapter for way in ways),
    )


def summary(refused: Mapping[str, str]) -> str:
    """Why no way is left, in one line. A reason that several ways share is given once."""
    by_reason: dict[str, list[str]] = {}
    for adapter, why in refused.items():
        by_reason.setdefault(why, []).append(adapter)
    if len(by_reason) == 1:
        return next(iter(by_reason))
    return "; ".join(f"no {' or '.join(names)}: {why}" for why, names in by_reason.items())
