"""Makes a Lance table ready for MemWAL writers, or says what stops it."""
