"""The write coordinator: epochs, watermarks and their waiters. Generic, and without Lance.

What is written, and where, is up to its caller: for a MemWAL table, `shards.py` beside this folder.
"""
