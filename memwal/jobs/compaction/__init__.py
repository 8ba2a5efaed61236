"""Rewrites the small fragments that merging leaves."""
