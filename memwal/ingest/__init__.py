"""Writing through the MemWAL: the `ingest` command, and the write coordinator behind it.

job           the `ingest` command: tables in, report out
plan          the request, and the plan of a round; pure
apply         one table's ingest: every step, in order
track         one track of an ingest, from its source to its end; units of staged rows
target        the table's columns, routing and limits; shards that overlap
routing       rows -> shards, by the table's shard spec; pure
shards        the coordinator's delta and flush handler for a MemWAL table
check         checks sources before anything is written; what a dry run reports
report, show  the ingest's part of the document, and how it is displayed
writer        the writer for programs: `open_writer`

sources       finds source files, and reads them in chunks
values        source rows -> rows of the table, and what can't be written
progress      how far an ingest is, and what of it is written already
coordinator   the write coordinator; generic, without Lance
spark         rows staged by Spark, and the writing half of the Spark data source
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.ingest.coordinator.blocking import BlockingCoordinator
from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import (
    Closed,
    CoordinatorLimits,
    Delta,
    Flushed,
    FlushFailed,
    FlushHandler,
    Reached,
    State,
)

if TYPE_CHECKING:
    from memwal.ingest.writer import TableWriter, open_writer

__all__ = [
    "BlockingCoordinator",
    "Closed",
    "CoordinatorLimits",
    "Delta",
    "FlushFailed",
    "FlushHandler",
    "Flushed",
    "Reached",
    "State",
    "TableWriter",
    "WriteCoordinator",
    "open_writer",
]


def __getattr__(name: str) -> object:
    if name not in ("TableWriter", "open_writer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported lazily: the coordinator alone needs no Lance.
    from memwal.ingest import writer

    return getattr(writer, name)
