"""Rows as the table takes them: their shape, what can't be written, and what is set aside.

Nothing here writes to a table; `rejects` writes the file of rows that were set aside.
"""
