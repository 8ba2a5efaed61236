"""The process itself: signals, logs, memory, start, and its endpoint for metrics and probes.

Nothing here opens a table.
"""
