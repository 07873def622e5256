from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.metrics.indicators import INDICATORS, engine_indicators, read_counters


def indicators_of(page: str) -> dict[str, float]:
    return dict(engine_indicators(read_counters(page)))


class TestCapturedPages:
    @pytest.mark.parametrize(
        "name", ["vllm-0.32_lmcache-mp-0.5.6_engine", "vllm-0.20_lmcache-mp-0.4.6_engine"]
    )
    def test_with_a_folder(self, data: Path, name: str) -> None:
        page = (data / "engine-pages" / f"{name}.prom").read_text()
        assert indicators_of(page) == {
            # 8,448 of 652 + 0 + 8,448 prompt tokens
            "kvcache_util": pytest.approx(92.835, abs=0.001),
            "kvcache_engine_util": 0,
            "kvcache_pool_util": 0,
            "kvcache_loaded_tokens": 8448,
        }

    def test_engine_memory_only(self, data: Path) -> None:
        page = (data / "engine-pages/vllm-0.32_no-offload.prom").read_text()
        values = indicators_of(page)
        # 8,832 of 9,268 + 8,832 prompt tokens
        assert values["kvcache_engine_util"] == pytest.approx(48.796, abs=0.001)
        assert values["kvcache_util"] == 0


class TestAbsence:
    def test_empty_page(self) -> None:
        assert indicators_of("") == {}

    def test_no_requests_yet_has_no_shares(self) -> None:
        page = "\n".join([
            "# TYPE vllm:prompt_tokens_by_source_total counter",
            'vllm:prompt_tokens_by_source_total{source="local_compute"} 0',
            'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 0',
            "",
        ])
        assert indicators_of(page) == {"kvcache_loaded_tokens": 0}

    def test_engines_are_summed_and_pools_averaged(self) -> None:
        page = "\n".join([
            "# TYPE vllm:prompt_tokens_by_source_total counter",
            'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 100',
            'vllm:prompt_tokens_by_source_total{engine="1",source="external_kv_transfer"} 300',
            "# TYPE vllm:kv_cache_usage_perc gauge",
            'vllm:kv_cache_usage_perc{engine="0"} 0.2',
            'vllm:kv_cache_usage_perc{engine="1"} 0.4',
            "",
        ])
        assert indicators_of(page) == {
            "kvcache_util": 75,
            "kvcache_loaded_tokens": 300,
            "kvcache_pool_util": pytest.approx(30),
        }

    def test_not_a_metrics_page(self) -> None:
        with pytest.raises(ValueError, match="not found"):
            read_counters("<html>\n{")


class TestNames:
    def test_as_backend_ai_shows_them(self) -> None:
        for indicator in INDICATORS:
            assert "io" not in indicator.key
            assert "." not in indicator.key
            assert indicator.key.endswith("_util") == (indicator.unit == "percent")
            assert indicator.key.endswith("_mem") == (indicator.unit == "bytes")
