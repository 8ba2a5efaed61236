"""Extends the base table's indexes over the rows that merges added."""
