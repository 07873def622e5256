"""Combinations that are known not to work, each with where that is known from."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from packaging.specifiers import SpecifierSet

from .adapter import EngineAdapter
from .traits import Trait, Traits
from .versions import NEWEST, OLDEST_VLLM, TITLES, Versions, release_of


@attrs.frozen
class Incompatible:
    """One row."""

    adapters: tuple[str, ...]
    packages: Mapping[str, str]
    """Package → the versions that are meant. All of them have to be."""
    because: str
    source: str
    having: Traits = frozenset()
    """Traits that a session must have, all of them, for the row to be about it."""


_OLD_VLLM = Incompatible(
    ("lmcache-gds", "lmcache-posix", "lmcache-mp"),
    {"vllm": f"<{OLDEST_VLLM}"},
    "it cannot be told to compute what could not be loaded, and would fail such requests",
    "vllm/config/kv_transfer.py: kv_load_failure_policy is not in 0.12.0",
)

INCOMPATIBLE = (
    _OLD_VLLM,
    Incompatible(
        ("lmcache-gds", "lmcache-posix", "lmcache-mp"),
        {"vllm": "==0.20.2", "lmcache": "==0.4.7"},
        "that LMCache was made for a later vLLM; use an image with LMCache 0.4.6",
        "run: LMCache 0.4.7 does not start in vLLM 0.20.2",
    ),
    Incompatible(
        ("lmcache-mp",),
        {"lmcache": "<0.4.6"},
        "its server needs cupy and a GPU; use an image with LMCache 0.4.6 or later",
        "run: LMCache 0.4.4 does not start without cupy",
    ),
    Incompatible(
        ("lmcache-gds",),
        {"lmcache": "<0.3.9"},
        "it stores the blocks of this model's attention in a form that it cannot read back; use "
        "an image with LMCache 0.3.9 or later",
        "LMCache#1323",
        having=frozenset({Trait.LATENT}),
    ),
)


def _matches(row: Incompatible, versions: Versions) -> bool:
    """Whether a row is about these versions. One that is not known counts as the newest."""
    for package, meant in row.packages.items():
        version = versions.of(package)
        release = None if version is None else release_of(version)
        if release is None or release not in SpecifierSet(meant):
            return False
    return True


def incompatibility(adapter: EngineAdapter, versions: Versions, traits: Traits) -> str | None:
    """Why these versions are known not to work in this way; None where nothing is known."""
    for row in INCOMPATIBLE:
        if adapter.name in row.adapters and row.having <= traits and _matches(row, versions):
            return (
                f"{versions.named(adapter.packages)} does not work as {adapter.name}: "
                f"{row.because} ({row.source})"
            )
    return None


def version_notes(adapter: EngineAdapter, versions: Versions) -> tuple[str, ...]:
    """What is assumed of an image that does not say what is in it."""
    assumed = [
        f"{TITLES[package]} {NEWEST[package]}"
        for package in adapter.packages
        if versions.of(package) is None
    ]
    if not assumed:
        return ()
    return (f"the image does not say its versions; it is told as {' and '.join(assumed)}",)
