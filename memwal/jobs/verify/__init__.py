"""Checks the invariants of a table at rest."""
