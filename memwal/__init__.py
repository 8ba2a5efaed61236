"""memwal keeps Lance and LanceDB tables healthy, and merges their MemWAL.

    import memwal

    table = memwal.open_table("s3://lake/events", {"aws_region": "eu-west-1"})
    table.merge()

docs/guides/python.md has all of the Python API, README.md beside this file the map of the package.
"""

__version__ = "0.1.0"
DISTRIBUTION = "lance-memwal"

# Stands in for `typing.TYPE_CHECKING`, whose import takes longer than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from memwal.api import Table, open_table, shard_of
    from memwal.errors import MemWalError
    from memwal.jobs.audit.report import AuditTableReport
    from memwal.jobs.backup.plan import BackupTableReport
    from memwal.jobs.checkpoint.report import CheckpointTableReport
    from memwal.jobs.compaction.plan import CompactionTableReport
    from memwal.jobs.erase.report import EraseTableReport
    from memwal.jobs.garbage.report import GarbageTableReport
    from memwal.jobs.index_catchup.plan import IndexCatchupTableReport
    from memwal.jobs.maintain.report import MaintainTableReport
    from memwal.jobs.merge.report import MergeTableReport
    from memwal.jobs.repair.report import RepairTableReport
    from memwal.jobs.restore.plan import RestoreTableReport
    from memwal.jobs.schema.report import SchemaTableReport
    from memwal.jobs.snapshot.plan import SnapshotTableReport
    from memwal.jobs.status.report import StatusTableReport
    from memwal.jobs.verify.report import VerifyTableReport
    from memwal.read import Nearest, Search
    from memwal.report import CursorReport

__all__ = [
    "AuditTableReport",
    "BackupTableReport",
    "CheckpointTableReport",
    "CompactionTableReport",
    "CursorReport",
    "EraseTableReport",
    "GarbageTableReport",
    "IndexCatchupTableReport",
    "MaintainTableReport",
    "MemWalError",
    "MergeTableReport",
    "Nearest",
    "RepairTableReport",
    "RestoreTableReport",
    "SchemaTableReport",
    "Search",
    "SnapshotTableReport",
    "StatusTableReport",
    "Table",
    "VerifyTableReport",
    "open_table",
    "shard_of",
]


def __getattr__(name: str) -> object:
    """Import the API when it is first used, so that `import memwal` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Nearest", "Search"):
        from memwal import read

        return getattr(read, name)
    from memwal import api

    return getattr(api, name)
