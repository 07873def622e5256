"""Where the prompt tokens of an interval came from, as far as the engine tells its tiers apart."""

from __future__ import annotations

from collections.abc import Callable

from .interval import Interval

type _Count = Callable[[str], float | None]
"""Key of QUANTITIES → tokens, of an interval or since the engine's start."""

#: The tiers below a connector of vLLM that says from which one it loaded.
_TIERS = ("disk_tier_tokens", "host_tier_tokens", "peer_tier_tokens")

#: Where engines find tokens.
_FOUND = ("engine_tokens", "external_tokens", "host_tokens", "storage_tokens")


def _of_tier(interval: Interval, key: str) -> float | None:
    """The share of what a connector loaded that came from a tier; from 0 to 1.

    vLLM counts the tiers when a request is scheduled, and its other tokens when the first token
    comes, so an interval without the former has the mean share since the engine's start.

    None: not known. Tokens whose tier the connector did not tell may have come from any of them.
    """
    for count in (interval.rose, interval.now.__getitem__):
        loaded = sum(count(tier) or 0.0 for tier in _TIERS)
        unspecified = count("unspecified_tier_tokens") or 0.0
        if loaded or unspecified:
            return None if unspecified else (count(key) or 0.0) / loaded
    return None


def _tells_tiers(interval: Interval) -> bool:
    """Whether the connector has more than one tier, and says which one it loaded from."""
    return any(interval.now[tier] for tier in _TIERS)


def folder_tokens(interval: Interval, count: _Count) -> float | None:
    """Prompt tokens that came from the KV folder.

    LMCache does not say on the engine's page what it had in host memory; that is counted as the
    folder's.

    Args:
        count: of the interval, or of its later reading.
    """
    loaded = count("external_tokens")
    if loaded is None:
        return count("storage_tokens")
    if not loaded:
        return 0.0
    if _tells_tiers(interval):
        share = _of_tier(interval, "disk_tier_tokens")
        return None if share is None else loaded * share
    # vLLM's own offloading has a tier in host memory, and says what came from it from 0.32 on.
    return None if interval.now["offloaded_bytes"] is not None else loaded


def host_tokens(interval: Interval) -> float | None:
    """Prompt tokens that came from host memory, where the engine says it."""
    loaded = interval.rose("external_tokens")
    if loaded is None:
        return interval.rose("host_tokens")
    if not _tells_tiers(interval):
        return None
    share = _of_tier(interval, "host_tier_tokens")
    return None if share is None else loaded * share


def found_tokens(interval: Interval) -> float | None:
    """Prompt tokens that were found anywhere."""
    known = [tokens for key in _FOUND if (tokens := interval.rose(key)) is not None]
    return sum(known) if known else None

