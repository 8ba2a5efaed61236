"""Merge, index catch-up, snapshot and garbage, in order."""
