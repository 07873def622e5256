from __future__ import annotations

from uuid import UUID

import attrs
import pytest
from ai.backend.common.dto.manager.v2.prometheus_query_preset.validators import (
    escape_non_placeholders,
    validate_query_template,
)

from ai.backend.kvcache.manager.presets import (
    PREFIX,
    Kept,
    Preset,
    changes,
    wanted_presets,
)
from ai.backend.kvcache.metrics.indicators import INDICATORS

WANTED = wanted_presets()


def kept(number: int, preset: Preset) -> Kept:
    return Kept(UUID(int=number), preset)


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


class TestChanges:
    def test_nothing_there(self) -> None:
        needed = changes([], WANTED)
        assert needed.create == WANTED
        assert (needed.update, needed.delete, needed.same) == ((), (), ())

    def test_twice(self) -> None:
        have = [kept(i, preset) for i, preset in enumerate(WANTED)]
        needed = changes(have, WANTED)
        assert (needed.create, needed.update, needed.delete) == ((), (), ())
        assert len(needed.same) == len(WANTED)

    def test_of_an_older_version(self) -> None:
        old = attrs.evolve(WANTED[0], query_template="1", rank=3)
        gone = attrs.evolve(WANTED[0], name=f"{PREFIX}of an older version")
        needed = changes([kept(1, old), kept(2, gone)], WANTED[:1])
        assert needed.create == ()
        assert needed.update == (kept(1, WANTED[0]),)
        assert needed.delete == (kept(2, gone),)

    def test_there_twice(self) -> None:
        needed = changes([kept(1, WANTED[0]), kept(2, WANTED[0])], WANTED[:1])
        assert needed.same == (kept(1, WANTED[0]),)
        assert needed.delete == (kept(2, WANTED[0]),)

    def test_others_are_left_alone(self) -> None:
        others = kept(1, attrs.evolve(WANTED[0], name="CPU utilization"))
        assert changes([others], []).delete == ()
