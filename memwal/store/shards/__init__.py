"""What lies below `_mem_wal/`: manifests, the WAL, fencing, writers, what is remembered of them.

Nothing here commits to the base table, which is for `tables/`.
"""
