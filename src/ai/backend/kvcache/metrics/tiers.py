"""Where prompt tokens came from, as far as the engine tells its tiers apart."""

from __future__ import annotations

from collections.abc import Callable

from .interval import Interval

type _Count = Callable[[str], float | None]
"""Key of QUANTITIES → tokens, of an interval or since the engine's start."""

_DISK = "disk_tier_tokens"
_HOST = "host_tier_tokens"

#: The tiers below a connector of vLLM that says from which one it loaded.
_TIERS = (_DISK, _HOST, "peer_tier_tokens")

#: Where engines find tokens.
_FOUND = ("engine_tokens", "external_tokens", "host_tokens", "storage_tokens")


def _share(tier: str, *counts: _Count) -> float | None:
    """The share of what a connector loaded that came from a tier; from 0 to 1.

    Args:
        counts: the first one that has counted anything is taken.

    Returns:
        None where it is not known: tokens whose tier the connector did not tell may have come from
        any of them.
    """
    for count in counts:
        loaded = sum(count(each) or 0.0 for each in _TIERS)
        unspecified = count("unspecified_tier_tokens")
        if loaded or unspecified:
            return None if unspecified else (count(tier) or 0.0) / loaded
    return None


def _part(interval: Interval, tier: str, loaded: float) -> float | None:
    """What came from a tier, of the tokens that a connector loaded in an interval.

    vLLM counts tiers when a request is scheduled, and these tokens with its first token, so an
    interval in which nothing was scheduled has the mean share since the engine's start.
    """
    share = _share(tier, interval.rose, interval.now.__getitem__)
    return None if share is None else loaded * share


def _tells_tiers(interval: Interval) -> bool:
    """Whether the connector has more than one tier, and says which one it loaded from."""
    return any(interval.now[tier] for tier in _TIERS)


def _is_vllms_own(interval: Interval) -> bool:
    """Whether vLLM offloads by itself. It has a tier in host memory, and tells of it from 0.32."""
    return interval.now["offloaded_bytes"] is not None


def folder_tokens(interval: Interval) -> float | None:
    """Prompt tokens of the interval that came from the KV folder.

    LMCache does not say on the engine's page what it had in host memory; that is counted as the
    folder's.
    """
    loaded = interval.rose("external_tokens")
    if not loaded:
        return interval.rose("storage_tokens") if loaded is None else 0.0
    if _tells_tiers(interval):
        return _part(interval, _DISK, loaded)
    return None if _is_vllms_own(interval) else loaded


def folder_tokens_since_start(interval: Interval) -> float | None:
    """The same since the engine's start."""
    now = interval.now
    loaded = now["external_tokens"]
    if not loaded:
        return now["storage_tokens"] if loaded is None else 0.0
    if _tells_tiers(interval):
        share = _share(_DISK, now.__getitem__)
        return None if share is None else loaded * share
    return None if _is_vllms_own(interval) else loaded


def host_tokens(interval: Interval) -> float | None:
    """Prompt tokens of the interval that came from host memory, where the engine says it."""
    loaded = interval.rose("external_tokens")
    if loaded is None:
        return interval.rose("host_tokens")
    return _part(interval, _HOST, loaded) if _tells_tiers(interval) else None


def found_tokens(interval: Interval) -> float | None:
    """Prompt tokens of the interval that were found anywhere."""
    known = [tokens for key in _FOUND if (tokens := interval.rose(key)) is not None]
    return sum(known) if known else None
