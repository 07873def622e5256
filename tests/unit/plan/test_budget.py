from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import DeclinedError
from ai.backend.kvcache.plan.budget import divide, keep
from ai.backend.kvcache.plan.gpu import Budget, GpuRequest
from ai.backend.kvcache.plan.overhead import Overhead
from ai.backend.kvcache.sizes import GIB, MIB

#: Devstral 2 123B at tensor parallel 8 on 80 GiB GPUs: 45,056 bytes a token, so that one context
#: of 262,144 tokens takes exactly 11 GiB; 16 GiB of weights and 3 GiB of overhead per GPU.
REFERENCE = GpuRequest(
    memory_bytes=80 * GIB,
    weights_bytes=16 * GIB,
    context_bytes=11 * GIB,
    context_tokens=262_144,
    chunk_bytes=256 * 45_056,
    overhead=Overhead.exactly(3 * GIB),
)

#: The same with 3 GiB of overhead likely, and between 1 and 9.
UNCERTAIN = attrs.evolve(REFERENCE, overhead=Overhead(3 * GIB, 1 * GIB, 9 * GIB))


class TestReference:
    def test_oracle(self) -> None:
        budget = divide(REFERENCE)
        # 0.9 x 80 - 16 - 3
        assert budget.pool_bytes_before == 53 * GIB
        # 2 x 11 GiB x 1.05 = 23.1, in whole GiB
        assert budget.buffer_bytes == 24 * GIB
        # 0.9 - 24 / 80
        assert str(budget.utilization) == "0.6"
        # 0.6 x 80 - 16 - 3
        assert budget.pool_bytes_after == 29 * GIB
        # 29 / 11
        assert budget.resident_contexts == 2
        assert budget.notes == ()

    def test_small_contexts_still_get_64_chunks(self) -> None:
        # 64 x 256 x 45,056 bytes = 0.69 GiB, in whole GiB
        small = attrs.evolve(REFERENCE, context_tokens=1024, context_bytes=1024 * 45_056)
        assert divide(small).buffer_bytes == 1 * GIB


class TestFloor:
    FLOOR = attrs.evolve(REFERENCE, utilization_floor=Decimal("0.7"))

    def test_buffer_gives_way_to_it(self) -> None:
        # (0.9 - 0.7) x 80 = 16
        budget = divide(self.FLOOR)
        assert budget.buffer_bytes == 16 * GIB
        assert str(budget.utilization) == "0.7"
        assert budget.notes == (
            "the buffer is 16 GiB instead of 24 GiB, so that gpu_memory_utilization does not fall "
            "below the policy's utilization-floor 0.7",
        )

    def test_no_useful_buffer(self) -> None:
        # (0.9 - 0.895) x 80 = 0.4 GiB, and 64 chunks take 0.69.
        with pytest.raises(
            DeclinedError, match=r"below the policy's utilization-floor 0\.895, and "
        ):
            divide(attrs.evolve(REFERENCE, utilization_floor=Decimal("0.895")))

    def test_users_buffer_does_not_go_below_it(self) -> None:
        # 17 GiB would leave 0.6875.
        assert divide(attrs.evolve(self.FLOOR, buffer_bytes=16 * GIB)).buffer_bytes == 16 * GIB
        with pytest.raises(DeclinedError, match=r"17 GiB per GPU takes gpu_memory_utilization"):
            divide(attrs.evolve(self.FLOOR, buffer_bytes=17 * GIB))

    def test_below_what_one_context_needs_it_says_nothing(self) -> None:
        # 16 + 3 + 11 of 80 are 0.375.
        assert divide(attrs.evolve(REFERENCE, utilization_floor=Decimal("0.3"))) == divide(
            REFERENCE
        )


class TestShrinking:
    def test_buffer_gives_way_to_one_context(self) -> None:
        # Pool before: 72 - 40 - 3 = 29. With 24 in the buffer only 5 would be left of the 11
        # that a context takes; 18 leave 29 - 18 = 11, and 18 / 80 = 0.225, so that the share,
        # in hundredths, is 0.67: 53.6 - 43 = 10.6, too little. 17 give 0.68: 54.4 - 43 = 11.4.
        budget = divide(attrs.evolve(REFERENCE, weights_bytes=40 * GIB))
        assert budget.buffer_bytes == 17 * GIB
        assert str(budget.utilization) == "0.68"
        assert budget.notes == (
            "the buffer is 17 GiB instead of 24 GiB, so that one context of 262144 tokens still "
            "fits vLLM's KV pool",
        )

    def test_not_even_one_context(self) -> None:
        # 72 - 60 - 3 = 9 < 11
        with pytest.raises(DeclinedError, match=r"pool would have 9 GiB .* takes 11 GiB"):
            divide(attrs.evolve(REFERENCE, weights_bytes=60 * GIB))

    def test_not_even_the_weights(self) -> None:
        # 72 - 70 - 3 < 0
        with pytest.raises(
            DeclinedError, match=r"70 GiB of weights and 3 GiB of overhead do not .*"
        ):
            divide(attrs.evolve(REFERENCE, weights_bytes=70 * GIB))

    def test_whole_gibibytes(self) -> None:
        # 72 - 36.5 - 3 - 11 = 21.5 of room: 21 would leave 0.9 - 21 / 80 = 0.637, in hundredths
        # 0.63: 50.4 - 39.5 = 10.9, too little. 20 leave 0.65: 52 - 39.5 = 12.5.
        budget = divide(attrs.evolve(REFERENCE, weights_bytes=73 * GIB // 2))
        assert (budget.buffer_bytes, str(budget.utilization)) == (20 * GIB, "0.65")

    def test_one_context_but_no_buffer(self) -> None:
        # 72 - 58 - 3 = 11: exactly one context, and nothing for the buffer.
        with pytest.raises(DeclinedError, match="24 GiB per GPU leaves"):
            divide(attrs.evolve(REFERENCE, weights_bytes=58 * GIB))

    def test_a_later_vllm_takes_more_without_kv_cache(self) -> None:
        # 0.92 before; with the buffer both take 0.9 together.
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.92")))
        assert (str(budget.utilization_before), str(budget.utilization)) == ("0.92", "0.6")
        assert budget.pool_bytes_before == int(Decimal("0.92") * 80 * GIB) - 19 * GIB

    def test_users_buffer_is_not_shrunk(self) -> None:
        # 17 GiB would leave 0.68: 54.4 - 43 = 11.4.
        with pytest.raises(DeclinedError, match=r"24 GiB per GPU leaves .*; up to 17 GiB fit; ask"):
            divide(attrs.evolve(REFERENCE, weights_bytes=40 * GIB, buffer_bytes=24 * GIB))

    def test_no_smaller_one_is_of_use(self) -> None:
        # 72 - 57.5 - 3 - 11 = 0.5 GiB of room, and 64 chunks take 0.69.
        request = attrs.evolve(REFERENCE, weights_bytes=115 * GIB // 2)
        with pytest.raises(DeclinedError, match="and so does any smaller useful one"):
            divide(request)
        # Of a size that the user chose nothing is said but that it does not fit.
        with pytest.raises(DeclinedError) as raised:
            divide(attrs.evolve(request, buffer_bytes=2 * GIB))
        assert "smaller" not in str(raised.value)

    def test_less_than_a_gibibyte_may_be_the_useful_one(self) -> None:
        # 64 chunks take 704 MiB, and 0.9 - 0.0086 is 0.89: 71.2 - 57 - 3 = 11.2 of the 11 GiB that
        # a context takes. A whole GiB leaves 0.88, which is 0.4 GiB too little: 70.4 - 60 = 10.4.
        budget = divide(attrs.evolve(REFERENCE, weights_bytes=57 * GIB))
        assert (budget.buffer_bytes, str(budget.utilization)) == (704 * MIB, "0.89")


class TestSmallBuffers:
    def test_less_than_one_context(self) -> None:
        budget = divide(attrs.evolve(REFERENCE, buffer_bytes=5 * GIB))
        # 262,144 x 5 / 11
        assert budget.notes == (
            "the buffer of 5 GiB holds less than one context of 262144 tokens (11 GiB): contexts "
            "of more than about 119156 tokens are not loaded whole",
        )

    def test_below_the_least_useful(self) -> None:
        (note,) = divide(attrs.evolve(REFERENCE, buffer_bytes=512 * MIB)).notes
        assert note.startswith("the buffer of 0.5 GiB is smaller than 64 chunks (0.69 GiB)")

    def test_one_context_is_enough(self) -> None:
        assert divide(attrs.evolve(REFERENCE, buffer_bytes=11 * GIB)).notes == ()

    def test_one_that_the_plan_shrank(self) -> None:
        # 72 - 55 - 3 - 11 = 3 GiB of room: 0.9 - 3 / 80 is 0.86 in hundredths: 68.8 - 58 = 10.8,
        # too little. 2 leave 0.87: 69.6 - 58 = 11.6.
        shrunk, small = divide(attrs.evolve(REFERENCE, weights_bytes=55 * GIB)).notes
        assert "is 2 GiB instead of 24 GiB" in shrunk
        assert "holds less than one context" in small

    @pytest.mark.parametrize("fixed", [{"pinned": True}, {"fixed_pool_bytes": 30 * GIB}])
    def test_beside_what_the_user_fixed(self, fixed: dict[str, Any]) -> None:
        request = attrs.evolve(
            REFERENCE, utilization=Decimal("0.8"), buffer_bytes=512 * MIB, **fixed
        )
        budget = divide(request)
        assert budget.buffer_bytes == 512 * MIB
        assert "smaller than 64 chunks" in budget.notes[0]


class TestUncertainOverhead:
    def test_one_context_fits_at_the_upper_bound(self) -> None:
        # At 9 GiB of overhead there are 72 - 40 - 9 - 11 = 12 GiB of room; 0.9 - 12 / 80 = 0.75,
        # and 60 - 49 = 11.
        budget = divide(attrs.evolve(UNCERTAIN, weights_bytes=40 * GIB))
        assert (budget.buffer_bytes, str(budget.utilization)) == (12 * GIB, "0.75")
        assert budget.notes[0] == (
            "the buffer is 12 GiB instead of 24 GiB, so that one context of 262144 tokens still "
            "fits vLLM's KV pool even where vLLM takes 9 GiB besides"
        )
        # What is likely is what is shown: 60 - 40 - 3.
        assert budget.pool_bytes_after == 17 * GIB

    def test_what_might_fit_is_not_risked(self) -> None:
        # 72 - 53 - 9 = 10 of 11 GiB: it might not fit even without a buffer, so nothing is taken;
        # and 72 - 53 - 1 = 18: it might well, so nobody says that vLLM does not start.
        with pytest.raises(DeclinedError) as raised:
            divide(attrs.evolve(UNCERTAIN, weights_bytes=53 * GIB))
        message = str(raised.value)
        assert "could leave vLLM's KV pool less than one context" in message
        assert "since vLLM may take up to 9 GiB besides" in message
        assert "does not start" not in message

    def test_what_cannot_fit_either_way(self) -> None:
        # 72 - 61 - 1 = 10 of 11 GiB
        with pytest.raises(DeclinedError, match=r"at most 10 GiB .* with KV cache or without"):
            divide(attrs.evolve(UNCERTAIN, weights_bytes=61 * GIB))
        # 72 - 72 - 1
        with pytest.raises(
            DeclinedError, match=r"72 GiB of weights and at least 1 GiB of overhead"
        ):
            divide(attrs.evolve(UNCERTAIN, weights_bytes=72 * GIB))

    def test_weights_that_may_not_be_there(self) -> None:
        # Of 100 GiB that do not fit, 50 may lie in host memory: nothing is certain.
        request = attrs.evolve(UNCERTAIN, weights_bytes=100 * GIB, spared_bytes=50 * GIB)
        with pytest.raises(DeclinedError, match="could leave"):
            divide(request)

    def test_a_pinned_share_is_not_judged_by_the_upper_bound(self) -> None:
        # vLLM sizes its pool as it does without us: 64 - 50 - 9 = 5 GiB would be too few.
        request = attrs.evolve(
            UNCERTAIN, weights_bytes=50 * GIB, utilization=Decimal("0.8"), pinned=True
        )
        # 80 - 64 - 1.5
        assert divide(request).buffer_bytes == 29 * GIB // 2

    def test_graphs_beside_a_pinned_share(self) -> None:
        overhead = Overhead(3 * GIB, 1 * GIB, 9 * GIB, graphs_beside=4 * GIB)
        request = attrs.evolve(
            REFERENCE, overhead=overhead, utilization=Decimal("0.85"), pinned=True
        )
        # 80 - 68 - 1.5 - 4
        assert divide(request).buffer_bytes == 13 * GIB // 2


class TestFixedPool:
    """``--kv-cache-memory-bytes``: vLLM ignores its share of the GPU then."""

    def test_buffer_is_what_is_left(self) -> None:
        # 80 - 16 - 9 - 40 - 1.5 = 13.5 GiB, whatever the share.
        for share in ("0.3", "0.9", "0.98"):
            request = attrs.evolve(UNCERTAIN, fixed_pool_bytes=40 * GIB, utilization=Decimal(share))
            budget = divide(request)
            assert budget.buffer_bytes == 27 * GIB // 2
            assert budget.pool_bytes_before == budget.pool_bytes_after == 40 * GIB
            assert budget.utilization == budget.utilization_before == Decimal(share)
            assert budget.resident_contexts == 3

    def test_no_room(self) -> None:
        # 80 - 16 - 9 - 54 - 1.5 < 0
        with pytest.raises(DeclinedError, match=r"fixes vLLM's KV pool at 54 GiB, .* lower --kv-"):
            divide(attrs.evolve(UNCERTAIN, fixed_pool_bytes=54 * GIB))

    def test_less_than_one_context(self) -> None:
        with pytest.raises(DeclinedError, match=r"gives vLLM's KV pool 10 GiB .* does not start"):
            divide(attrs.evolve(UNCERTAIN, fixed_pool_bytes=10 * GIB))


class TestChosenLength:
    """``--max-model-len auto``: vLLM shortens contexts to what its pool holds."""

    AUTO = attrs.evolve(UNCERTAIN, fits_length=True)

    def test_the_whole_length_fits(self) -> None:
        assert divide(self.AUTO).buffer_bytes == 24 * GIB

    def test_it_is_not_shortened_for_a_buffer(self) -> None:
        for weights in (53, 61):
            with pytest.raises(DeclinedError, match=r"--max-model-len auto") as raised:
                divide(attrs.evolve(self.AUTO, weights_bytes=weights * GIB))
            assert "does not start" not in str(raised.value)

    def test_what_takes_nothing_of_the_share_shortens_nothing(self) -> None:
        # 72 - 61 - 1 = 10 GiB at the most, and a context takes 11: vLLM chooses a shorter one.
        request = attrs.evolve(self.AUTO, weights_bytes=61 * GIB)
        assert keep(request, 0).buffer_bytes == 0
        # 80 - 72 - 1.5
        assert divide(attrs.evolve(request, pinned=True)).buffer_bytes == 13 * GIB // 2
        # Weights that do not fit keep it from starting all the same: 72 - 72 - 1.
        with pytest.raises(DeclinedError, match="does not start"):
            keep(attrs.evolve(request, weights_bytes=72 * GIB), 0)


class TestWaysWithoutBuffer:
    def test_nothing_is_taken(self) -> None:
        budget = keep(attrs.evolve(REFERENCE, utilization=Decimal("0.92")), 0)
        assert (budget.buffer_bytes, str(budget.utilization)) == (0, "0.92")
        # 73.6 - 16 - 3
        assert budget.pool_bytes_after == budget.pool_bytes_before
        assert budget.notes == ()

    def test_what_lies_beside_finds_room(self) -> None:
        # 80 x 0.02 = 1.6 GiB
        tight = attrs.evolve(REFERENCE, utilization=Decimal("0.98"))
        keep(tight, 3 * GIB // 2)
        with pytest.raises(
            DeclinedError, match=r"takes about 2 GiB .* leaves 1\.6 GiB; lower .* 0\.97"
        ):
            keep(tight, 2 * GIB)
        fixed = attrs.evolve(REFERENCE, fixed_pool_bytes=60 * GIB)
        # 80 - 16 - 3 - 60
        with pytest.raises(DeclinedError, match=r"leaves 1 GiB; lower --kv-cache-memory-bytes"):
            keep(fixed, 2 * GIB)

    @pytest.mark.parametrize("way", [divide, lambda request: keep(request, 0)])
    def test_contexts_that_take_more_than_without(
        self, way: Callable[[GpuRequest], Budget]
    ) -> None:
        # Windows are kept in full: 60 GiB in the place of 11. At 9 GiB of overhead there are
        # 72 - 16 - 9 = 47.
        request = attrs.evolve(UNCERTAIN, context_bytes=60 * GIB, context_bytes_without=11 * GIB)
        with pytest.raises(DeclinedError, match=r"60 GiB instead of 11 GiB .* no more than 47 GiB"):
            way(request)
        # Where even the 11 GiB do not fit, that is what is said: 72 - 61 - 1 = 10.
        with pytest.raises(DeclinedError, match=r"takes 11 GiB, so vLLM does not start"):
            way(attrs.evolve(request, weights_bytes=61 * GIB))


class TestPinnedUtilization:
    def test_full_buffer_fits_beside(self) -> None:
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.6"), pinned=True))
        assert (budget.buffer_bytes, str(budget.utilization)) == (24 * GIB, "0.6")
        assert budget.notes == ()

    def test_smaller_buffer_beside(self) -> None:
        # 80 - 68 - 1.5 = 10.5 GiB; the full buffer would need 1 - 25.5 / 80 = 0.68125.
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.85"), pinned=True))
        assert budget.buffer_bytes == 10_752 * MIB
        assert str(budget.utilization) == "0.85"
        assert "0.68 would give the full buffer" in budget.notes[0]

    def test_nothing_beside(self) -> None:
        # 80 - 78.4 - 1.5 = 0.1 GiB
        with pytest.raises(DeclinedError, match=r"leaves 0\.1 GiB per GPU .* lower it to 0\.68"):
            divide(attrs.evolve(REFERENCE, utilization=Decimal("0.98"), pinned=True))

    def test_full_buffer_would_leave_no_context(self) -> None:
        # Beside 0.85 lie 10.5 GiB. 1 - 25.5 / 80 = 0.68 would hold 24, and leave the pool
        # 54.4 - 45 - 3 = 6.4 of the 11 GiB that a context takes.
        request = attrs.evolve(
            REFERENCE, weights_bytes=45 * GIB, utilization=Decimal("0.85"), pinned=True
        )
        budget = divide(request)
        assert budget.buffer_bytes == 10_752 * MIB
        assert "would not fit any more" in budget.notes[0]

    def test_never_more_than_the_rule(self) -> None:
        # Beside 0.5 lie 38.5 GiB, of which two contexts and 5 % need 24.
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.5"), pinned=True))
        assert budget.buffer_bytes == 24 * GIB

    def test_64_chunks_have_to_fit(self) -> None:
        # 64 chunks of 256 x 45,056 bytes take 704 MiB. Beside 0.97 lie 2.4 - 1.5 = 0.9 GiB, beside
        # 0.973 lie 2.16 - 1.5 = 0.66 GiB, 675 MiB.
        enough = attrs.evolve(REFERENCE, utilization=Decimal("0.97"), pinned=True)
        assert divide(enough).buffer_bytes == 921 * MIB
        with pytest.raises(DeclinedError, match=r"at least 0\.69 GiB"):
            divide(attrs.evolve(REFERENCE, utilization=Decimal("0.973"), pinned=True))


SIZES = {
    "memory": st.integers(8, 288),
    "weights": st.integers(0, 200),
    "bytes_per_token": st.integers(1_000, 1_000_000),
    "context": st.integers(1_000, 1_000_000),
    "bounds": st.tuples(*[st.integers(0, 20)] * 3).map(sorted),
}


def request_of(
    memory: int, weights: int, bytes_per_token: int, context: int, bounds: list[int]
) -> GpuRequest:
    low, likely, high = (size * GIB for size in bounds)
    return GpuRequest(
        memory_bytes=memory * GIB,
        weights_bytes=weights * GIB,
        context_bytes=bytes_per_token * context,
        context_tokens=context,
        chunk_bytes=256 * bytes_per_token,
        overhead=Overhead(likely, low, high),
    )


@given(
    **SIZES,
    transfers=st.integers(1, 8),
    share=st.decimals("0.05", "1", places=2),
    overhead=st.integers(0, 20),
)
def test_what_is_granted_never_keeps_a_context_from_fitting(
    memory: int,
    weights: int,
    bytes_per_token: int,
    context: int,
    bounds: list[int],
    transfers: int,
    share: Decimal,
    overhead: int,
) -> None:
    request = attrs.evolve(
        request_of(memory, weights, bytes_per_token, context, bounds),
        concurrent_transfers=transfers,
        utilization=share,
    )
    try:
        budget = divide(request)
    except DeclinedError:
        assume(False)
    # Whatever the overhead turns out to be within its bounds.
    assume(bounds[0] <= overhead <= bounds[2])
    pool = int(budget.utilization * memory * GIB) - (weights + overhead) * GIB
    assert pool >= bytes_per_token * context
    assert budget.buffer_bytes >= 64 * 256 * bytes_per_token
    assert budget.buffer_bytes + budget.utilization * memory * GIB <= Decimal("0.9") * memory * GIB


@given(**SIZES, share=st.decimals("0.05", "1", places=2), fixed=st.none() | st.integers(1, 200))
def test_what_the_user_fixed_is_left_as_it_is(
    memory: int,
    weights: int,
    bytes_per_token: int,
    context: int,
    bounds: list[int],
    share: Decimal,
    fixed: int | None,
) -> None:
    request = attrs.evolve(
        request_of(memory, weights, bytes_per_token, context, bounds),
        utilization=share,
        pinned=fixed is None,
        fixed_pool_bytes=None if fixed is None else fixed * GIB,
    )
    try:
        budget = divide(request)
    except DeclinedError:
        assume(False)
    assert budget.utilization == budget.utilization_before == share
    assert budget.pool_bytes_after == budget.pool_bytes_before
    used = share * memory * GIB if fixed is None else (weights + bounds[2] + fixed) * GIB
    assert used + budget.buffer_bytes <= memory * GIB


@given(**SIZES, more=st.integers(0, 40))
def test_more_weights_or_overhead_never_give_a_larger_buffer(
    memory: int,
    weights: int,
    bytes_per_token: int,
    context: int,
    bounds: list[int],
    more: int,
) -> None:
    def buffer_of(request: GpuRequest) -> int:
        try:
            return divide(request).buffer_bytes
        except DeclinedError:
            return 0

    request = request_of(memory, weights, bytes_per_token, context, bounds)
    heavier = attrs.evolve(request, weights_bytes=request.weights_bytes + more * GIB)
    worse = attrs.evolve(
        request, overhead=attrs.evolve(request.overhead, high=request.overhead.high + more * GIB)
    )
    assert buffer_of(heavier) <= buffer_of(request)
    assert buffer_of(worse) <= buffer_of(request)
    larger = attrs.evolve(request, memory_bytes=request.memory_bytes + more * GIB)
    assert buffer_of(larger) >= buffer_of(request)
