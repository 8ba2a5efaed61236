"""Change a table's columns while rows wait in its MemWAL."""
