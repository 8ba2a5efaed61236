"""`memwal demo`: makes a table with a live MemWAL, and runs the jobs on it through the Python API.

It plays the user's part: the table is written by pylance itself, as a user's writers would.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID

import lance
import pyarrow as pa

from memwal.api import Table, open_table
from memwal.config import EngineName
from memwal.errors import EXIT_FAILED, Refused
from memwal.grid import format_size
from memwal.report import FAILED, JobReport, TableReport, sum_up
from memwal.run.engines.launcher import check_spark, find_obstacle

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


def run_demo(
    folder: Path | None,
    tell: Callable[[str], None],
    *,
    engine: str | None,
    master: str | None,
) -> JobReport:
    """Make a table in `folder` (None: a new temporary one) and run the jobs on it, telling a story.

    `engine` is Spark by default, if that can be started. Raises Unsupported, before anything is
    made, if Spark is asked for and can't be.
    """
    if engine == "spark":
        check_spark()
    place = folder or Path(tempfile.mkdtemp(prefix="memwal-demo-")) / "table"

    def say(heading: str, *lines: str) -> None:
        tell("\n   ".join((heading, *lines)))

    here = open_table(str(place), engine="local")
    used = engine or ("auto" if find_obstacle() else "spark")
    merging = open_table(str(place), engine=cast(EngineName, used), master=master)
    say(
        f"1. A table with a live MemWAL, written by pylance: {place}",
        f"{BASE_ROWS:,} base rows. {SHARDS} writers put, updated and deleted rows in {GENERATIONS} "
        "sessions each;",
        "each left a flushed generation under _mem_wal/. The base table has none of that yet.",
    )
    made = make_table(place)
    before = _describe(here, made)
    say(
        "2. memwal merge: generations are folded into the base, oldest first",
        "The newest row of a key wins and tombstones delete. Each shard's progress moves in the",
        "same commit as its rows, so a crash can't lose or double any.",
    )
    reports: list[TableReport] = [merging.merge()]
    say("3. memwal index-catchup: the indexes cover what merging added")
    reports.append(here.index_catchup())
    say("4. memwal snapshot: readers find all shards in one place")
    reports.append(here.snapshot())
    say(
        "5. memwal garbage: what is merged, indexed and out of time travel goes",
        "Generations are dropped from the shard manifests, and after a grace their files are",
        "deleted. Here retention and grace are nothing; 7 days and 1 hour are usual.",
    )
    for _ in range(2):
        report = here.garbage(
            execute=True, retention_seconds=0, grace_seconds=0, wal=True, allow_short_retention=True
        )
        freed = format_size(report.bytes_freed)
        say(f"   {report.dropped} dropped, {report.deleted} deleted, {freed} freed")
        reports.append(report)
    after = _describe(here, made)
    say(
        "6. Before and after",
        *(f"{name:<30}{was:>12} -> {after[name]}" for name, was in before.items()),
    )
    say(
        f"Look around: memwal status {place} | memwal verify {place} | memwal inspect shard {place}"
    )
    outcome, code = sum_up(reports)
    differences = count_differences(made)
    error = f"{differences} keys differ" if differences else None
    return JobReport(
        job="demo",
        outcome=FAILED if error else outcome,
        exit_code=EXIT_FAILED if error else code,
        error=error,
        tables=tuple(reports),
    )


def _describe(table: Table, made: DemoTable) -> dict[str, str]:
    sizes = {"base": 0, "generations": 0, "wal": 0}
    for file in Path(made.uri).rglob("*"):
        if file.is_file():
            parts = file.relative_to(made.uri).parts
            inside = "wal" if "wal" in parts[2:3] else "generations"
            sizes[inside if parts[0] == "_mem_wal" else "base"] += file.stat().st_size
    pending = sum(len(shard.pending_generations) for shard in table.status().shards)
    return {
        "keys unlike what was written": f"{count_differences(made):,}",
        "pending generations": f"{pending:,}",
        "generations, bytes": format_size(sizes["generations"]),
        "WAL, bytes": format_size(sizes["wal"]),
        "base table, bytes": format_size(sizes["base"]),
    }
