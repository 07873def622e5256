"""``indicators``: what two saved metrics pages of one engine say about its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from ..metrics.indicators import INDICATORS, engine_indicators
from ..metrics.interval import between
from ..metrics.reading import Reading, read_page
from ..sizes import MIB
from .figures import figure_text
from .table import table
from .types import InputError, Seconds

#: No engine's page is larger; a file that is was meant for something else.
_MAX_BYTES = 256 * MIB

_PAGE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _read(path: Path) -> Reading:
    """One saved page.

    Raises:
        InputError: it is none.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        return read_page(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(ValueError(f"{path} is no metrics page: {e}")) from e


def _text(values: Mapping[str, float]) -> str:
    rows = [
        (i.key, figure_text(values[i.key], i.unit), i.meaning)
        for i in INDICATORS
        if i.key in values
    ]
    return table(rows, text=(0, 2)) if rows else "The pages have no metrics of an engine."


@click.command()
@click.argument("before", type=_PAGE)
@click.argument("after", type=_PAGE)
@click.option(
    "--seconds",
    type=Seconds(),
    required=True,
    help="Time between the two pages.",
)
@click.option("--json", "as_json", is_flag=True, help="A flat object of numbers, for programs.")
def indicators(before: Path, after: Path, seconds: float, as_json: bool) -> None:
    """What an engine did between two saved pages of its metrics.

    BEFORE and AFTER are pages of the same engine, as `curl http://…/metrics` saves them. Where
    LMCache has a page of its own, put it behind the engine's in the same file. What the pages do
    not tell is left out. Tokens loaded and seconds saved are since the engine's start. Where the
    engine was started again in between, counts are since then, and there are no rates.
    """
    values = engine_indicators(between(_read(before), _read(after), seconds))
    click.echo(json.dumps(values, indent=2) if as_json else _text(values))
