"""Merge, compaction where it is asked for, index catch-up, snapshot and garbage, in order."""
