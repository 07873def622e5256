"""The agent's side: a compute plugin that captures, prepares and measures sessions."""
