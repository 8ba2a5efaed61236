"""Processes that run memwal, and end with whoever waits for them."""
