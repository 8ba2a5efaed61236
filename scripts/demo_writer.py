"""Plays the users of `make airflow`: makes tables with a MemWAL, and goes on writing to them.

    python scripts/demo_writer.py FOLDER --make    make those that are not there yet, and end
    python scripts/demo_writer.py FOLDER           write until TERM or INT

Runs in the jobs' environment. A writer session is one flush: it leaves one generation behind.
"""

from __future__ import annotations

import argparse
import heapq
import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import lance
import pyarrow as pa

_KEY = {"lance-schema:unenforced-primary-key": "true"}
_DIMENSIONS = 16


@dataclass(frozen=True, kw_only=True)
class DemoTable:
    """A table of the demo, and how busy its writers are; a key belongs to shard `key % shards`."""

    name: str
    keys: int
    shards: int
    rows_per_flush: int
    seconds_between_flushes: float
    has_vectors: bool = False

    def uri(self, folder: Path) -> str:
        """The table's path."""
        return str(folder / self.name)

    def shard_id(self, shard: int) -> str:
        """A shard's id, the same at each start, so that a restart goes on with the same shards."""
        return str(uuid5(NAMESPACE_URL, f"memwal-demo/{self.name}/{shard}"))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the base table and of all rows that are written."""
        fields = [
            pa.field("id", pa.int64(), nullable=False, metadata=_KEY),
            pa.field("status", pa.string()),
            pa.field("amount", pa.float64()),
        ]
        if self.has_vectors:
            fields.append(pa.field("vector", pa.list_(pa.float32(), _DIMENSIONS)))
        return pa.schema(fields)

    def rows(self, keys: list[int], chance: random.Random) -> pa.Table:
        """Make random rows with these keys."""
        columns = {
            "id": keys,
            "status": [chance.choice(("new", "paid", "sent", "done")) for _ in keys],
            "amount": [round(chance.uniform(1, 500), 2) for _ in keys],
        }
        if self.has_vectors:
            columns["vector"] = [[chance.random() for _ in range(_DIMENSIONS)] for _ in keys]
        return pa.table(columns, schema=self.schema)


TABLES = (
    DemoTable(name="orders", keys=20_000, shards=3, rows_per_flush=200, seconds_between_flushes=4),
    DemoTable(
        name="products",
        keys=5_000,
        shards=2,
        rows_per_flush=100,
        seconds_between_flushes=11,
        has_vectors=True,
    ),
    DemoTable(
        name="customers", keys=3_000, shards=1, rows_per_flush=40, seconds_between_flushes=47
    ),
)


def make_missing(folder: Path) -> None:
    """Make the tables that do not exist yet, each with a base and indexes."""
    for table in TABLES:
        if (folder / table.name / "_versions").exists():
            continue
        rows = table.rows(list(range(table.keys)), random.Random(table.name))
        dataset = lance.write_dataset(rows, table.uri(folder))
        dataset.create_scalar_index("id", "BTREE")
        dataset.create_scalar_index("status", "BTREE")
        dataset.initialize_mem_wal()


def flush(table: DemoTable, folder: Path, shard: int, chance: random.Random) -> None:
    """One writer session: updates, some new keys, some deletes."""
    keys = range(shard, table.keys + table.keys // 4, table.shards)
    written = chance.sample(keys, table.rows_per_flush)
    deleted = chance.sample(keys, table.rows_per_flush // 20)
    with lance.dataset(table.uri(folder)).mem_wal_writer(table.shard_id(shard)) as writer:
        writer.put(table.rows(written, chance))
        writer.delete(pa.table({"id": pa.array(deleted, pa.int64())}))


def write(folder: Path, stopping: threading.Event) -> None:
    """Flush each table at its own interval, one shard after the other, until `stopping`."""
    chance = random.Random()
    due = [(0.0, position) for position in range(len(TABLES))]
    flushes = [0] * len(TABLES)
    now = 0.0
    while True:
        at, position = heapq.heappop(due)
        if stopping.wait(max(0.0, at - now)):
            return
        now = max(now, at)
        table = TABLES[position]
        try:
            flush(table, folder, flushes[position] % table.shards, chance)
            flushes[position] += 1
        except Exception as error:  # the demo goes on; the error is in the log
            print(f"{table.name}: {error}", flush=True)
        heapq.heappush(due, (now + table.seconds_between_flushes, position))


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    if arguments.make:
        make_missing(arguments.folder)
        return
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    write(arguments.folder, stopping)


if __name__ == "__main__":
    main()
