"""Shows what ran on a table."""
