"""Figures for people."""

from __future__ import annotations

from ..metrics.indicators import Unit
from ..sizes import GIB, MIB


def _bytes(value: float) -> str:
    unit, name = (GIB, "GiB") if value >= GIB else (MIB, "MiB")
    return f"{value / unit:.2f} {name}"


def _seconds(value: float) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if value >= 2 * unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.3f} s"


def figure_text(value: float, unit: Unit) -> str:
    """One figure with its unit."""
    match unit:
        case Unit.PERCENT:
            return f"{value:.1f} %"
        case Unit.BYTES:
            return _bytes(value)
        case Unit.BYTES_PER_SECOND:
            return f"{_bytes(value)}/s"
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.PER_SECOND:
            return f"{value:.2f} /s"
        case Unit.YES:
            return "yes" if value else "no"
        case Unit.TOKENS | Unit.FILES | Unit.COUNT | Unit.CODE:
            return f"{value:,.0f}"
