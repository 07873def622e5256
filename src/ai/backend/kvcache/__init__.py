"""KV cache folders for LLM inference sessions on Backend.AI."""

__version__ = "0.1.0.dev0"
