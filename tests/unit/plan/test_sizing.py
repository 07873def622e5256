from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import KVCacheError, ModelError, SizeError
from ai.backend.kvcache.model.catalog import catalog
from ai.backend.kvcache.model.parallel import Parallel
from ai.backend.kvcache.model.source import ModelSource, open_model
from ai.backend.kvcache.plan.sizing import size
from ai.backend.kvcache.plan.sizing_request import SizingRequest
from ai.backend.kvcache.sizes import GIB

MutatedModels = Callable[[int], Iterator[Any]]

#: How each answer begins, with a start command and without.
TOP: dict[str, Any] = {
    "kv_cache": True,
    "reason": None,
    "way": "lmcache-gds",
    "namespace": None,
    "start_command": None,
}

KEYS = {
    "model": {"name", "model_type", "max_model_len", "kv_dtype", "warnings"},
    "geometry": {
        "kv_bytes_per_token",
        "kv_bytes_per_token_per_gpu",
        "kv_bytes_per_token_no_hybrid",
        "constant_bytes_per_sequence",
        "layers",
    },
    "budget": {
        "gpu_memory_bytes",
        "weights_bytes_per_gpu",
        "weights_source",
        "overhead_bytes",
        "overhead_low_bytes",
        "overhead_high_bytes",
        "beside_bytes",
        "kv_pool_bytes_before",
        "buffer_bytes",
        "kv_pool_bytes_after",
        "gpu_memory_utilization",
        "resident_contexts",
        "offload",
        "reasons",
    },
    "engine": {"environment", "lmcache_config", "arguments"},
}


@pytest.fixture
def reference(data: Path) -> SizingRequest:
    """The reference case: 16 GiB of weights and 3 GiB of overhead on each of 8 80 GiB GPUs."""
    return SizingRequest(
        model=open_model(str(data / "models/devstral-2-123b.config.json")),
        parallel=Parallel(8),
        memory_bytes=80 * GIB,
        weights_bytes=128 * GIB,
        overhead_bytes=3 * GIB,
        utilization=Decimal("0.9"),
        vllm_version="0.20.2",
        lmcache_version="0.4.6",
    )


class TestReference:
    def test_oracle(self, reference: SizingRequest) -> None:
        plan = size(reference).to_json()
        assert plan["geometry"]["kv_bytes_per_token"] == 360_448
        assert plan["geometry"]["kv_bytes_per_token_per_gpu"] == 45_056
        assert plan["budget"] == {
            "gpu_memory_bytes": 85_899_345_920,
            "weights_bytes_per_gpu": 17_179_869_184,
            "weights_source": "as given",
            "overhead_bytes": 3_221_225_472,
            "overhead_low_bytes": 3_221_225_472,
            "overhead_high_bytes": 3_221_225_472,
            "beside_bytes": 0,
            "kv_pool_bytes_before": 56_908_316_672,  # 53 GiB
            "buffer_bytes": 25_769_803_776,  # 24 GiB
            "kv_pool_bytes_after": 31_138_512_896,  # 29 GiB
            "gpu_memory_utilization": 0.6,
            "resident_contexts": 2,  # of 11 GiB each
            "offload": True,
            "reasons": [
                "the weights were not seen: use another directory for each set of weights, or "
                "their caches mix"
            ],
        }

    def test_keys(self, reference: SizingRequest) -> None:
        plan = size(reference).to_json()
        assert list(plan.pop("refused")) == ["lmcache-mp", "vllm-tiering"]
        assert {name: plan.pop(name) for name in TOP} == TOP
        assert {name: set(part) for name, part in plan.items()} == KEYS
        assert [set(layer) for layer in plan["geometry"]["layers"]] == [
            {"kind", "count", "bytes_per_token", "window", "constant_bytes"}
        ]
        json.dumps(plan)

    def test_engine(self, reference: SizingRequest) -> None:
        engine = size(attrs.evolve(reference, max_model_len=262_144)).to_json()["engine"]
        environment, config = engine["environment"], engine["lmcache_config"]
        assert environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
        assert config["gds_buffer_size"] == 24_576
        assert environment["LMCACHE_GDS_PATH"] == config["gds_path"]
        assert PurePosixPath(config["gds_path"]).parent == PurePosixPath("/kvcache")
        assert int(environment["PYTHONHASHSEED"]) > 0
        assert "LMCACHE_CONFIG_FILE" not in environment
        *arguments, connector = engine["arguments"]
        assert arguments == [
            "--tensor-parallel-size", "8", "--max-model-len", "262144",
            "--gpu-memory-utilization", "0.6", "--kv-transfer-config",
        ]  # fmt: skip
        assert json.loads(connector)["kv_connector"] == "LMCacheConnectorV1"

    def test_older_lmcache(self, reference: SizingRequest) -> None:
        engine = size(attrs.evolve(reference, lmcache_version="0.4.3")).to_json()["engine"]
        assert engine["environment"]["LMCACHE_CUFILE_BUFFER_SIZE"] == "24576"
        assert engine["lmcache_config"]["cufile_buffer_size"] == 24_576
        assert "gds_buffer_size" not in engine["lmcache_config"]

    def test_contexts_of_another_length(self, reference: SizingRequest) -> None:
        # 140,000 tokens take 5.87 GiB; the pool of 29 GiB holds four.
        assert size(attrs.evolve(reference, context_tokens=140_000)).resident_contexts == 4

    def test_transfers(self, reference: SizingRequest) -> None:
        # 11 GiB and 5 %, in whole GiB
        sizing = size(attrs.evolve(reference, concurrent_transfers=1))
        assert sizing.budget is not None
        assert sizing.budget.buffer_bytes == 12 * GIB

    def test_pinned(self, reference: SizingRequest) -> None:
        # 80 - 68 - 1.5 GiB
        sizing = size(attrs.evolve(reference, utilization=Decimal("0.85"), pinned=True))
        assert sizing.budget is not None
        assert sizing.budget.buffer_bytes == 21 * GIB // 2
        assert "0.68 would give the full buffer" in sizing.reasons[0]

    def test_chunks(self, reference: SizingRequest) -> None:
        # 64 chunks of 16,384 tokens x 45,056 bytes = 44 GiB, more than two contexts of 5.5
        large = attrs.evolve(reference, chunk_tokens=16_384)
        sizing = size(attrs.evolve(large, max_model_len=131_072))
        assert sizing.budget is not None
        assert sizing.budget.buffer_bytes == 44 * GIB
        # which leaves 9 GiB, too few for a context of 11, so that ordinary files are taken
        assert "less than one context" in size(large).refused["lmcache-gds"]


class TestWeights:
    def test_most_layers_of_a_stage(self, reference: SizingRequest) -> None:
        # 30 of 88 layers on the middle one of three stages: 128 GiB x 30 / (88 x 8)
        sizing = size(attrs.evolve(reference, parallel=Parallel(8, 3)))
        assert sizing.gpu.weights_bytes == 5_856_773_586

    def test_estimated(self, data: Path) -> None:
        model = open_model(str(data / "models/llama-3.1-8b.config.json"))
        sizing = size(SizingRequest(model=model))
        # 8,029,995,008 parameters of 2 bytes: layers of 32 x 218,103,808 and embeddings of
        # 2 x 128,256 x 4,096
        assert sizing.gpu.weights_bytes == 16_059_990_016
        assert "8.0 billion parameters" in sizing.weights.source

    def test_files(self, tmp_path: Path, data: Path) -> None:
        config = (data / "models/llama-3.1-8b.config.json").read_bytes()
        (tmp_path / "config.json").write_bytes(config)
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(16_000_000_000)
        sizing = size(SizingRequest(model=open_model(str(tmp_path))))
        assert sizing.gpu.weights_bytes == 16_000_000_000
        assert sizing.reasons == ("80 GiB of memory per GPU are assumed",)


class TestNamespace:
    def path(self, request: SizingRequest) -> str:
        return str(size(request).lmcache_config["gds_path"])

    def test_everything_that_must_not_be_shared(self, reference: SizingRequest) -> None:
        changes: list[dict[str, Any]] = [
            {},
            {"kv_cache_dtype": "fp8"},
            {"parallel": Parallel(4, 2)},
            {"lmcache_version": "0.4.5"},
            {"vllm_version": "0.20.1"},
            {"chunk_tokens": 512},
            {"model": attrs.evolve(reference.model, name="another")},
            {"model": attrs.evolve(reference.model, config={**reference.model.config, "x": 1})},
        ]
        paths = [self.path(attrs.evolve(reference, **change)) for change in changes]
        assert len(set(paths)) == len(changes)

    def test_what_may_be_shared(self, reference: SizingRequest) -> None:
        for change in ({"concurrent_transfers": 1}, {"max_model_len": 1000}, {"pinned": True}):
            changed = attrs.evolve(reference, **change, utilization=Decimal("0.6"))
            assert self.path(changed) == self.path(reference)

    def test_weights(self, tmp_path: Path, data: Path) -> None:
        paths = set()
        for fill in (b"a", b"b"):
            config = (data / "models/llama-3.1-8b.config.json").read_bytes()
            directory = tmp_path / fill.decode() / "model"
            directory.mkdir(parents=True)
            (directory / "config.json").write_bytes(config)
            (directory / "model.safetensors").write_bytes(fill * 1000)
            request = SizingRequest(
                model=open_model(str(directory)), vllm_version="0.20.2", lmcache_version="0.4.6"
            )
            paths.add(self.path(request))
        assert len(paths) == 2


class TestNo:
    def test_recurrent_layers(self) -> None:
        sizing = size(SizingRequest(model=open_model("qwen3-next-80b-a3b"), parallel=Parallel(4)))
        plan = sizing.to_json()
        assert plan["budget"]["offload"] is False
        assert "the model has recurrent layers" in plan["budget"]["reasons"][0]
        assert plan["engine"] == {"environment": {}, "lmcache_config": {}, "arguments": []}
        assert plan["geometry"]["constant_bytes_per_sequence"] == 39_518_208

    def test_nothing_that_grows(self) -> None:
        config = {
            "model_type": "mamba2", "num_hidden_layers": 2, "num_heads": 32, "head_dim": 64,
            "state_size": 128, "conv_kernel": 4, "n_groups": 1, "hidden_size": 1024,
            "vocab_size": 50_000,
        }  # fmt: skip
        sizing = size(SizingRequest(model=ModelSource("m", config, "config.json", "m")))
        assert sizing.budget is None
        assert "keeps nothing that grows" in sizing.reasons[0]

    def test_windows_are_told(self, data: Path) -> None:
        model = open_model(str(data / "models/gpt-oss-120b.config.json"))
        older: dict[str, Any] = {"vllm_version": "0.20.2", "lmcache_version": "0.4.6"}
        sizing = size(SizingRequest(model=model, parallel=Parallel(4), **older))
        assert any("73728 bytes a token instead of 36864" in r for r in sizing.reasons)
        # 36 x 512 x 131,072 tokens = 2.25 GiB, twice and 5 %, in whole GiB
        assert sizing.budget is not None
        assert sizing.budget.buffer_bytes == 5 * GIB
        # LMCache's server leaves vLLM's hybrid manager on.
        newest = size(SizingRequest(model=model, parallel=Parallel(4)))
        assert newest.adapter is not None
        assert newest.adapter.name == "lmcache-mp"
        assert not any("bytes a token instead of" in r for r in newest.reasons)


class TestWays:
    """The way is the one that a session with these versions would go."""

    @pytest.mark.parametrize(
        ("vllm", "lmcache", "way"),
        [
            ("0.20.2", "0.4.6", "lmcache-gds"),
            ("0.15.0", "0.3.15", "lmcache-gds"),
            ("0.32.0", "0.5.6", "lmcache-mp"),
            ("0.32.0", "0.5.4", "vllm-tiering"),
            ("0.26.0", "0.5.2", None),
        ],
    )
    def test_by_versions(
        self, reference: SizingRequest, vllm: str, lmcache: str, way: str | None
    ) -> None:
        sizing = size(attrs.evolve(reference, vllm_version=vllm, lmcache_version=lmcache))
        assert (sizing.adapter and sizing.adapter.name) == way
        budget = sizing.budget
        assert (budget is not None) == (way is not None)
        if budget is not None:
            assert (budget.buffer_bytes > 0) == (way == "lmcache-gds")

    def test_why_a_better_one_is_not_taken(self, reference: SizingRequest) -> None:
        sizing = size(attrs.evolve(reference, vllm_version="0.32.0", lmcache_version="0.5.4"))
        assert sizing.refused["lmcache-mp"].startswith("vLLM 0.32.0 with LMCache 0.5.4")

    def test_a_server_takes_memory_beside_vllm(self, reference: SizingRequest) -> None:
        newest = attrs.evolve(
            reference, utilization=None, vllm_version="0.32.0", lmcache_version="0.5.6"
        )
        sizing = size(newest)
        # 0.75 GiB of a process, and 4 chunks of 256 x 45,056 bytes.
        assert sizing.beside_bytes == 805_306_368 + 46_137_344
        plan = sizing.to_json()
        # vLLM's own default, which nobody needs to say; 0.92 x 80 - 16 - 3 GiB
        assert plan["budget"]["gpu_memory_utilization"] == 0.92
        assert plan["budget"]["kv_pool_bytes_after"] == plan["budget"]["kv_pool_bytes_before"]
        assert plan["budget"]["kv_pool_bytes_before"] == 58_626_303_590
        assert "--gpu-memory-utilization" not in plan["engine"]["arguments"]
        # 80 x 0.01 = 0.8 GiB would be just enough, and 0.005 are not.
        tight = attrs.evolve(newest, utilization=Decimal("0.995"), pinned=True)
        refused = size(tight).refused["lmcache-mp"]
        assert "this way takes about 0.79 GiB of each GPU beside vLLM" in refused

    def test_an_estimate_has_bounds(self, reference: SizingRequest) -> None:
        budget = size(attrs.evolve(reference, overhead_bytes=None)).to_json()["budget"]
        assert budget["buffer_bytes"] == 24 * GIB
        assert budget["gpu_memory_utilization"] == 0.6
        assert (
            0
            < budget["overhead_low_bytes"]
            < budget["overhead_bytes"]
            < budget["overhead_high_bytes"]
        )


class TestBadInput:
    def test_context_longer_than_the_longest(self, reference: SizingRequest) -> None:
        with pytest.raises(SizeError, match="300000 tokens is longer than the longest of 262144"):
            size(attrs.evolve(reference, context_tokens=300_000))

    def test_parallel_size(self, reference: SizingRequest) -> None:
        with pytest.raises(ModelError, match=r"96 attention heads .* size of 7"):
            size(attrs.evolve(reference, parallel=Parallel(7)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)

FIELDS = sorted({
    field
    for model in catalog().values()
    for part in (model.config, model.config.get("text_config", {}))
    for field in part
})


def plan_for(config: Any) -> None:
    """Plans, or raises an error of this package."""
    model = ModelSource("fuzz", config, "config.json", "fuzz")
    with contextlib.suppress(KVCacheError):
        json.dumps(size(SizingRequest(model=model, parallel=Parallel(2, 2))).to_json())


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON))
def test_any_object_is_planned_or_refused(config: dict[str, Any]) -> None:
    plan_for(config)


@given(st.sampled_from(sorted(catalog())), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_change_is_planned_or_refused(name: str, changes: dict[str, Any]) -> None:
    config = catalog()[name].config
    plan_for({**config, **changes})
    if "text_config" in config:
        plan_for({**config, "text_config": {**config["text_config"], **changes}})


@pytest.mark.parametrize("seed", range(10))
def test_mutated_models_are_planned_or_refused(mutated_models: MutatedModels, seed: int) -> None:
    for config in mutated_models(seed):
        plan_for(config)
