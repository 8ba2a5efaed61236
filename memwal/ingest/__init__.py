"""Writing through the MemWAL: the `ingest` command, and the write coordinator behind it.

job          tables in, report out
plan         what is asked for, and which files a round takes; pure
apply        one table's ingest: everything that is done, in its order
unit         one shard's staged rows, written in a thread or on an executor
report       its part of the document
show         what people see of it
sources      source files: found, and read in chunks
splits       the parts that a track reads
chunks       batches -> chunks of so many rows; pure
shape        source rows -> rows of the table's own schema
findings     which values of a chunk can't be; pure
csv_text     the same of CSV, whose reader gives up at the first
marks        chunks that know of rows that are left out; pure
places       the line, or the row group, of a row
sieve        the rows of a chunk that can be written, and those set aside
rejects      the file of rows that were set aside
check        looks at sources before anything is written
corrected    goes on with sources that were mended
digest       a digest of rows by their values; pure
spark        rows staged by Spark, before any is written
spark_writer the writing half of the Spark data source
staged_round rows that its tasks stored, and whether it is their turn; pure
blocks       what goes through its shuffle; pure
forecast     what a dry run tells
table        the table's columns, routing and limits
backlog      waits, or merges, while too many generations are pending
track        one track of an ingest, from its source to its end
resume       writers that skip what is written already
ports        what the coordinator is generic over: deltas, flush handlers, time
epochs       epochs, the two watermarks and who waits for them; pure
broadcast    the one current snapshot and its subscribers
commands     what callers ask of it, and what it waits for
coordinator  the coordinator itself: one task that owns all state
blocking     the same for callers without an event loop
operations   rows with deletes among them -> calls of a writer; pure
routing      rows -> shards, by the table's shard spec; pure
strangers    shards that may hold rows of others' values, and how that is found out
shards       the coordinator's delta and flush handler for a MemWAL table
given        rows of programs, dicts too -> Arrow; pure
writer       these together, for programs: `open_writer`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.ingest.coordinator.blocking import BlockingCoordinator
from memwal.ingest.coordinator.commands import Reached, State
from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import (
    Closed,
    CoordinatorLimits,
    Delta,
    Flushed,
    FlushFailed,
    FlushHandler,
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
    # Imported when asked for: the coordinator alone needs no Lance.
    from memwal.ingest import writer

    return getattr(writer, name)
