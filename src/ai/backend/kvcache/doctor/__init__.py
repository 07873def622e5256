"""What a host lacks for KV caches, and how to put it right."""
