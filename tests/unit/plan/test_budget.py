from __future__ import annotations

from decimal import Decimal

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import DeclinedError
from ai.backend.kvcache.plan.budget import GIB, MIB, GpuRequest, divide, gib

#: Devstral 2 123B at tensor parallel 8 on 80 GiB GPUs: 45,056 bytes a token, so that one context
#: of 262,144 tokens takes exactly 11 GiB; 16 GiB of weights and 3 GiB of overhead per GPU.
REFERENCE = GpuRequest(
    memory_bytes=80 * GIB,
    weights_bytes=16 * GIB,
    bytes_per_token=45_056,
    context_tokens=262_144,
    chunk_tokens=256,
    concurrent_transfers=2,
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
        assert divide(attrs.evolve(REFERENCE, context_tokens=1024)).buffer_bytes == 1 * GIB


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

    def test_one_context_but_no_buffer(self) -> None:
        # 72 - 58 - 3 = 11: exactly one context, and nothing for the buffer.
        with pytest.raises(DeclinedError, match="24 GiB per GPU leaves"):
            divide(attrs.evolve(REFERENCE, weights_bytes=58 * GIB))

    def test_users_buffer_is_not_shrunk(self) -> None:
        with pytest.raises(DeclinedError, match="24 GiB per GPU leaves"):
            divide(attrs.evolve(REFERENCE, weights_bytes=40 * GIB, buffer_bytes=24 * GIB))


class TestPinnedUtilization:
    def test_full_buffer_fits_beside(self) -> None:
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.6")))
        assert (budget.buffer_bytes, str(budget.utilization)) == (24 * GIB, "0.6")
        assert budget.notes == ()

    def test_smaller_buffer_beside(self) -> None:
        # 80 - 68 - 1.5 = 10.5 GiB; the full buffer would need 1 - 25.5 / 80 = 0.68125.
        budget = divide(attrs.evolve(REFERENCE, utilization=Decimal("0.85")))
        assert budget.buffer_bytes == 10_752 * MIB
        assert str(budget.utilization) == "0.85"
        assert "0.68 would give the full buffer" in budget.notes[0]

    def test_nothing_beside(self) -> None:
        # 80 - 78.4 - 1.5 = 0.1 GiB
        with pytest.raises(DeclinedError, match=r"leaves 0\.1 GiB per GPU .* Lower it to 0\.6"):
            divide(attrs.evolve(REFERENCE, utilization=Decimal("0.98")))


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
        bytes_per_token=bytes_per_token,
        context_tokens=context,
        chunk_tokens=256,
        concurrent_transfers=transfers,
        utilization=utilization,
    )
    try:
        budget = divide(request)
    except DeclinedError:
        assume(False)
    assert budget.pool_bytes_after >= bytes_per_token * context
    assert budget.buffer_bytes >= 64 * 256 * bytes_per_token
    assert budget.buffer_bytes + budget.utilization * memory * GIB <= memory * GIB


@pytest.mark.parametrize(
    ("size", "text"), [(24 * GIB, "24 GiB"), (3 * GIB // 2, "1.5 GiB"), (0, "0 GiB")]
)
def test_gib(size: int, text: str) -> None:
    assert gib(size) == text
