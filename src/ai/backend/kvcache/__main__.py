"""The commands where no Backend.AI client is installed."""

from .cli import kvcache

kvcache(prog_name="python -m ai.backend.kvcache")
