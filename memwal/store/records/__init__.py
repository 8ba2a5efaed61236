"""What memwal itself writes down, below `_maintenance/`: lease, runs, checkpoints, ingests.

Readers of a table need none of it, and nothing here decides what may be deleted.
"""
