"""Opens shards through pylance's own writer: the one place that takes a writer's epoch."""

from __future__ import annotations

import re
from typing import Any

from memwal.errors import Corruption, LostRace, MemWalError, Refused, StoreUnavailable, Unsupported
from memwal.model import ShardId
from memwal.store.table import LanceTables, is_panic, is_unsupported, tidy_text

# What pylance 14.0.2 says, in the order in which it is asked: a fenced replay names the WAL too.
_SEALED = re.compile(r"is sealed", re.IGNORECASE)
_FENCED = re.compile(r"fenced|claimed epoch", re.IGNORECASE)
_BAD_WAL = re.compile(r"WAL (entry|IPC|replay)", re.IGNORECASE)


class LanceShardWriters:
    """The ShardWriters port over pylance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def claim(
        self, shard_id: ShardId, *, memtable_rows_max: int, memtable_batches_max: int
    ) -> LanceClaimedShard:
        """Open a writer: the next epoch, a sentinel, the replay (see the port)."""
        where = f"{self._tables.uri}: shard {shard_id}"
        try:
            writer = self._tables.shard_writer(
                shard_id,
                max_memtable_rows=memtable_rows_max,
                max_memtable_batches=memtable_batches_max,
            )
            return LanceClaimedShard(where, writer, int(writer.memtable_stats()["row_count"]))
        except (OSError, ValueError, RuntimeError) as error:
            raise _named(where, error) from None
        except BaseException as error:
            if is_panic(error):
                raise _named(where, error) from None
            raise


class LanceClaimedShard:
    """The ClaimedShard port: an open writer."""

    def __init__(self, where: str, writer: Any, rows: int) -> None:
        self._where = where
        self._writer = writer
        self._rows = rows

    @property
    def rows(self) -> int:
        """Rows that were replayed and not flushed yet."""
        return self._rows

    def flush(self) -> None:
        """Close the writer, which flushes (see the port)."""
        try:
            self._writer.close()
        except (OSError, ValueError, RuntimeError) as error:
            raise _named(self._where, error) from None
        except BaseException as error:
            if is_panic(error):
                raise _named(self._where, error) from None
            raise


def _named(where: str, error: BaseException) -> MemWalError:
    text = tidy_text(error)
    if _SEALED.search(text):
        return Refused(f"{where} is SEALED: no writer may claim it")
    if _FENCED.search(text):
        return LostRace(
            f"{where}: another writer claimed it meanwhile, and has replayed the same rows ({text})"
        )
    if _BAD_WAL.search(text):
        return Corruption(f"{where}: its WAL can't be replayed: {text}")
    if is_unsupported(text):
        return Unsupported(f"{where}: {text}")
    return StoreUnavailable(f"{where}: {text}; its rows are in the WAL as before")
