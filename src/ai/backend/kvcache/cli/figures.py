"""Figures for people."""

from __future__ import annotations

from collections.abc import Mapping

from ..metrics.indicators import INDICATORS, Unit
from ..sizes import GIB, MIB

_UNITS = {indicator.key: indicator.unit for indicator in INDICATORS}


def _bytes(value: float) -> str:
    unit, name = (GIB, "GiB") if value >= GIB else (MIB, "MiB")
    return f"{value / unit:.2f} {name}"


def _seconds(value: float, digits: int = 3) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if value >= 2 * unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.{digits}f} s"


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


def cell_text(figures: Mapping[str, float], key: str) -> str:
    """One of a session's figures in a table; a dash where it is not known."""
    return figure_text(figures[key], _UNITS[key]) if key in figures else "-"


def age_text(seconds: float) -> str:
    """An age, of which fractions of a second say nothing."""
    return _seconds(seconds, digits=0)
