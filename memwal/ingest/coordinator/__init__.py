"""The write coordinator: epochs, watermarks, who waits for them. Generic, and without Lance.

What it writes and where is its caller's: `shards.py` beside this folder has a MemWAL table's.
"""
