"""``backend.ai kvcache`` and ``python -m ai.backend.kvcache``: one file for each command."""

from __future__ import annotations

import click

from .plan import plan


@click.group()
def kvcache() -> None:
    """KV cache folders for LLM inference sessions."""


kvcache.add_command(plan)
