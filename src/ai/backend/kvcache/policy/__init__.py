"""Who gets KV cache, and with which settings."""
