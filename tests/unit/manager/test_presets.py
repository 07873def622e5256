from __future__ import annotations

import attrs
import pytest
from ai.backend.common.dto.manager.v2.prometheus_query_preset.validators import (
    escape_non_placeholders,
    validate_query_template,
)

from ai.backend.kvcache.manager.presets import (
    PREFIX,
    Preset,
    identity,
    wanted_presets,
)
from ai.backend.kvcache.metrics.indicators import INDICATORS

WANTED = wanted_presets()


class TestQueries:
    def test_one_for_each_figure(self) -> None:
        assert len({preset.name for preset in WANTED}) == len(INDICATORS)
        assert WANTED[0].name == "KV cache: util"

    @pytest.mark.parametrize("preset", WANTED, ids=lambda preset: str(preset.name))
    def test_the_manager_takes_it(self, preset: Preset) -> None:
        validate_query_template(preset.query_template)

    def test_what_the_manager_makes_of_one(self) -> None:
        template = escape_non_placeholders(WANTED[0].query_template)
        assert template.format(labels='project_id="p"', window="5m", group_by="session_id") == (
            'avg by (session_id)(backendai_container_utilization{project_id="p"} and '
            'backendai_container_utilization{container_metric_name="kvcache_util",'
            'value_type="current"})'
        )


class TestIdentity:
    def test_ours_by_their_names(self) -> None:
        assert identity(WANTED[0]) == "KV cache: util"
        assert identity(attrs.evolve(WANTED[0], name=f"{PREFIX}of an older version"))

    def test_others(self) -> None:
        assert identity(attrs.evolve(WANTED[0], name="CPU utilization")) is None
