"""Keeps tables fresh, as long as it runs."""
