"""Converts rows to the table's columns, and finds and sets aside what can't be written.

Nothing here writes to a table; `writable_rows` writes the file of rows that were set aside.
"""
