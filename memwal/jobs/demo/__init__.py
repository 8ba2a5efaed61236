"""Makes a real table and runs every job on it."""
