"""One file for each way to keep KV cache in a folder. Each has an ``ADAPTER``."""
