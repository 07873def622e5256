"""How an engine is told: environment, files and arguments."""
