"""Options of the start command that decide over memory: counted or refused, never overlooked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.plan.decide import Preparation, decide
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Service, Session
from ai.backend.kvcache.policy.settings import Settings
from ai.backend.kvcache.sizes import GIB

type Decide = Callable[..., Preparation]

#: A pair of versions with which a buffer in GPU memory is taken.
LABELS = {
    "ai.backend.kvcache.engine-version": "0.20.2",
    "ai.backend.kvcache.lmcache-version": "0.4.6",
}


@pytest.fixture
def started(tmp_path: Path, data: Path) -> Decide:
    """Decides for Devstral 2 123B with 128 GiB of weights, TP 8, on GPUs of 80 GiB."""
    model, folder = tmp_path / "model", tmp_path / "kv"
    model.mkdir()
    config = (data / "models/devstral-2-123b.config.json").read_bytes()
    (model / "config.json").write_bytes(config)
    (model / "model.safetensors").write_bytes(bytes(1000))
    index = {"metadata": {"total_size": 128 * GIB}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))

    def start(
        *arguments: str,
        environ: dict[str, str] | None = None,
        labels: dict[str, str] = LABELS,
        gpu_bytes: int = 80 * GIB,
        memory_bytes: int | None = 1024 * GIB,
        gpu_model: str | None = None,
    ) -> Preparation:
        command = ("vllm", "serve", "{model_path}", "-tp", "8", *arguments)
        session = Session(
            kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
            mounts=(
                Mount("model", model, PurePosixPath("/models"), False, True),
                Mount("kv", folder, PurePosixPath("/kvcache"), True, False),
            ),
            environ=environ or {},
            image=Image("vllm", labels),
            gpus=Gpus("cuda", 8, gpu_bytes, model=gpu_model),
            service=Service(command, PurePosixPath("/models")),
            owner=Owner(),
            shared_memory_bytes=None,
            memory_bytes=memory_bytes,
        )
        return decide(session, Settings())

    return start


def buffer_of(preparation: Preparation) -> float | None:
    """In GiB."""
    budget = preparation.plan.budget
    return None if budget is None else budget.buffer_bytes / GIB


def refused(preparation: Preparation) -> str:
    """Why there is no buffer in GPU memory. The way with ordinary files is taken."""
    assert preparation.plan.adapter == "lmcache-posix"
    assert "--gpu-memory-utilization" not in preparation.plan.arguments
    return preparation.plan.refused["lmcache-gds"]


class TestReference:
    def test_it_stays_as_it_is(self, started: Decide) -> None:
        preparation = started()
        assert preparation.plan.adapter == "lmcache-gds"
        assert preparation.environment["LMCACHE_GDS_BUFFER_SIZE"] == "24576"
        assert preparation.plan.arguments[-2:] == ("--gpu-memory-utilization", "0.6")

    def test_the_overhead_and_its_bounds_are_told(self, started: Decide) -> None:
        plan = started().plan
        (overhead,) = (d for d in plan.decisions if d.what == "overhead")
        assert overhead.why.startswith("estimated, ")
        budget = plan.to_json()["budget"]
        assert (
            budget["overhead_low_bytes"] < budget["overhead_bytes"] < budget["overhead_high_bytes"]
        )
        json.dumps(plan.to_json())


class TestFixedPool:
    @pytest.mark.parametrize(
        ("size", "pool"),
        [("20G", 20 * GIB), ("21474836480", 20 * GIB), ("20g", 20_000_000_000)],
    )
    def test_it_is_the_pool(self, started: Decide, size: str, pool: int) -> None:
        for share in ([], ["--gpu-memory-utilization", "0.5"]):
            preparation = started("--kv-cache-memory-bytes", size, *share)
            budget = preparation.plan.budget
            assert budget is not None
            assert budget.pool_bytes_before == budget.pool_bytes_after == pool
            # The share is ignored by vLLM, so it is left as the user has it.
            assert "--gpu-memory-utilization" not in preparation.plan.arguments
            # 80 - 16 - 20 leave more than the 24 GiB that two contexts need.
            assert buffer_of(preparation) == 24

    def test_as_vllm_suggests_it(self, started: Decide) -> None:
        # vLLM prints this beginning of the option's name when it starts.
        budget = started("--kv-cache-memory=21474836480").plan.budget
        assert budget is not None
        assert budget.pool_bytes_after == 20 * GIB

    def test_it_leaves_no_room(self, started: Decide) -> None:
        assert "lower --kv-cache-memory-bytes" in refused(started("--kv-cache-memory-bytes", "60G"))

    def test_it_holds_no_context(self, started: Decide) -> None:
        preparation = started("--kv-cache-memory-bytes", "10G")
        assert preparation.plan.adapter is None
        because = preparation.plan.no_kv_cache_because
        assert because is not None
        assert "gives vLLM's KV pool 10 GiB per GPU, and one context" in because


class TestBlocks:
    def test_their_number_leaves_no_room_to_make(self, started: Decide) -> None:
        why = refused(started("--num-gpu-blocks-override", "1000"))
        assert "--num-gpu-blocks-override 1000 gives vLLM's KV pool that many blocks" in why
        # A fixed share does not help: the pool has nothing to do with it.
        refused(started("--num-gpu-blocks-override=1000", "--gpu-memory-utilization", "0.5"))

    def test_a_size_from_an_earlier_start_may_leave_no_room(self, started: Decide) -> None:
        why = refused(started(environ={"VLLM_ENABLE_STARTUP_PLAN": "1"}))
        assert "from an earlier start" in why
        assert started(environ={"VLLM_ENABLE_STARTUP_PLAN": "0"}).plan.adapter == "lmcache-gds"


class TestWeightsInHostMemory:
    def test_they_take_no_gpu_memory(self, started: Decide) -> None:
        budget = started("--cpu-offload-gb", "6").plan.budget
        assert budget is not None
        assert budget.weights_bytes == 10 * GIB

    def test_they_make_a_model_fit(self, started: Decide) -> None:
        # 16 GiB of weights do not fit into 0.92 of 16 GiB; 4 GiB do, with a shorter context.
        short = ("--max-model-len", "8192", "--max-num-seqs", "16", "--enforce-eager")
        small = 16 * GIB
        because = started(*short, gpu_bytes=small).plan.no_kv_cache_because
        assert because is not None
        assert "of weights and at least" in because
        assert started("--cpu-offload-gb", "12", *short, gpu_bytes=small).plan.adapter is not None

    def test_they_take_host_memory(self, started: Decide) -> None:
        # 1,024 GiB less 8 x 16 are 896; a quarter of them on 8 ranks is 28 GiB, where it were 32.
        posix = {"environ": {"LMCACHE_GDS_BUFFER_SIZE": "65536"}}
        plan = started("--cpu-offload-gb", "16", **posix).plan
        assert plan.adapter == "lmcache-posix"
        assert plan.host_bytes == 8 * 28 * GIB

    def test_nonsense(self, started: Decide) -> None:
        because = started("--cpu-offload-gb", "much").plan.no_kv_cache_because
        assert because is not None
        assert "--cpu-offload-gb 'much'" in because

    @pytest.mark.parametrize(
        "option",
        [
            ("--cpu-offload-params", "experts"),
            ("--offload-group-size", "8"),
            ("--quantization", "fp8"),
        ],
    )
    def test_what_stays_is_not_known(self, started: Decide, option: tuple[str, str]) -> None:
        # The weights count in full, and nobody says that vLLM does not start because of them.
        budget = started(*option).plan.budget
        assert budget is not None
        assert budget.weights_bytes == 16 * GIB
        small = started(*option, "--max-model-len", "8192", gpu_bytes=16 * GIB).plan
        assert "does not start" not in str(small.refused)


class TestNotKnownBeforehand:
    @pytest.mark.parametrize(
        "option",
        [
            ("--enable-eplb",),
            ("--enable-expert-parallel",),
            ("--kv-cache-dtype-skip-layers", "0"),
            ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}'),
            ("--speculative-config", '{"method": "eagle3", "model": "draft"}'),
            ("--speculative-config", "nonsense"),
            ("-sc.method", "eagle"),
        ],
    )
    def test_the_share_is_not_lowered(self, started: Decide, option: tuple[str, ...]) -> None:
        assert "share of the GPU is not lowered" in refused(started(*option))
        # One that the user fixed is left alone anyway.
        fixed = started(*option, "--gpu-memory-utilization", "0.6")
        assert fixed.plan.adapter == "lmcache-gds"

    @pytest.mark.parametrize(
        "option",
        [
            ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
            ("--speculative-config", '{"method": "mtp"}'),
            ("--speculative-config", '{"method": "deepseek_mtp"}'),
            ("--speculative-config.method", "suffix"),
        ],
    )
    def test_guesses_without_weights_of_their_own(
        self, started: Decide, option: tuple[str, ...]
    ) -> None:
        assert buffer_of(started(*option)) == 24


class TestLoad:
    def test_what_raises_and_lowers_the_overhead(self, started: Decide) -> None:
        def overhead(*arguments: str, **changes: Any) -> int:
            budget = started(*arguments, **changes).plan.budget
            assert budget is not None
            return budget.overhead_bytes

        usual = overhead()
        assert overhead("--enforce-eager") < usual
        assert overhead("--max-num-seqs", "16") < usual
        assert overhead(gpu_model="NVIDIA A100-SXM4-80GB") < usual
        assert overhead(gpu_model="NVIDIA H100 80GB HBM3") == usual
        assert overhead("--max-num-batched-tokens", "65536") > usual
        assert overhead("--max-num-batched-tokens", "64k") > usual
        assert overhead(environ={"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}) < usual

    @pytest.mark.parametrize(
        "option",
        [
            ("--compilation-config", '{"cudagraph_capture_sizes": [1, 2048]}'),
            ("-cc.mode", "0"),
            ("-O3",),
            ("--max-cudagraph-capture-size", "2048"),
        ],
    )
    def test_graphs_of_another_kind(self, started: Decide, option: tuple[str, ...]) -> None:
        changed, usual = started(*option).plan.budget, started().plan.budget
        assert changed is not None
        assert usual is not None
        assert changed.overhead_high_bytes > usual.overhead_high_bytes


class TestChosenLength:
    @pytest.mark.parametrize("length", ["auto", "-1", "AUTO"])
    def test_it_is_not_shortened(self, started: Decide, length: str) -> None:
        assert buffer_of(started("--max-model-len", length)) == 24
        # 24 GiB: not even a third of the 11 GiB that a context of full length takes are left.
        small = started("--max-model-len", length, gpu_bytes=24 * GIB)
        because = small.plan.refused["lmcache-gds"]
        assert "with --max-model-len auto vLLM would make contexts shorter" in because
        assert "does not start" not in because
        # Ordinary files take nothing of the share.
        assert small.plan.adapter == "lmcache-posix"


class TestWindowsKeptInFull:
    def test_files_too_may_keep_vllm_from_starting(
        self, started: Decide, tmp_path: Path, data: Path
    ) -> None:
        config = (data / "models/gpt-oss-120b.config.json").read_bytes()
        (tmp_path / "model/config.json").write_bytes(config)
        index = {"metadata": {"total_size": 54 * GIB}}
        (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(index))
        # Of 131,072 tokens, 18 of 36 layers keep 256 bytes each on each GPU, 0.56 GiB, and so do
        # the 18 with a window, where it is not freed.
        plan = started(gpu_bytes=12 * GIB).plan
        assert plan.adapter is None
        for way in ("lmcache-gds", "lmcache-posix"):
            assert "takes 1.12 GiB instead of 0.56 GiB" in plan.refused[way]
            assert "turns its hybrid KV cache manager off" in plan.refused[way]
