"""What one token of context costs, and which weights computed it."""
