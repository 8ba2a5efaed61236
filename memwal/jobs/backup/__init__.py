"""Copies one moment of a table to another place, and looks after what is there."""
