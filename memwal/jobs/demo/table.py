"""Makes a real table with a live MemWAL, the way a user's writers would; for `memwal demo`.

It plays the user's part, so it talks to pylance itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa

from memwal.errors import Refused

BASE_ROWS = 20_000
DIMENSIONS = 16
SHARDS = 3
GENERATIONS = 6
ROWS_PER_GENERATION = 400
DELETES_PER_GENERATION = 40
_KEY = {"lance-schema:unenforced-primary-key": "true"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoTable:
    """The table that was made, and what a reader should find in it after every merge."""

    uri: str
    expected: dict[int, str]


def make_table(folder: Path, seed: int = 7) -> DemoTable:
    """Write a keyed, indexed table and let three MemWAL writers update, insert and delete.

    Raises Refused when the folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Refused(
            "MW-D01", f"{folder} is not empty; the demo only writes into a new or empty folder"
        )
    chance = random.Random(seed)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata=_KEY),
            pa.field("note", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
        ]
    )
    uri = str(folder)
    expected = dict.fromkeys(range(BASE_ROWS), "base")
    dataset = lance.write_dataset(_rows(schema, list(expected), "base", chance), uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("note", "BTREE")
    dataset.initialize_mem_wal()
    for shard in range(SHARDS):
        shard_id = str(UUID(int=chance.getrandbits(128), version=4))
        for generation in range(1, GENERATIONS + 1):
            _session(dataset, schema, shard_id, shard, generation, expected, chance)
    return DemoTable(uri=uri, expected=expected)


def _session(
    dataset: lance.LanceDataset,
    schema: pa.Schema,
    shard_id: str,
    shard: int,
    generation: int,
    expected: dict[int, str],
    chance: random.Random,
) -> None:
    """One writer session; closing it flushes a generation. A key belongs to shard `id % SHARDS`."""
    keys = range(shard, BASE_ROWS + 3000, SHARDS)
    written = chance.sample(keys, ROWS_PER_GENERATION)
    deleted = chance.sample(keys, DELETES_PER_GENERATION)
    note = f"shard {shard} generation {generation}"
    with dataset.mem_wal_writer(shard_id) as writer:
        writer.put(_rows(schema, written, note, chance))
        writer.delete(pa.table({"id": pa.array(deleted, pa.int64())}))
    expected.update(dict.fromkeys(written, note))
    for key in deleted:
        expected.pop(key, None)


def _rows(schema: pa.Schema, keys: list[int], note: str, chance: random.Random) -> pa.Table:
    values = [chance.random() for _ in range(DIMENSIONS)]
    return pa.table(
        [
            pa.array(keys, pa.int64()),
            pa.array([note] * len(keys)),
            pa.array([values] * len(keys), schema.field("vector").type),
        ],
        schema=schema,
    )


def count_differences(table: DemoTable) -> int:
    """How many keys of the base table differ from what the writers wrote, by a full scan."""
    found = lance.dataset(table.uri).scanner(columns=["id", "note"]).to_table()
    rows = dict(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True))
    missing = len(found) - len(rows)
    keys = rows.keys() | table.expected.keys()
    return int(missing + sum(rows.get(key) != table.expected.get(key) for key in keys))
