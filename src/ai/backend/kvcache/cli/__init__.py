"""``backend.ai kvcache`` and ``python -m ai.backend.kvcache``: one file for each command."""

from __future__ import annotations

import io
import sys

import click

from .doctor import doctor
from .indicators import indicators
from .plan import plan
from .presets import presets
from .status import status


@click.group()
def kvcache() -> None:
    """KV cache folders for LLM inference sessions."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets another in its place, not a traceback.
            stream.reconfigure(errors="replace")


kvcache.add_command(doctor)
kvcache.add_command(plan)
kvcache.add_command(indicators)
kvcache.add_command(presets)
kvcache.add_command(status)
