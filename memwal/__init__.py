"""memwal keeps the MemWAL write tier of Lance tables healthy: one folder a job, one word a stage.

The rooms, lowest first: `model`, `errors` (values) · `format/` (names and bytes of what is
stored) · `rows/` (which row of a key wins) · `sharding/` · `store/` (shared storage I/O) · `run/`
(a job over many tables) · `jobs/`, `read/`, `ingest/` · `cli/` · `testing/` (fakes).
"""

__version__ = "0.1.0"
DISTRIBUTION = "lance-memwal"
