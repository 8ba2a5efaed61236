"""Deletes what is provably unused."""
