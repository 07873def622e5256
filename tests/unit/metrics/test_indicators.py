from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ai.backend.kvcache.folder.usage import Usage
from ai.backend.kvcache.metrics.indicators import (
    INDICATORS,
    LASTING,
    TRANSPORT,
    Unit,
    engine_indicators,
    usage_indicators,
)
from ai.backend.kvcache.metrics.interval import between, quantile
from ai.backend.kvcache.metrics.reading import QUANTITIES, Reading, read_page


def page(**samples: float) -> str:
    """A page of vLLM's; keyword → value, as in the table below."""
    lines = {
        "computed": 'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"}',
        "engine": 'vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"}',
        "folder": 'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"}',
        "prompts": 'vllm:prompt_tokens_total{engine="0"}',
        "requests": "vllm:time_to_first_token_seconds_count",
        "first": "vllm:time_to_first_token_seconds_sum",
        "prefill": "vllm:request_prefill_time_seconds_sum",
        "queue": "vllm:request_queue_time_seconds_sum",
        "read_bytes": "lmcache:num_remote_read_bytes_total",
        "reads": "lmcache:num_remote_read_requests_total",
        "evicted": "lmcache:local_cpu_evict_keys_count_total",
        "failed": "lmcache:get_blocking_failed_count",
    }
    return "".join(f"{lines[name]} {value}\n" for name, value in samples.items())


def values(before: str | None, after: str, seconds: float = 10) -> Mapping[str, float]:
    earlier = None if before is None else read_page(before)
    return engine_indicators(between(earlier, read_page(after), seconds))


class TestCapturedPages:
    @pytest.mark.parametrize(
        "name",
        [
            "vllm-0.32_lmcache-mp-0.5.6_engine",
            "vllm-0.20_lmcache-mp-0.4.6_engine",
            "vllm-0.20_lmcache-0.4.4_inprocess",
            "vllm-0.32_lmcache-0.5.6_inprocess",
        ],
    )
    def test_with_a_folder(self, data: Path, name: str) -> None:
        found = values("", (data / "engine-pages" / f"{name}.prom").read_text())
        # 8,448 of 652 + 0 + 8,448 prompt tokens
        assert found["kvcache_util"] == pytest.approx(92.835, abs=0.001)
        assert found["kvcache_engine_util"] == 0
        assert found["kvcache_computed_util"] == pytest.approx(7.165, abs=0.001)
        assert found["kvcache_pool_util"] == 0
        assert found["kvcache_loaded_tokens"] == 8448

    def test_engine_memory_only(self, data: Path) -> None:
        found = values("", (data / "engine-pages/vllm-0.32_no-offload.prom").read_text())
        # 8,832 of 9,268 + 8,832 prompt tokens
        assert found["kvcache_engine_util"] == pytest.approx(48.796, abs=0.001)
        assert found["kvcache_util"] == 0

    def test_bytes_of_lmcache_inside_vllm(self, data: Path) -> None:
        text = (data / "engine-pages/vllm-0.20_lmcache-0.4.4_inprocess.prom").read_text()
        found = values("", text, seconds=30)
        # 34,603,008 bytes in 33 reads
        assert found["kvcache_load_rate"] == pytest.approx(1_153_433.6)
        assert found["kvcache_load_mem"] == 1_048_576

    def test_prefill_saved(self, data: Path) -> None:
        text = (data / "engine-pages/vllm-0.32_lmcache-mp-0.5.6_engine.prom").read_text()
        # Four requests were 0.1437863 s in prefill and computed 652 tokens; a step takes
        # 0.8365837 s / 92. They queued for 0.5079 s, 8,448 tokens being loaded meanwhile.
        cost = (0.1437863110 - 4 * 0.8365836530 / 92) / 652
        found = values("", text)
        assert found["kvcache_saved_seconds"] == pytest.approx(8448 * cost - 0.5078546480, abs=1e-6)

    def test_server_beside_the_engine(self, data: Path) -> None:
        pages = [
            (data / f"engine-pages/vllm-0.32_lmcache-mp-0.5.6_{of}.prom").read_text()
            for of in ("engine", "server")
        ]
        reading = read_page("\n".join(pages))
        assert reading["external_tokens"] == 8448
        assert reading["loads"] == 33
        assert reading["evicted_blocks"] == 33
        assert values("", "\n".join(pages), seconds=11)["kvcache_evicted_rate"] == 3


SERVER = {
    "requests": "lmcache_mp_l2_store_submitted_requests_total",
    "ended": "lmcache_mp_l2_store_completed_requests_total",
    "begun": "lmcache_mp_l2_store_submitted_objects_chunks_total",
    "done": "lmcache_mp_l2_store_completed_objects_chunks_total",
    "written": "lmcache_mp_l2_usage_bytes",
    "loaded": "lmcache_mp_l2_prefetch_load_completed_chunks_total",
    "missing": 'lmcache_mp_l2_prefetch_failure_chunks_total{reason="not_found"}',
    "no_room": 'lmcache_mp_l2_prefetch_failure_chunks_total{reason="l1_oom"}',
    "taken": 'lmcache_mp_l2_prefetch_failure_chunks_total{reason="l1_contended"}',
}


def server(**samples: float) -> Reading:
    """A page of LMCache's server, which has no counter before it counts for the first time."""
    return read_page("".join(f"{SERVER[name]} {value}\n" for name, value in samples.items()))


class TestServer:
    def test_bytes_follow_from_blocks(self) -> None:
        before, after = server(loaded=3, written=4000), server(loaded=11, written=12000)
        found = engine_indicators(between(before, after, 10, block_bytes=1000.0))
        assert found["kvcache_load_rate"] == 800
        assert found["kvcache_load_mem"] == 1000
        assert found["kvcache_store_rate"] == 800

    def test_blocks_of_a_size_that_is_not_known(self) -> None:
        found = engine_indicators(between(server(loaded=3), server(loaded=11), 10))
        assert "kvcache_load_rate" not in found

    def test_loads_that_fail(self) -> None:
        after = server(loaded=3, missing=4, no_room=5, taken=6)
        found = engine_indicators(between(server(loaded=3), after, 10))
        # Blocks that another request was just loading were not lost.
        assert found["kvcache_failed_loads"] == 4
        assert found["kvcache_crowded_out"] == 5

    def test_stores_that_fail(self) -> None:
        # Of the two requests that begin in between one fails, with 4 blocks.
        before = server(requests=5, ended=5, begun=20, done=20)
        after = server(requests=7, ended=7, begun=28, done=24)
        assert engine_indicators(between(before, after, 10))["kvcache_failed_stores"] == 4

    def test_all_stores_fail(self) -> None:
        after = server(requests=2, ended=2, begun=8)
        found = engine_indicators(between(server(loaded=3), after, 10))
        assert found["kvcache_failed_stores"] == 8

    def test_stores_under_way_have_not_failed(self) -> None:
        before = server(requests=5, ended=5, begun=20, done=18)
        busy = server(requests=7, ended=6, begun=28, done=22)
        idle = server(requests=9, ended=9, begun=36, done=33)
        first = between(before, busy, 10)
        assert engine_indicators(first)["kvcache_failed_stores"] == 0
        # 36 - 33 blocks are lost in all, 20 - 18 of them long ago.
        second = between(first.now, idle, 10)
        assert engine_indicators(second)["kvcache_failed_stores"] == 1

    def test_never_idle(self) -> None:
        before = server(requests=5, ended=4, begun=20, done=16)
        after = server(requests=7, ended=6, begun=28, done=24)
        assert "kvcache_failed_stores" not in engine_indicators(between(before, after, 10))


class TestSglang:
    PAGE = "\n".join([
        'sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 600',
        'sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 400',
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 100',
        'sglang:cached_tokens_total{model_name="m",cache_source="host"} 200',
        'sglang:cached_tokens_total{model_name="m",cache_source="storage_HiCacheFile"} 1',
        'sglang:cached_tokens_total{model_name="m",cache_source="storage"} 300',
        'sglang:cached_tokens_total{model_name="m",cache_source="total"} 601',
        'sglang:token_usage{model_name="m"} 0.25',
        "",
    ])

    def test_shares(self) -> None:
        found = values("", self.PAGE)
        assert found["kvcache_util"] == pytest.approx(30)
        assert found["kvcache_engine_util"] == pytest.approx(10)
        assert found["kvcache_host_util"] == pytest.approx(20)
        # 1,000 - 100 - 200 - 300
        assert found["kvcache_computed_util"] == pytest.approx(40)
        assert found["kvcache_pool_util"] == 25


class TestSglangBackends:
    @pytest.mark.parametrize(
        "backend",
        ["HiCacheFile", "HiCacheHF3FS", "HiCacheNixl", "MooncakeStore", "file", "unknown", ""],
    )
    def test_shares(self, backend: str) -> None:
        cached = 'sglang:cached_tokens_total{cache_source="'
        found = values(
            "",
            f'sglang:prompt_tokens_total 1000\n{cached}device"}} 100\n{cached}host"}} 200\n'
            f'{cached}storage_{backend}"}} 300\n',
        )
        assert found["kvcache_util"] == pytest.approx(30)
        assert found["kvcache_computed_util"] == pytest.approx(40)

    def test_backend_that_was_changed(self) -> None:
        cached = 'sglang:cached_tokens_total{cache_source="storage'
        found = values("", f'sglang:prompt_tokens_total 100\n{cached}_a"}} 10\n{cached}_b"}} 20\n')
        assert found["kvcache_util"] == pytest.approx(30)

    def test_without_details(self) -> None:
        total = 'sglang:cached_tokens_total{cache_source="total"} 60\n'
        assert values("", "sglang:prompt_tokens_total 100\n" + total) == {}


class TestTiers:
    """vLLM 0.32 and later say which of a connector's tiers tokens came from."""

    TIERS = ("disk", "host", "p2p", "external_unspecified")

    def page(self, prompts: int, loaded: int, **tiers: int) -> str:
        return page(prompts=prompts, computed=prompts - loaded, engine=0, folder=loaded) + "".join(
            f'vllm:prompt_tokens_cached_by_source_total{{source="{tier}"}} {tiers.get(tier, 0)}\n'
            for tier in self.TIERS
        )

    def test_both(self) -> None:
        before = self.page(1000, 500, disk=500)
        found = values(before, self.page(2000, 1300, disk=700, host=600))
        # Of the 800 tokens that were loaded 200 came from the folder, and 1,000 were asked for.
        assert found["kvcache_util"] == pytest.approx(20)
        assert found["kvcache_host_util"] == pytest.approx(60)
        assert found["kvcache_loaded_tokens"] == pytest.approx(700)

    def test_scheduled_in_the_interval_before(self) -> None:
        before = self.page(1000, 0, disk=300, host=100)
        found = values(before, self.page(1400, 400, disk=300, host=100))
        assert found["kvcache_util"] == pytest.approx(75)
        assert found["kvcache_host_util"] == pytest.approx(25)

    def test_neither_folder_nor_host_memory(self) -> None:
        found = values(self.page(0, 0), self.page(1000, 500, p2p=500))
        assert found["kvcache_util"] == 0
        assert found["kvcache_host_util"] == 0

    def test_connector_that_does_not_tell(self) -> None:
        found = values(self.page(0, 0), self.page(1000, 500, external_unspecified=500))
        assert found["kvcache_util"] == 50
        assert "kvcache_host_util" not in found

    def test_connector_that_tells_of_some(self) -> None:
        before = self.page(1000, 500, host=500)
        found = values(before, self.page(2000, 1000, host=700, external_unspecified=300))
        assert not {"kvcache_util", "kvcache_host_util", "kvcache_loaded_tokens"} & found.keys()

    @pytest.mark.parametrize(
        "name", ["kv_offload_load_bytes_total", "kv_offload_total_bytes_total"]
    )
    def test_offloading_of_vllm_that_does_not_tell(self, name: str) -> None:
        offloading = f"vllm:{name} 0\n"
        after = page(prompts=1000, computed=500, engine=0, folder=500) + offloading
        found = values(page(prompts=0, computed=0, engine=0, folder=0) + offloading, after)
        assert found["kvcache_computed_util"] == 50
        assert not {"kvcache_util", "kvcache_host_util", "kvcache_loaded_tokens"} & found.keys()


class TestLmcacheInsideVllm:
    """What stands at zero because nobody counts it is not known."""

    LOADED = page(prompts=1000, computed=100, engine=0, folder=900)
    OF_LMCACHE = frozenset({
        "kvcache_load_rate",
        "kvcache_load_mem",
        "kvcache_store_rate",
        "kvcache_store_mem",
        "kvcache_evicted_rate",
        "kvcache_crowded_out",
        "kvcache_failed_loads",
        "kvcache_failed_stores",
        "kvcache_saved_seconds",
    })

    def lmcache(self, **counts: int) -> str:
        zero = dict.fromkeys(
            (
                "num_retrieve_requests_total",
                "num_store_requests_total",
                "num_remote_read_requests_total",
                "num_remote_read_bytes_total",
                "num_remote_write_requests_total",
                "num_remote_write_bytes_total",
                "local_cpu_evict_keys_count_total",
                "local_cpu_evict_failed_count_total",
                "get_blocking_failed_count",
                "put_failed_count",
            ),
            0,
        )
        return "".join(f"lmcache:{name} {n}\n" for name, n in {**zero, **counts}.items())

    def test_counts_nothing(self) -> None:
        found = values(page(prompts=0) + self.lmcache(), self.LOADED + self.lmcache())
        assert found["kvcache_util"] == 90
        assert not self.OF_LMCACHE & found.keys()

    def test_families_without_samples(self) -> None:
        declared = "# HELP lmcache:x y\n# TYPE lmcache:num_remote_read_bytes_total counter\n"
        assert not self.OF_LMCACHE & values(declared, self.LOADED + declared).keys()

    def test_gpudirect_storage_has_no_bytes(self) -> None:
        counts = {"num_retrieve_requests_total": 3, "num_store_requests_total": 5}
        found = values(page(prompts=0) + self.lmcache(), self.LOADED + self.lmcache(**counts))
        rates = {"kvcache_load_rate", "kvcache_load_mem", "kvcache_store_rate", "kvcache_store_mem"}
        assert not rates & found.keys()
        assert found["kvcache_evicted_rate"] == 0

    def test_has_stored_and_not_published_its_loads(self) -> None:
        stored = {
            "num_store_requests_total": 5,
            "num_remote_write_requests_total": 5,
            "num_remote_write_bytes_total": 5000,
        }
        found = values(page(prompts=0) + self.lmcache(), self.LOADED + self.lmcache(**stored))
        assert found["kvcache_store_rate"] == 500
        assert "kvcache_load_rate" not in found


class TestPagesFromOutside:
    @staticmethod
    def of(data: Path, name: str) -> Mapping[str, float]:
        before, after = (data / f"metrics-pages/{name}-{w}.prom" for w in ("before", "after"))
        return values(before.read_text(), after.read_text(), seconds=30)

    def test_lmcache_in_process_without_its_directory(self, data: Path) -> None:
        # 8,448 of 9,100 tokens were loaded, and LMCache's own counters all stand at zero.
        assert self.of(data, "lmcache-in-process-without-its-directory") == {
            "kvcache_util": pytest.approx(92.835, abs=0.001),
            "kvcache_engine_util": 0,
            "kvcache_computed_util": pytest.approx(7.165, abs=0.001),
            "kvcache_pool_util": 0,
            "kvcache_loaded_tokens": 8448,
            "kvcache_first_token_p50": pytest.approx(0.0533, abs=0.001),
            "kvcache_first_token_p95": pytest.approx(0.076, abs=0.001),
            "kvcache_preempted": 0,
        }

    def test_vllm_tiering_from_host_memory(self, data: Path) -> None:
        found = self.of(data, "vllm-tiering-from-host-memory")
        assert found["kvcache_util"] == 0
        assert found["kvcache_host_util"] == pytest.approx(92.835, abs=0.001)
        assert found["kvcache_loaded_tokens"] == 0
        assert "kvcache_saved_seconds" not in found

    def test_sglang_storage_by_backend(self, data: Path) -> None:
        # 60,000 of 100,000 tokens were in storage, and none anywhere else.
        found = self.of(data, "sglang-storage-by-backend")
        assert found["kvcache_util"] == 60
        assert found["kvcache_engine_util"] == 0
        assert found["kvcache_computed_util"] == 40
        assert found["kvcache_loaded_tokens"] == 60_000


class TestDifferences:
    def test_only_what_is_new_counts(self) -> None:
        before = page(prompts=1000, computed=1000, engine=0, folder=0)
        after = page(prompts=2000, computed=1100, engine=200, folder=700)
        found = values(before, after)
        assert found["kvcache_util"] == 70
        assert found["kvcache_engine_util"] == 20
        assert found["kvcache_computed_util"] == 10

    def test_rates(self) -> None:
        found = values(
            page(read_bytes=1000, reads=1, evicted=5, failed=1),
            page(read_bytes=5000, reads=5, evicted=25, failed=3),
            seconds=4,
        )
        assert found["kvcache_load_rate"] == 1000
        assert found["kvcache_load_mem"] == 1000
        assert found["kvcache_evicted_rate"] == 5
        assert found["kvcache_failed_loads"] == 2

    def test_nobody_asked(self) -> None:
        same = page(prompts=1000, computed=500, folder=500, read_bytes=7, reads=1)
        found = values(same, same)
        assert "kvcache_util" not in found
        assert "kvcache_load_mem" not in found
        # That nothing was read is known.
        assert found["kvcache_load_rate"] == 0

    def test_first_look_has_shares_and_no_rates(self) -> None:
        first = page(prompts=100, computed=25, folder=75, read_bytes=1000, reads=1, failed=3)
        found = values(None, first + page(first=9, prefill=1, queue=0))
        assert found["kvcache_util"] == 75
        assert "kvcache_load_rate" not in found
        # They failed at some time, and were reported then.
        assert "kvcache_failed_loads" not in found
        assert "kvcache_saved_seconds" not in found

    def test_restart_is_no_negative_rate(self) -> None:
        before = page(prompts=1000, computed=1000, folder=0, read_bytes=900)
        after = page(prompts=100, computed=40, folder=60, read_bytes=950)
        found = values(before, after)
        # Since the new start; bytes went up, and yet nobody knows since when.
        assert found["kvcache_util"] == 60
        assert "kvcache_load_rate" not in found
        assert all(value >= 0 for value in found.values())

    def test_counter_that_appears_was_zero(self) -> None:
        found = values(page(prompts=100), page(prompts=300, folder=100))
        assert found["kvcache_util"] == 50

    def test_ranks_are_summed_and_pools_averaged(self) -> None:
        text = "\n".join([
            'vllm:prompt_tokens_total{engine="0"} 100',
            'vllm:prompt_tokens_total{engine="1"} 300',
            'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 100',
            'vllm:prompt_tokens_by_source_total{engine="1",source="external_kv_transfer"} 200',
            'vllm:kv_cache_usage_perc{engine="0"} 0.2',
            'vllm:kv_cache_usage_perc{engine="1"} 0.4',
            "",
        ])
        found = values("", text)
        assert found["kvcache_util"] == 75
        assert found["kvcache_pool_util"] == pytest.approx(30)


class TestFirstTokens:
    BUCKETS = (
        'vllm:time_to_first_token_seconds_bucket{{le="0.1"}} {}\n'
        'vllm:time_to_first_token_seconds_bucket{{le="1.0"}} {}\n'
        'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {}\n'
    )

    def test_quantiles(self) -> None:
        found = values(self.BUCKETS.format(0, 0, 0), self.BUCKETS.format(10, 20, 20))
        # The tenth of twenty is at the end of the first bucket; the nineteenth is 9 of 10 into
        # the second.
        assert found["kvcache_first_token_p50"] == pytest.approx(0.1)
        assert found["kvcache_first_token_p95"] == pytest.approx(0.1 + 0.9 * 0.9)

    @pytest.mark.parametrize(
        ("folder", "engine", "requests", "known"),
        [
            (0, 0, 3, {"kvcache_first_token_cold"}),
            (700, 0, 1, {"kvcache_first_token_warm"}),
            (0, 700, 1, {"kvcache_first_token_warm"}),
            # Two requests, of which one may have been new.
            (700, 0, 2, set()),
        ],
    )
    def test_cold_and_warm_are_not_mixed(
        self, folder: int, engine: int, requests: int, known: set[str]
    ) -> None:
        after = page(
            prompts=1000, computed=1000, folder=folder, engine=engine, requests=requests
        ) + self.BUCKETS.format(0, requests, requests)
        found = values(page(folder=0, engine=0, requests=0) + self.BUCKETS.format(0, 0, 0), after)
        split = {"kvcache_first_token_cold", "kvcache_first_token_warm"}
        assert split & found.keys() == known

    def test_longer_than_the_last_bound(self) -> None:
        assert quantile({0.1: 0, 1.0: 0, math.inf: 4}, 0.5) == 1.0

    def test_nothing(self) -> None:
        assert quantile({}, 0.5) is None
        assert quantile({0.1: 0, math.inf: 0}, 0.5) is None

    @given(
        st.lists(st.integers(0, 50), min_size=1, max_size=8),
        st.floats(0, 1),
    )
    def test_lies_between_the_bounds(self, counts: list[int], share: float) -> None:
        total, buckets = 0, {}
        for bound, count in enumerate(counts, start=1):
            total += count
            buckets[float(bound)] = float(total)
        buckets[math.inf] = float(total)
        found = quantile(buckets, share)
        assert found is None if total == 0 else found is not None and 0 <= found <= len(counts)


class TestAbsence:
    def test_empty_page(self) -> None:
        assert values("", "") == {}

    def test_no_requests_yet_has_no_shares(self) -> None:
        assert values("", page(prompts=0, computed=0, folder=0)) == {"kvcache_loaded_tokens": 0}

    def test_number_that_is_none(self) -> None:
        assert values("", "vllm:kv_cache_usage_perc NaN\n") == {}

    def test_not_a_metrics_page(self) -> None:
        with pytest.raises(ValueError, match="line 1 of the metrics page"):
            read_page("vllm:prompt_tokens_total{ 5\n")

    @given(st.dictionaries(st.sampled_from(sorted(QUANTITIES)), st.floats(0, 1e15)))
    @example({"prompt_tokens": 6.4e-307, "engine_tokens": 2.0})
    def test_any_reading_gives_finite_figures(self, some: dict[str, float]) -> None:
        for before in (None, Reading({}, {}), Reading(some, {})):
            found = engine_indicators(between(before, Reading(some, {}), 30))
            assert all(math.isfinite(value) for value in found.values())


class TestFolder:
    def test_what_lies_there(self) -> None:
        assert usage_indicators(Usage(4096, 4, 2, 1, 2000.0, 86400.0)) == {
            "kvcache_mem": 4096,
            "kvcache_files": 4,
            "kvcache_blocks": 2,
            "kvcache_unfinished": 1,
            "kvcache_oldest_seconds": 86400,
        }

    def test_form_that_is_not_known(self) -> None:
        usage = Usage(4096, 3, None, None, None, None)
        assert usage_indicators(usage) == {"kvcache_mem": 4096, "kvcache_files": 3}


class TestTable:
    def test_names_as_backend_ai_shows_them(self) -> None:
        for indicator in INDICATORS:
            assert "io" not in indicator.key
            assert "." not in indicator.key
            assert indicator.key.endswith("_util") == (indicator.unit is Unit.PERCENT)
            assert indicator.key.endswith("_mem") == (indicator.unit is Unit.BYTES)

    def test_each_has_one_origin_and_one_name(self) -> None:
        assert len({i.key for i in INDICATORS}) == len(INDICATORS)
        for indicator in INDICATORS:
            origins = (indicator.of_interval, indicator.of_usage)
            assert origins.count(None) == (2 if indicator.key == TRANSPORT else 1)
        assert {i.key for i in INDICATORS} >= LASTING
