"""Writing through the MemWAL: the `ingest` command, and the write coordinator behind it.

request       what one may ask of an ingest: its options, declared once
job           the `ingest` command: tables in, report out
plan          the id of an ingest, and the plan of a round; pure
apply         one table's ingest: every step, in order
track         one track of an ingest, from its source to its end; units of staged rows
target        the table's columns, routing and limits; shards that overlap
routing       rows -> shards, by the table's shard spec; pure
shards        the coordinator's delta and flush handler for a MemWAL table
check         checks sources before anything is written; what a dry run reports
report        the ingest's part of the document, and how it is displayed
writer        the writer for programs: `open_writer`
coordinator   the write coordinator; generic, without Lance

sources       finds source files, and reads them in chunks
values        source rows -> rows of the table, and what can't be written
progress      how far an ingest is, and what of it is written already
spark         rows staged by Spark, and the writing half of the Spark data source
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwal.ingest.coordinator import Closed, CoordinatorLimits, FlushFailed
    from memwal.ingest.writer import TableWriter, open_writer

__all__ = ["Closed", "CoordinatorLimits", "FlushFailed", "TableWriter", "open_writer"]


def __getattr__(name: str) -> object:
    """Import what programs use when they first use it; a command line needs only requests."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "writer" if name in ("TableWriter", "open_writer") else "coordinator"
    return getattr(import_module(f"memwal.ingest.{home}"), name)
