"""Combinations of versions that are known not to work, each with where that is known from."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from packaging.specifiers import SpecifierSet

from ..errors import DeclinedError
from .versions import DEFAULT_LMCACHE, DEFAULT_VLLM, OLDEST_VLLM, Versions, release_of


@attrs.frozen
class Incompatible:
    """One row. An empty set of versions means all of them."""

    adapters: tuple[str, ...]
    because: str
    source: str
    lmcache: str = ""
    vllm: str = ""


INCOMPATIBLE = (
    Incompatible(
        ("lmcache-inprocess-gds", "lmcache-mp-fs"),
        "it cannot be told to compute what could not be loaded, and would fail such requests",
        "vllm/config/kv_transfer.py: kv_load_failure_policy is not in 0.12.0",
        vllm=f"<{OLDEST_VLLM}",
    ),
    Incompatible(
        ("lmcache-mp-fs",),
        "vLLM cannot start its server; use an image with LMCache 0.5.6 or later",
        "lmcache/integration/vllm/mp_server_launcher.py is not in 0.5.5",
        lmcache="<0.5.6",
    ),
    Incompatible(
        ("lmcache-mp-fs",),
        "it takes a connector of its own in the place of LMCache's, which cannot start the server",
        "vllm/distributed/kv_transfer/kv_connector/v1/lmcache_mp_connector.py up to 0.21",
        vllm="<0.22",
    ),
)


def _matches(versions: str, version: str | None) -> bool:
    """Whether a row is about this version. One that is not known counts as the newest."""
    if not versions:
        return True
    release = None if version is None else release_of(version)
    return release is not None and release in SpecifierSet(versions)


def _named(versions: Versions) -> Iterator[str]:
    if versions.vllm is not None:
        yield f"vLLM {versions.vllm}"
    if versions.lmcache is not None:
        yield f"LMCache {versions.lmcache}"


def refuse_incompatible(adapter: str, versions: Versions) -> None:
    """Some versions do not work together, or not in this way.

    Raises:
        DeclinedError: these are known not to; the message says why and where that is known from.
    """
    for row in INCOMPATIBLE:
        if (
            adapter in row.adapters
            and _matches(row.lmcache, versions.lmcache)
            and _matches(row.vllm, versions.vllm)
        ):
            raise DeclinedError(
                f"{' with '.join(_named(versions))} does not work as {adapter}: {row.because} "
                f"({row.source})"
            )


def version_notes(versions: Versions) -> tuple[str, ...]:
    """What is assumed of an image that does not say what is in it."""
    assumed = [
        f"{name} {newest}"
        for name, version, newest in (
            ("vLLM", versions.vllm, DEFAULT_VLLM),
            ("LMCache", versions.lmcache, DEFAULT_LMCACHE),
        )
        if version is None
    ]
    if not assumed:
        return ()
    return (f"the image does not say its versions; it is told as {' and '.join(assumed)}",)
