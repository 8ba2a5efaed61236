"""The process itself: signals, logs, memory, start.

Nothing here opens a table.
"""
