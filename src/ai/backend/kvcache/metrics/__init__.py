"""From an engine's metrics page to what an operator watches."""
