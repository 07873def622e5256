from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import pytest
from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
    CreateRuntimeVariantPresetInput,
)

from ai.backend.kvcache.engine.command import Program
from ai.backend.kvcache.manager.changes import Kept
from ai.backend.kvcache.manager.launcher import (
    PREFIX,
    Parameter,
    Variant,
    controls_of,
    identity,
    needed,
    wanted_parameters,
)
from ai.backend.kvcache.policy.request import read_request

VLLM = Variant(UUID(int=1), "vllm")
SGLANG = Variant(UUID(int=2), "sglang")
CUSTOM = Variant(UUID(int=3), "custom")
VARIANTS = (CUSTOM, VLLM, SGLANG)

WANTED = wanted_parameters(VARIANTS)
SWITCH = WANTED[0]

#: What the WebUI's controls send when somebody uses them. A check box is JavaScript's String() of
#: true or false.
SENT = {
    "BACKENDAI_KVCACHE": ("true", "false"),
    "BACKENDAI_KVCACHE_FOLDER": ("my-kv",),
    "BACKENDAI_KVCACHE_TRANSPORT": ("auto", "gds", "posix"),
    "BACKENDAI_KVCACHE_BUFFER": ("24GiB", "24g", "auto"),
    "BACKENDAI_KVCACHE_CPU": ("64GiB", "off", "auto"),
}


def kept(number: int, parameter: Parameter) -> Kept[Parameter]:
    return Kept(UUID(int=number), parameter)


def changed(parameter: Parameter, **control: Any) -> Parameter:
    return attrs.evolve(parameter, control=attrs.evolve(parameter.control, **control))


class TestControls:
    def test_those_of_vllm(self) -> None:
        assert [control.key for control in controls_of(Program.VLLM)] == list(SENT)

    def test_nothing_of_gds_where_no_adapter_has_it(self) -> None:
        assert [control.key for control in controls_of(Program.SGLANG)] == [
            "BACKENDAI_KVCACHE",
            "BACKENDAI_KVCACHE_FOLDER",
            "BACKENDAI_KVCACHE_CPU",
        ]

    @pytest.mark.parametrize("parameter", WANTED, ids=lambda p: f"{p.variant.name}-{p.name}")
    def test_the_manager_takes_it(self, parameter: Parameter) -> None:
        control = parameter.control
        CreateRuntimeVariantPresetInput.model_validate({
            "runtime_variant_id": parameter.variant.id,
            "name": parameter.name,
            "preset_target": parameter.target,
            "value_type": control.value_type,
            "key": control.key,
            "category": parameter.category,
            "display_name": control.label,
            "ui_option": control.ui_option,
        })

    @pytest.mark.parametrize(
        ("variable", "value"), [(k, value) for k, values in SENT.items() for value in values]
    )
    def test_what_it_sends_is_understood(self, variable: str, value: str) -> None:
        read_request({variable: value})

    def test_what_the_check_box_means(self) -> None:
        assert read_request({SWITCH.control.key: "true"}).wanted is True
        assert read_request({SWITCH.control.key: "false"}).wanted is False

    def test_choices_of_a_select(self) -> None:
        transport = next(p for p in WANTED if p.control.key == "BACKENDAI_KVCACHE_TRANSPORT")
        values = [item["value"] for item in transport.control.ui_option["choices"]["items"]]
        assert values == ["auto", "gds", "posix"]


class TestWanted:
    def test_of_variants_that_the_manager_has(self) -> None:
        # Five of vLLM, three of SGLang, none of the custom variant.
        assert len(WANTED) == 8
        assert [p.variant for p in WANTED] == [VLLM] * 5 + [SGLANG] * 3
        assert {p.category for p in WANTED} == {"kv_cache"}

    def test_all_are_found_by_their_name(self) -> None:
        assert SWITCH.name == PREFIX == "backendai-kvcache"
        assert all(p.name.startswith(PREFIX) for p in WANTED)
        assert len({(p.variant, p.name) for p in WANTED}) == 8


class TestIdentity:
    def test_ours_whatever_they_look_like(self) -> None:
        moved = attrs.evolve(changed(SWITCH, label="KV"), category="environment")
        assert identity(moved) == identity(SWITCH) == (VLLM.id, "backendai-kvcache")

    @pytest.mark.parametrize(
        "other",
        [
            attrs.evolve(SWITCH, target="args"),
            attrs.evolve(SWITCH, name="backendai-kvcache-of-our-team"),
            changed(SWITCH, key="--backendai-kvcache"),
            changed(attrs.evolve(SWITCH, name="hf-token-env"), key="HF_TOKEN"),
        ],
    )
    def test_others(self, other: Parameter) -> None:
        assert identity(other) is None


class TestNeeded:
    def test_nothing_there(self) -> None:
        result = needed([], VARIANTS)
        assert result.changes.create == WANTED
        assert (result.changes.update, result.changes.delete, result.notes) == ((), (), ())

    def test_twice(self) -> None:
        have = [kept(i, parameter) for i, parameter in enumerate(WANTED)]
        result = needed(have, VARIANTS)
        assert (result.changes.create, result.changes.update, result.changes.delete) == (
            (),
            (),
            (),
        )
        assert len(result.changes.same) == 8

    def test_of_an_older_version(self) -> None:
        old = changed(SWITCH, label="KV", description="", ui_option={})
        gone = changed(
            attrs.evolve(SWITCH, name="backendai-kvcache-gone"), key="BACKENDAI_KVCACHE_GONE"
        )
        result = needed([kept(1, old), kept(2, gone)], [VLLM])
        assert result.changes.update == (kept(1, SWITCH),)
        assert result.changes.delete == (kept(2, gone),)
        assert len(result.changes.create) == 4

    def test_a_variant_that_is_not_there(self) -> None:
        result = needed([], [VLLM])
        assert len(result.changes.create) == 5
        assert result.notes == ("this manager has no variant sglang",)

    def test_a_variant_that_was_deleted_with_ours_in_it(self) -> None:
        orphan = attrs.evolve(SWITCH, variant=Variant(UUID(int=9), "?"))
        assert needed([kept(1, orphan)], VARIANTS).changes.delete == (kept(1, orphan),)

    def test_a_name_that_somebody_else_has(self) -> None:
        theirs = attrs.evolve(SWITCH, target="args")
        result = needed([kept(1, theirs)], VARIANTS)
        assert SWITCH not in result.changes.create
        assert len(result.changes.create) == 7
        assert (result.changes.update, result.changes.delete) == ((), ())
        assert result.notes == (
            "vllm has a parameter backendai-kvcache of somebody else's, which stays",
        )
