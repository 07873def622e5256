"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], text: Sequence[int] = (0,)) -> str:
    """Rows with columns as wide as they have to be.

    Args:
        rows: of the same length each.
        text: the columns that are aligned to the left; all others are numbers.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
