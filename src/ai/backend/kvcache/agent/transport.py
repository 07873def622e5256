"""How a session's engine really reaches its folder."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from ..engine.adapter import Transport
from ..gds.host import DEVICE_NAMES, DRIVER


class EffectiveTransport(IntEnum):
    """As the figure ``kvcache_transport`` has it."""

    POSIX = 1
    GDS_COMPATIBLE = 2
    """cuFile's compatible mode: the calls are GPUDirect's, and data goes through host memory."""
    GDS = 3


def effective_transport(planned: Transport, pid: int) -> EffectiveTransport:
    """What a container has. cuFile falls back by itself, and says so in its own log only.

    Args:
        planned: the way of the session's adapter.
        pid: of a process in the container, as the host counts.

    Raises:
        OSError: there is no such process.
    """
    if planned is not Transport.GDS:
        return EffectiveTransport.POSIX
    devices = Path(f"/proc/{pid}/root/dev")
    devices.stat()
    if DRIVER.exists() and any(devices.glob(DEVICE_NAMES)):
        return EffectiveTransport.GDS
    return EffectiveTransport.GDS_COMPATIBLE
