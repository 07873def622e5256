"""What is shown once, or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from .types import Seconds

watch_option = click.option("--watch", type=Seconds(), help="Shows it again and again.")


def show(make: Callable[[], str], watch: float | None, *, clear: bool) -> None:
    """Prints a text.

    Args:
        make: makes it anew each time.
        watch: seconds between one time and the next. None: it is printed once.
        clear: whether the one before is to leave the terminal.
    """
    while True:
        text = make()
        if watch is not None and clear:
            click.clear()
        click.echo(text)
        if watch is None:
            return
        time.sleep(watch)
