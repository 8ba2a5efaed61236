"""Proves what memwal and the MemWAL writers need of a store, by trying it."""
