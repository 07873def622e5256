"""Controls for KV cache among the parameters that the manager knows of its engines."""

from __future__ import annotations

from typing import Any

from ..manager.changes import Kept, Needed
from ..manager.launcher import PREFIX, Control, Parameter, Variant, identity, needed
from .preset_store import PresetStore
from .registry import everything


def _parameter(item: Any, variant: Variant) -> Parameter:
    ui_option = item.ui_option and item.ui_option.model_dump(mode="json", exclude_none=True)
    return Parameter(
        variant,
        item.name,
        str(item.target_spec.preset_target),
        item.category,
        Control(
            key=item.target_spec.key,
            label=item.display_name or "",
            description=item.description or "",
            value_type=str(item.target_spec.value_type),
            ui_option=ui_option or {},
        ),
    )


def _content(parameter: Parameter) -> dict[str, Any]:
    """What is said of a parameter, new or not."""
    control = parameter.control
    return {
        "description": control.description,
        "value_type": control.value_type,
        "category": parameter.category,
        "display_name": control.label,
        "ui_option": control.ui_option,
    }


class LauncherStore(PresetStore[Parameter]):
    """As the manager's own clients for engines ("runtime variants") tell of them."""

    title = "launcher"

    def __init__(self, registry: Any) -> None:
        self._presets = registry.runtime_variant_preset
        self._variants = registry.runtime_variant

    async def _all_variants(self) -> list[Variant]:
        from ai.backend.common.dto.manager.v2.runtime_variant.request import (
            SearchRuntimeVariantsInput,
        )

        found = await everything(
            lambda limit, offset: self._variants.search(
                SearchRuntimeVariantsInput(limit=limit, offset=offset)
            )
        )
        return [Variant(item.id, item.name) for item in found]

    async def _called_as_ours(self, variants: list[Variant]) -> list[Kept[Parameter]]:
        from ai.backend.common.dto.manager.query import StringFilter
        from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
            RuntimeVariantPresetFilter,
            RuntimeVariantPresetOrder,
            SearchRuntimeVariantPresetsInput,
        )
        from ai.backend.common.dto.manager.v2.runtime_variant_preset.types import (
            RuntimeVariantPresetOrderField,
        )

        known = {variant.id: variant for variant in variants}
        found = await everything(
            lambda limit, offset: self._presets.search(
                SearchRuntimeVariantPresetsInput(
                    filter=RuntimeVariantPresetFilter(name=StringFilter(starts_with=PREFIX)),
                    order=[RuntimeVariantPresetOrder(field=RuntimeVariantPresetOrderField.RANK)],
                    limit=limit,
                    offset=offset,
                )
            )
        )
        # A variant that was deleted leaves its parameters behind.
        return [
            Kept(item.id, _parameter(item, known.get(variant_id, Variant(variant_id, "?"))))
            for item in found
            for variant_id in (item.runtime_variant_id,)
        ]

    async def ours(self) -> list[Kept[Parameter]]:
        kept = await self._called_as_ours(await self._all_variants())
        ours = [one for one in kept if identity(one.preset) is not None]
        return sorted(ours, key=lambda one: one.preset.variant.name)

    async def needed(self) -> Needed[Parameter]:
        variants = await self._all_variants()
        return needed(await self._called_as_ours(variants), variants)

    async def create(self, preset: Parameter) -> None:
        from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
            CreateRuntimeVariantPresetInput,
        )

        await self._presets.create(
            CreateRuntimeVariantPresetInput.model_validate({
                "runtime_variant_id": preset.variant.id,
                "name": preset.name,
                "preset_target": preset.target,
                "key": preset.control.key,
                **_content(preset),
            })
        )

    async def update(self, kept: Kept[Parameter]) -> None:
        from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
            UpdateRuntimeVariantPresetInput,
        )

        await self._presets.update(
            kept.id,
            UpdateRuntimeVariantPresetInput.model_validate({
                "id": kept.id,
                **_content(kept.preset),
            }),
        )

    async def delete(self, kept: Kept[Parameter]) -> None:
        await self._presets.delete(kept.id)

    def named(self, preset: Parameter) -> tuple[str, str]:
        return f"{preset.variant.name}: {preset.control.label}", preset.control.description
