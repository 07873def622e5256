"""The one device by which Backend.AI calls the plugin for every kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal

from ai.backend.agent.alloc_map import AbstractAllocMap, DeviceSlotInfo, DiscretePropertyAllocMap
from ai.backend.agent.resources import AbstractComputeDevice
from ai.backend.common.types import (
    AcceleratorMetadata,
    DeviceId,
    DeviceName,
    SlotName,
    SlotTypes,
)

KEY = DeviceName("kvcache")
SLOT = SlotName("kvcache.device")
_DEVICE_ID = DeviceId("kvcache")

METADATA: AcceleratorMetadata = {
    "slot_name": str(SLOT),
    "description": "KV cache folder",
    "human_readable_name": "KV Cache",
    "display_unit": "KV Cache",
    "number_format": {"binary": False, "round_length": 0},
    "display_icon": "storage",
}


class KVCacheDevice(AbstractComputeDevice):
    """Not hardware: a slot of type UNIFIED attaches it to every kernel by itself."""


def list_devices() -> Collection[AbstractComputeDevice]:
    return [
        KVCacheDevice(
            device_id=_DEVICE_ID,
            hw_location="",
            memory_size=0,
            processing_units=0,
            device_name=KEY,
        )
    ]


def is_requested(device_alloc: Mapping[SlotName, Mapping[DeviceId, Decimal]]) -> bool:
    """Whether a callback is for the slot as a session requested it.

    The agent attaches the device twice to such a session: as requested, and, with nothing
    allocated, as to every other.
    """
    return any(device_alloc.get(SLOT, {}).values())


def create_alloc_map() -> AbstractAllocMap:
    return DiscretePropertyAllocMap(
        device_slots={_DEVICE_ID: DeviceSlotInfo(SlotTypes.UNIFIED, SLOT, Decimal(1))},
        exclusive_slot_types=set(),
    )
