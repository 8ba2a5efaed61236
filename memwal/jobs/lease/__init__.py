"""Breaks a lease by hand."""
