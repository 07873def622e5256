"""GPUDirect Storage: what a host has for it, and what of that a container needs."""
