"""Keeps a moment of a table until it is dropped or expires."""
