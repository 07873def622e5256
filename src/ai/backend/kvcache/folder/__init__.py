"""What lies in a KV folder."""
