"""Refreshes the shard snapshot and counts in the MemWAL index."""
