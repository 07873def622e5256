"""Figures for people."""

from __future__ import annotations

from ..metrics.indicators import Unit
from ..sizes import GIB, MIB


def _bytes(value: float) -> str:
    unit, name = (GIB, "GiB") if value >= GIB else (MIB, "MiB")
    return f"{value / unit:.2f} {name}"


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
            return f"{value:.3f} s"
        case Unit.PER_SECOND:
            return f"{value:.2f} /s"
        case Unit.YES:
            return "yes" if value else "no"
        case Unit.TOKENS | Unit.FILES | Unit.COUNT:
            return f"{value:,.0f}"
