"""Writing through the MemWAL: the write coordinator, and what it writes with.

protocols    what the coordinator is generic over: deltas, flush handlers, time
epochs       epochs, the two watermarks and who waits for them; pure
broadcast    the one current snapshot and its subscribers
commands     what callers ask of it, and what it waits for
coordinator  the coordinator itself: one task that owns all state
blocking     the same for callers without an event loop
operations   rows with deletes among them -> calls of a writer; pure
routing      rows -> shards, by the table's shard spec; pure
shards       the coordinator's delta and flush handler for a MemWAL table
"""
