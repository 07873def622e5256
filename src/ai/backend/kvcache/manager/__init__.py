"""What the manager is asked to keep."""
