"""The only storage I/O of the package."""
