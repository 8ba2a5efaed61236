"""Writing through the MemWAL: the write coordinator, and what it writes with.

protocols    what the coordinator is generic over: deltas, flush handlers, time
epochs       epochs, the two watermarks and who waits for them; pure
broadcast    the one current snapshot and its subscribers
commands     what callers ask of it, and what it waits for
coordinator  the coordinator itself: one task that owns all state
blocking     the same for callers without an event loop
operations   rows with deletes among them -> calls of a writer; pure
routing      rows -> shards, by the table's shard spec; pure
strangers    shards whose rows may be of values that others hold, and what tells
shards       the coordinator's delta and flush handler for a MemWAL table
writer       these together, for programs: `open_writer`
line_up      source rows -> rows of the table's own schema
resume       writers that pass over what is written already
splits       the parts that a track reads
run          one track of an ingest, from its source to its end
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwal.ingest.blocking import BlockingCoordinator
    from memwal.ingest.commands import Reached, State
    from memwal.ingest.coordinator import WriteCoordinator
    from memwal.ingest.ports import (
        Closed,
        CoordinatorLimits,
        Delta,
        Flushed,
        FlushFailed,
        FlushHandler,
    )
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

_IN_MODULE = {
    "BlockingCoordinator": "blocking",
    "Reached": "commands",
    "State": "commands",
    "WriteCoordinator": "coordinator",
    "TableWriter": "writer",
    "open_writer": "writer",
}


def __getattr__(name: str) -> object:
    # Imported when asked for: the coordinator alone needs no Lance.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_IN_MODULE.get(name, 'protocols')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
