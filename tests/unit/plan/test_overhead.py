from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ai.backend.kvcache.model.catalog import catalog
from ai.backend.kvcache.model.geometry import read_geometry
from ai.backend.kvcache.model.parallel import Parallel
from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.model.weights import estimate_weights
from ai.backend.kvcache.model.widths import Widths, read_widths
from ai.backend.kvcache.plan.overhead import EngineLoad, Overhead, estimate_overhead
from ai.backend.kvcache.plan.sizing import size
from ai.backend.kvcache.plan.sizing_request import SizingRequest
from ai.backend.kvcache.sizes import GIB, MIB

DATA = Path(__file__).parents[2] / "data"
POOLS = json.loads((DATA / "published-pools.json").read_text())

LLAMA_8B = Widths(hidden=4096, feed_forward=14_336, heads=4096, vocabulary=128_256)


def estimate(
    widths: Widths = LLAMA_8B,
    *,
    layers: int = 32,
    tensor: int = 1,
    memory_gib: float = 80,
    version: str = "0.20.2",
    **load: Any,
) -> Overhead:
    return estimate_overhead(
        widths,
        layers=layers,
        tensor=tensor,
        ranks=tensor,
        memory_bytes=int(memory_gib * GIB),
        version=Version(version),
        load=EngineLoad(**load),
    )


class TestTerms:
    """Llama-3.1-8B; every figure in bytes, with its derivation."""

    def test_sampler_by_sorting(self) -> None:
        # Hidden states and residual: 2 x 2 x 8,192 x 4,096 = 128 MiB. The sampler's 1,024 sequences
        # x 128,256 x 30 are more than a layer's 8,192 x 2 x (4,096 + 3 x 14,336). Workspaces and
        # what is outside of PyTorch: 0.25 GiB each. The driver's hundredth of 80 GiB.
        expected = 128 * MIB + 1024 * 128_256 * 30 + GIB // 2 + 80 * GIB // 100
        assert estimate(version="0.15.0").likely == expected

    def test_sampler_in_place(self) -> None:
        # The same with 10 bytes; and from 0.20 on, graphs: 51 sizes up to 512, twice, for 32 layers
        # of 0.2 MiB each.
        before = 128 * MIB + 1024 * 128_256 * 10 + GIB // 2 + 80 * GIB // 100
        assert estimate(version="0.17.0").likely == before
        assert estimate(version="0.20.2").likely == before + 102 * 32 * (MIB // 5)

    def test_a_layer_may_be_the_highest_point(self) -> None:
        # With 8 sequences: 8,192 x 2 x (4,096 + 3 x 14,336) = 736 MiB of a layer.
        overhead = estimate(sequences=8, graphs=False)
        assert overhead.likely == (128 + 736) * MIB + GIB // 2 + 80 * GIB // 100

    def test_smaller_gpus_have_smaller_batches(self) -> None:
        # 256 sequences and 2,048 tokens: 32 MiB, and 256 x 128,256 x 10. 23.6 GiB are what the
        # driver says, so nothing is taken off. 51 and 35 graphs.
        overhead = estimate(memory_gib=23.6)
        assert overhead.likely == (32 * MIB + 256 * 128_256 * 10 + GIB // 2 + 86 * 32 * (MIB // 5))

    def test_the_largest_gpus_have_the_largest(self) -> None:
        # 16,384 tokens from 0.26 on: 256 MiB and a layer of 1,472 MiB.
        usual = estimate(memory_gib=180, version="0.25.1", graphs=False)
        assert usual.likely == 128 * MIB + 1024 * 128_256 * 10 + GIB // 2 + 180 * GIB // 100
        overhead = estimate(memory_gib=180, version="0.26.0", graphs=False)
        assert overhead.likely == (256 + 1472) * MIB + GIB // 2 + 180 * GIB // 100

    def test_an_a100_has_the_smaller_batches(self) -> None:
        # 80 GiB, and 256 sequences with 2,048 tokens: 32 MiB, and 256 x 128,256 x 10.
        overhead = estimate(small_batches=True, graphs=False)
        assert overhead.likely == 32 * MIB + 256 * 128_256 * 10 + GIB // 2 + 80 * GIB // 100

    def test_communication(self) -> None:
        alone, together = (
            estimate(graphs=False, sequences=512),
            estimate(graphs=False, sequences=512, tensor=2),
        )
        # 512 x 128,256 x 10 = 626 MiB at the sampler in both... and a layer of 736 MiB alone, of
        # 8,192 x 2 x (4,096 + 3 x 7,168) = 400 MiB together.
        layer, sampler = 736 * MIB, 512 * 128_256 * 10
        assert together.likely - alone.likely == 3 * GIB // 2 + sampler - layer
        assert (
            estimate(graphs=False, tensor=2, memory_gib=23.6).likely
            - estimate(graphs=False, memory_gib=23.6).likely
            == 3 * GIB // 4
        )

    def test_experts(self) -> None:
        # Qwen3-235B: 8 experts of 1,536 on a token, at TP 4: 8,192 x 2 x 8 x (4,096 + 3 x 384).
        dense = Widths(hidden=4096, feed_forward=12_288, heads=8192, vocabulary=151_936)
        sparse = attrs.evolve(dense, experts_of_a_token=8, expert=1536)
        more = estimate(sparse, tensor=4, graphs=False).likely
        assert more - estimate(dense, tensor=4, graphs=False).likely == 8192 * 16 * 5248

    def test_images(self) -> None:
        # 4 patches a token: 2,048 x 2 x 4 x (3 x 1,152 + 2 x 4,304) = 188.5 MiB, more than a layer
        # of 2,048 x 2 x (4,096 + 3 x 4,096) = 64 MiB.
        text = Widths(hidden=4096, feed_forward=4096)
        images = attrs.evolve(text, vision_hidden=1152, vision_feed_forward=4304)
        more = estimate(images, memory_gib=23.6).likely - estimate(text, memory_gib=23.6).likely
        assert more == 2048 * 8 * (3 * 1152 + 2 * 4304) - 64 * MIB

    def test_speculation_doubles_the_sampler(self) -> None:
        plain, speculating = estimate(graphs=False), estimate(graphs=False, speculates=True)
        assert speculating.likely - plain.likely == 1024 * 128_256 * 10


class TestGraphs:
    def test_where_they_lie(self) -> None:
        # 102 graphs x 32 layers x 0.2 MiB x 2.5
        most = 102 * 32 * (MIB // 5) * 5 // 2
        beside = {
            version: estimate(version=version).graphs_beside
            for version in ("0.15.0", "0.19.0", "0.20.0", "0.21.0", "0.22.0", "0.25.1", "0.26.0")
        }
        assert beside == {
            "0.15.0": most, "0.19.0": most, "0.20.0": 0, "0.21.0": 0,
            # The new model runner leaves no room for them.
            "0.22.0": most, "0.25.1": most, "0.26.0": 0,
        }  # fmt: skip

    def test_none_without(self) -> None:
        eager = estimate(version="0.15.0", graphs=False)
        assert eager.graphs_beside == 0
        assert eager.likely == estimate(version="0.15.0").likely

    def test_room_that_vllm_was_told_not_to_leave(self) -> None:
        told, usual = estimate(graphs_estimated=False), estimate()
        assert told.graphs_beside > usual.graphs_beside == 0
        assert told.likely < usual.likely

    def test_fewer_sequences_have_fewer(self) -> None:
        # Up to 2 x 8 = 16: 1, 2, 4, 8, 16; and up to 8: 1, 2, 4, 8.
        few, none = estimate(sequences=8), estimate(sequences=8, graphs=False)
        assert few.likely - none.likely == 9 * 32 * (MIB // 5)

    def test_options_that_change_them_raise_the_upper_bound_alone(self) -> None:
        changed, usual = estimate(graphs_changed=True), estimate()
        assert (changed.low, changed.likely) == (usual.low, usual.likely)
        assert changed.high > usual.high


@pytest.mark.parametrize("row", POOLS, ids=lambda row: f"{row['model']}-{row['gpu']}")
class TestPublishedPools:
    """What engines printed. Rows of the V0 engine, which sizes its pool in another way, are
    recorded and their bytes a token compared; their pools are not."""

    def config(self, row: dict[str, Any]) -> Any:
        path = row.get("config")
        return open_model(str(DATA / path) if path else row["model"]).config

    def test_bytes_of_a_token(self, row: dict[str, Any]) -> None:
        if "bytes_per_token" not in row:
            return
        share = read_geometry(self.config(row)).per_gpu(Parallel(row.get("tensor", 1)))
        assert share.bytes_per_token == row["bytes_per_token"]

    @pytest.mark.parametrize("version", ["0.15.0", "0.32.0"])
    def test_pool(self, row: dict[str, Any], version: str) -> None:
        config, tensor = self.config(row), row.get("tensor", 1)
        share = read_geometry(config).per_gpu(Parallel(tensor))
        weights = int(row["weights_gib"] * GIB) if "weights_gib" in row else (
            estimate_weights(config).total_bytes
        )  # fmt: skip
        memory = int(row["memory_gib"] * GIB)
        overhead = estimate_overhead(
            read_widths(config),
            layers=max(share.stage_layers),
            tensor=tensor,
            ranks=tensor,
            memory_bytes=memory,
            version=Version(row.get("vllm", version)),
            load=EngineLoad(row.get("sequences"), row.get("batched_tokens")),
        )
        left = float(row["utilization"]) * memory - share.weights_bytes(weights)
        printed = row["printed_gib"] * GIB
        if row["engine"] == "V0":
            assert overhead.low < overhead.likely < overhead.high
            return
        assert left - overhead.likely == pytest.approx(printed, rel=0.15)
        # The bounds hold wherever the printed pool is possible with the assumed share at all.
        if left > printed:
            assert overhead.low <= left - printed <= overhead.high


@pytest.mark.parametrize(("vllm", "lmcache"), [("0.15.0", "0.3.15"), ("0.20.2", "0.4.6")])
@pytest.mark.parametrize("row", POOLS, ids=lambda row: f"{row['model']}-{row['gpu']}")
def test_no_published_context_is_kept_from_fitting(
    row: dict[str, Any], vllm: str, lmcache: str
) -> None:
    """With the overhead that the printed pool means, whatever the plan took it for."""
    model = open_model(str(DATA / row["config"]) if "config" in row else row["model"])
    sizing = size(
        SizingRequest(
            model=model,
            parallel=Parallel(row.get("tensor", 1)),
            memory_bytes=int(row["memory_gib"] * GIB),
            utilization=Decimal(row["utilization"]),
            max_model_len=row.get("max_model_len"),
            weights_bytes=int(row["weights_gib"] * GIB) if "weights_gib" in row else None,
            vllm_version=vllm,
            lmcache_version=lmcache,
        )
    )
    fitted = row["printed_gib"] * GIB >= sizing.gpu.context_bytes
    if sizing.budget is None or not fitted:
        # Where it did not fit, nobody may say that it does.
        assert sizing.budget is None or sizing.budget.buffer_bytes == 0
        return
    budget = sizing.budget
    lowered = (Decimal(row["utilization"]) - budget.utilization) * budget.memory_bytes
    assert row["printed_gib"] * GIB - int(lowered) >= sizing.gpu.context_bytes


BATCHES = st.none() | st.integers(1, 16_384)


@given(
    st.sampled_from(sorted(catalog())),
    st.sampled_from(["0.15.0", "0.17.0", "0.20.2", "0.22.0", "0.26.0", "0.33.0"]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(8, 288),
    BATCHES,
    BATCHES,
)
def test_bounds_hold_what_is_likely(
    name: str, version: str, tensor: int, memory: int, sequences: int | None, tokens: int | None
) -> None:
    config = catalog()[name].config

    def of(**load: Any) -> Overhead:
        return estimate(
            read_widths(config),
            layers=32,
            tensor=tensor,
            memory_gib=memory,
            version=version,
            **load,
        )

    overhead = of(sequences=sequences, batched_tokens=tokens)
    assert 0 < overhead.low <= overhead.likely <= overhead.high
    # More of anything never takes less.
    if sequences is not None:
        assert of(sequences=sequences * 2, batched_tokens=tokens).likely >= overhead.likely
    if tokens is not None:
        assert of(sequences=sequences, batched_tokens=tokens * 2).likely >= overhead.likely
    eager = of(sequences=sequences, batched_tokens=tokens, graphs=False)
    assert eager.likely <= overhead.likely
    assert eager.high + eager.graphs_beside <= overhead.high + overhead.graphs_beside


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["hidden_size", "vision_config"]),
                       st.integers() | st.text(max_size=3) | st.lists(st.integers())))  # fmt: skip
def test_widths_refuse_nothing(config: dict[str, Any]) -> None:
    widths = read_widths({"model_type": "llama", **config})
    assert estimate(widths).likely > 0
