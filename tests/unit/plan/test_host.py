from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.engine.adapter import HostNeed
from ai.backend.kvcache.errors import DeclinedError
from ai.backend.kvcache.plan.host import HostRequest, divide_host

GIB = 2**30
MIB = 2**20

#: Staging only, in private pools; at least 4 chunks, and better 64.
STAGING = HostNeed(chunks=4, enough_chunks=64, most_bytes=5 * GIB, insists=False)
#: A context at least; a cache where another one fits.
TIER = HostNeed(contexts=1, chunks=64, enough_chunks=64)
#: One cache for all.
SHARED = HostNeed(contexts=1, is_shared=True, is_cache=True)

#: Eight ranks, contexts of 11 GiB and chunks of 11 MiB on each.
REQUEST = HostRequest(
    limit_bytes=512 * GIB,
    ranks=8,
    context_bytes=11 * GIB,
    context_tokens=262_144,
    chunk_bytes=11 * MIB,
)


def request(**changes: Any) -> HostRequest:
    return attrs.evolve(REQUEST, **changes)


class TestStaging:
    def test_no_more_than_is_of_use(self) -> None:
        # A quarter of 512 GiB is 16 GiB for each of eight.
        host = divide_host(STAGING, REQUEST)
        assert (host.size, host.pools, host.keeps) == (5 * GIB, 8, False)

    def test_less_where_memory_is_short(self) -> None:
        # 64 GiB: 2 GiB for each of eight.
        assert divide_host(STAGING, request(limit_bytes=64 * GIB)).size == 2 * GIB

    def test_little(self) -> None:
        # 64 x 11 MiB = 704 MiB for each of eight, 5.5 GiB in all; a quarter of 16 GiB is 4.
        host = divide_host(STAGING, request(limit_bytes=16 * GIB))
        assert host.size == 512 * MIB
        assert "with 22 GiB of memory for the session they are stored whole" in host.notes[0]
        enough = divide_host(STAGING, request(limit_bytes=22 * GIB))
        assert (enough.size, enough.notes) == (704 * MIB, ())

    def test_too_little(self) -> None:
        # 4 x 11 MiB, in steps of 64 MiB; for each of eight a quarter of 1 GiB is 32.
        host = divide_host(STAGING, request(limit_bytes=GIB))
        assert host.size == 64 * MIB
        assert "take 0.5 GiB of host memory" in host.notes[0]
        assert "start the session with 2 GiB of memory" in host.notes[0]

    def test_limit_that_is_not_known(self) -> None:
        assert divide_host(STAGING, request(limit_bytes=None)).size == 5 * GIB


class TestServer:
    """One memory for all ranks, of any size, through which contexts pass."""

    NEED = HostNeed(unit_bytes=GIB, is_shared=True, is_cache=True, insists=False)

    def test_a_context_fits(self) -> None:
        # 8 x 11 GiB are 88, of which 352 are four times as many.
        host = divide_host(self.NEED, request(limit_bytes=352 * GIB))
        assert (host.size, host.notes) == (88 * GIB, ())

    def test_a_context_does_not_fit(self) -> None:
        # A quarter of 128 GiB, 32 of 88, holds 262,144 x 32 / 88 tokens.
        host = divide_host(self.NEED, request(limit_bytes=128 * GIB))
        assert host.size == 32 * GIB
        assert host.notes == (
            "32 GiB of host memory are less than the longest context (88 GiB): of contexts above "
            "95,325 tokens a part may be computed again; with 352 GiB of memory for the session "
            "they are loaded whole",
        )

    def test_as_the_settings_say(self) -> None:
        (note,) = divide_host(self.NEED, request(total_bytes=10 * GIB)).notes
        assert "with a cpu-tier of 88 GiB" in note


class TestTier:
    def test_keeps_contexts_where_another_fits(self) -> None:
        # 1,024 GiB: 32 GiB each, and 11 + 0.69 + 11 are needed for that.
        host = divide_host(TIER, request(limit_bytes=1024 * GIB))
        assert (host.size, host.keeps) == (32 * GIB, True)

    def test_is_off_where_none_does(self) -> None:
        # 16 GiB each: one context and 64 chunks of 11 MiB, in steps of 64 MiB.
        host = divide_host(TIER, REQUEST)
        assert (host.size, host.keeps) == (11 * GIB + 704 * MIB, False)

    def test_is_off_where_nobody_wants_it(self) -> None:
        host = divide_host(TIER, request(limit_bytes=1024 * GIB, may_keep=False))
        assert (host.size, host.keeps) == (11 * GIB + 704 * MIB, False)

    def test_size_from_the_settings(self) -> None:
        # 256 GiB for eight.
        host = divide_host(TIER, request(total_bytes=256 * GIB, limit_bytes=None))
        assert (host.size, host.keeps) == (32 * GIB, True)

    def test_size_from_the_settings_is_too_small(self) -> None:
        with pytest.raises(DeclinedError, match="raise cpu-tier"):
            divide_host(TIER, request(total_bytes=32 * GIB))


class TestShared:
    def test_one_for_all(self) -> None:
        host = divide_host(SHARED, REQUEST)
        assert (host.size, host.pools, host.keeps) == (128 * GIB, 1, True)

    def test_too_little_for_a_context_of_all(self) -> None:
        # 8 x 11 GiB, four times that as a limit.
        with pytest.raises(DeclinedError, match=r"take 88 GiB .* with 352 GiB of memory"):
            divide_host(SHARED, request(limit_bytes=351 * GIB))
        assert divide_host(SHARED, request(limit_bytes=352 * GIB)).size == 88 * GIB

    def test_what_the_engine_wants_left(self) -> None:
        need = HostNeed(unit_bytes=GIB, is_shared=True, is_cache=True, leave_bytes=20 * GIB)
        # A quarter leaves 60 GiB.
        assert divide_host(need, request(limit_bytes=80 * GIB)).size == 20 * GIB
        # A quarter would leave 18 GiB.
        assert divide_host(need, request(limit_bytes=24 * GIB)).size == 4 * GIB
        with pytest.raises(DeclinedError, match=r"needs 20 GiB .* with 21 GiB of memory"):
            divide_host(need, request(limit_bytes=20 * GIB))


@given(
    limit=st.integers(GIB, 4096 * GIB),
    ranks=st.integers(1, 16),
    context=st.integers(1, 100 * GIB),
    need=st.sampled_from([STAGING, TIER, SHARED]),
)
def test_never_more_than_a_quarter(limit: int, ranks: int, context: int, need: HostNeed) -> None:
    asked = request(limit_bytes=limit, ranks=ranks, context_bytes=context)
    try:
        host = divide_host(need, asked)
    except DeclinedError:
        return
    # What does not insist takes its least all the same, and says so.
    assert host.size * host.pools <= limit // 4 or (host.notes and not need.insists)
    assert host.size >= need.contexts * context
    assert host.size % need.unit_bytes == 0
