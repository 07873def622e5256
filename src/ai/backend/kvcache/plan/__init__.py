"""What a session gets, and why."""
