"""Flushes the WAL of a shard whose writer is gone."""
