from __future__ import annotations

from decimal import Decimal

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import DeclinedError
from ai.backend.kvcache.plan.budget import GpuRequest, divide
from ai.backend.kvcache.sizes import GIB, MIB

#: Devstral 2 123B at tensor parallel 8 on 80 GiB GPUs: 45,056 bytes a token, so that one context
#: of 262,144 tokens takes exactly 11 GiB; 16 GiB of weights and 3 GiB of overhead per GPU.
REFERENCE = GpuRequest(
    memory_bytes=80 * GIB,
    weights_bytes=16 * GIB,
    context_bytes=11 * GIB,
    context_tokens=262_144,
    chunk_bytes=256 * 45_056,
)


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
        with pytest.raises(DeclinedError, match=r"below the policy's utilization-floor 0\.895"):
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
        with pytest.raises(DeclinedError, match=r"70 GiB of weights and 3 GiB of overhead do not"):
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

    def test_users_buffer_is_not_shrunk(self) -> None:
        with pytest.raises(DeclinedError, match="24 GiB per GPU leaves"):
            divide(attrs.evolve(REFERENCE, weights_bytes=40 * GIB, buffer_bytes=24 * GIB))


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


@given(
    memory=st.integers(8, 288),
    weights=st.integers(0, 200),
    bytes_per_token=st.integers(1_000, 1_000_000),
    context=st.integers(1_000, 1_000_000),
    transfers=st.integers(1, 8),
    utilization=st.none() | st.decimals("0.05", "1", places=2),
)
def test_what_is_granted_fits(
    memory: int,
    weights: int,
    bytes_per_token: int,
    context: int,
    transfers: int,
    utilization: Decimal | None,
) -> None:
    request = GpuRequest(
        memory_bytes=memory * GIB,
        weights_bytes=weights * GIB,
        context_bytes=bytes_per_token * context,
        context_tokens=context,
        chunk_bytes=256 * bytes_per_token,
        concurrent_transfers=transfers,
        utilization=utilization or Decimal("0.9"),
        pinned=utilization is not None,
    )
    try:
        budget = divide(request)
    except DeclinedError:
        assume(False)
    assert budget.pool_bytes_after >= bytes_per_token * context
    assert budget.buffer_bytes >= 64 * 256 * bytes_per_token
    assert budget.buffer_bytes + budget.utilization * memory * GIB <= memory * GIB
