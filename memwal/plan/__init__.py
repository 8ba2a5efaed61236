"""Decides. Pure: view + limits + now -> a frozen plan."""
