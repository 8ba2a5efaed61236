"""Shows the state of a table's MemWAL."""
