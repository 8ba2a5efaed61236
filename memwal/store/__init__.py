"""The only storage I/O of the package."""

import os

# Lance logs an error about its own MemWAL index, which has no fields, at each commit and each
# search, and what a writer raises. It takes this where it is imported after memwal, and nobody has
# chosen otherwise.
os.environ.setdefault("LANCE_LOG", "warn,lance::index=off,lance::dataset::mem_wal=off")
