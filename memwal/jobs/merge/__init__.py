"""Folds flushed generations into the base table."""
