"""B9: reading a table with 200 pending generations, before and after they are merged.

In this process, memwal's read stands beside pylance's LsmScanner. Both open the table anew and find
out what is pending with the same code (LsmScanner has none of its own), within the time. A process
keeps what it has opened of generations, so the first read by key of one stands by itself. The key
has a BTREE index, which is caught up after the merge. What they return is compared outside of the
time: memwal's rows have to be those of the merged table, or the case fails; rows that LsmScanner
gets wrong are told.

On Spark, the merging read stands beside a plain read of the merged table, to which the time to read
the pending keys is added.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.mem_wal import LsmScanner, ShardSnapshot

from bench.harness import Bench, run_memwal, run_process
from bench.tables import make_base, new_shards, pending
from memwal.read import ReadableTable, open_table

TITLE = "Reading with pending generations"

SHARDS = 4
GENERATIONS = 50  # of each shard
CASE = "B9"


@dataclass(frozen=True)
class Shape:
    """A read: as memwal takes it, and as LsmScanner does."""

    name: str
    ours: dict[str, Any]
    filter: str | None = None
    columns: tuple[str, ...] = ()
    is_slow: bool = False


KEY = 4_321
SHAPES = (
    Shape("all columns", {}, is_slow=True),
    Shape("two columns", {"columns": ["id", "v"]}, columns=("id", "v"), is_slow=True),
    Shape("filter, 0.1 % of the rows", {"filter": "v < 0.001"}, "v < 0.001"),
    Shape("filter, a few rows", {"filter": "v < 0.00005"}, "v < 0.00005"),
    Shape("by key", {"key": {"id": KEY}}, f"id = {KEY}"),
)


def run(bench: Bench) -> None:
    """B9."""
    rows, of_generation = (20_000, 200) if bench.quick else (300_000, 1_000)
    before, after = _tables(bench, rows, of_generation)
    generations = SHARDS * GENERATIONS
    bench.say(f"{rows:,} rows, {generations} generations of {of_generation:,}")
    times: dict[tuple[str, str, str], float] = {}
    for state, table in (("before", before), ("after", after)):
        for shape in SHAPES:
            slow = shape.is_slow and state == "before"
            seconds, found = _side_by_side(bench, table, shape, slow=slow)
            for reader, taken in seconds.items():
                times[state, shape.name, reader] = taken
            what = f"{shape.name}, {state} the merge: memwal against LsmScanner"
            costs = _compared(found, after, shape)
            bench.ratio(CASE, what, seconds, "memwal", "LsmScanner", at_most=1.1, costs=costs)
    for shape in SHAPES:
        if shape.name in _GAINS:
            _gain(bench, shape, before, after, times)
    _handle(bench, before, after)
    _first(bench, before, after)
    _growth(bench, before, times)
    _spark(bench, before, after)


def _tables(bench: Bench, rows: int, of_generation: int) -> tuple[Path, Path]:
    """The table with everything pending, and a copy in which all is merged."""
    before = bench.new_folder("read") / "before"
    make_base(before, rows).create_scalar_index("id", index_type="BTREE")
    pending(before, new_shards(SHARDS), GENERATIONS, of_generation, rows)
    return before, _merged(bench, before, GENERATIONS)


def _merged(bench: Bench, table: Path, until: int) -> Path:
    target = bench.copy(table)
    run_memwal("merge", target, "--until-generation", str(until), "--engine", "local")
    run_memwal("index-catchup", target, "--engine", "local")
    return target


# -- in this process


def _side_by_side(
    bench: Bench, table: Path, shape: Shape, *, slow: bool
) -> tuple[dict[str, float], dict[str, pa.Table]]:
    """Median seconds of both, and what they found; LsmScanner runs once where it takes long."""
    found: dict[str, pa.Table] = {}

    def keeping(name: str, read: Callable[[Path, Shape], pa.Table]) -> Callable[[], None]:
        def call() -> None:
            found[name] = read(table, shape)

        return call

    runs = {"memwal": keeping("memwal", _ours), "LsmScanner": keeping("LsmScanner", _theirs)}
    if slow:
        seconds = bench.side_by_side({"memwal": runs["memwal"]})
        return seconds | bench.side_by_side({"LsmScanner": runs["LsmScanner"]}, 1), found
    for warm in runs.values():
        warm()
    return bench.side_by_side(runs, 3 if bench.quick else 11), found


def _ours(table: Path, shape: Shape) -> pa.Table:
    return open_table(str(table)).read(**shape.ours).read_all()


def _theirs(table: Path, shape: Shape) -> pa.Table:
    snapshots = []
    for shard in open_table(str(table)).views.at(None).shards:
        snapshot = ShardSnapshot(shard.shard_id)
        for generation in shard.pending:
            snapshot = snapshot.with_sstable(generation.generation, generation.path)
        snapshots.append(snapshot)
    scanner = LsmScanner.from_snapshots(lance.dataset(str(table)), snapshots)
    if shape.columns:
        scanner = scanner.project(list(shape.columns))
    if shape.filter is not None:
        scanner = scanner.filter(shape.filter)
    return scanner.to_table()


def _compared(found: dict[str, pa.Table], merged: Path, shape: Shape) -> dict[str, float]:
    """How many rows LsmScanner gets wrong. Raises RuntimeError where memwal does."""
    columns = list(shape.columns) or None
    truth = lance.dataset(str(merged)).to_table(columns=columns, filter=shape.filter)
    if wrong := _differing(found["memwal"], truth):
        raise RuntimeError(f"{shape.name}: memwal's read has {wrong} wrong rows")
    wrong = _differing(found["LsmScanner"], truth)
    return {"rows": len(truth), "wrong rows of LsmScanner": wrong}


def _differing(found: pa.Table, truth: pa.Table) -> int:
    """Rows too many or too few; else the most values of a column that are not the truth's."""
    if len(found) != len(truth):
        return abs(len(found) - len(truth))
    left, right = (table.select(truth.column_names).sort_by("id") for table in (found, truth))
    worst = 0
    for name in truth.column_names:
        if not left[name].equals(right[name]):
            plain = not pa.types.is_nested(left[name].type)
            equal = pc.sum(pc.equal(left[name], right[name])).as_py() if plain else 0
            worst = max(worst, len(truth) - equal)
    return worst


# How much longer a read may take before the merge.
_GAINS = {"all columns": 2.0, "by key": 5.0}


def _gain(
    bench: Bench,
    shape: Shape,
    before: Path,
    after: Path,
    times: dict[tuple[str, str, str], float],
) -> None:
    """What a merge gains: memwal's reads in turns, as a process takes longer for its first few."""
    tables = {"before": before, "after": after}
    seconds = bench.side_by_side(
        {state: partial(_ours, table, shape) for state, table in tables.items()},
        3 if bench.quick else 11,
    )
    what = f"{shape.name} with memwal: before against after the merge"
    bench.ratio(CASE, what, seconds, "before", "after", at_most=_GAINS[shape.name])
    theirs = {state: times[state, shape.name, "LsmScanner"] for state in tables}
    what = f"{shape.name} with LsmScanner: before against after the merge"
    bench.ratio(CASE, what, theirs, "before", "after")


def _handle(bench: Bench, before: Path, after: Path) -> None:
    """A look-up by key in a table that stays open, which has been looked into once."""
    (shape,) = (shape for shape in SHAPES if shape.name == "by key")
    tables = {"before": open_table(str(before)), "after": open_table(str(after))}

    def look_up(table: ReadableTable) -> Callable[[], object]:
        return lambda: table.read(**shape.ours).read_all()

    calls = {name: look_up(table) for name, table in tables.items()}
    for call in calls.values():
        call()
    seconds = bench.side_by_side(calls, 3 if bench.quick else 11)
    what = "by key in a table that stays open: before against after the merge"
    bench.ratio(CASE, what, seconds, "before", "after", at_most=5)


_FIRST = """
import sys, time
from memwal.read import open_table
start = time.perf_counter()
open_table(sys.argv[1]).read(key={"id": int(sys.argv[2])}).read_all()
print(time.perf_counter() - start)
"""


def _first(bench: Bench, before: Path, after: Path) -> None:
    """The first look-up by key of a process, without its imports."""

    def look_up(table: Path) -> Callable[[], float]:
        words = [sys.executable, "-c", _FIRST, table, str(KEY)]
        return lambda: float(run_process(words).stdout)

    seconds = bench.side_by_side({"before": look_up(before), "after": look_up(after)})
    what = "by key, first in a process: before against after the merge"
    bench.ratio(CASE, what, seconds, "before", "after")


def _growth(bench: Bench, before: Path, times: dict[tuple[str, str, str], float]) -> None:
    """Time over the number of pending generations."""
    points: dict[str, list[tuple[int, float]]] = {}
    shapes = [shape for shape in SHAPES if shape.name in ("all columns", "by key")]
    steps = (25,) if bench.quick else (15, 30)
    for until in (0, *steps, GENERATIONS):
        state = {0: "before", GENERATIONS: "after"}.get(until, "")
        table = None if state else _merged(bench, before, until)
        for shape in shapes:
            for reader, read in (("memwal", _ours), ("LsmScanner", _theirs)):
                if reader == "LsmScanner" and shape.is_slow:
                    continue
                if table is None:
                    taken = times[state, shape.name, reader]
                else:
                    taken = _median(bench, lambda t=table, s=shape, r=read: r(t, s))
                name = f"{reader}, {shape.name}"
                left = SHARDS * (GENERATIONS - until)
                points.setdefault(name, []).append((left, taken))
    for name, found in points.items():
        bench.plot("read-generations", name, "pending generations", "seconds", found)


def _median(bench: Bench, call: Callable[[], object]) -> float:
    return bench.side_by_side({"": call}, rounds=3)[""]


# -- on Spark


def _spark(bench: Bench, before: Path, after: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from bench.plain_lance import PlainLance
    from memwal.read import spark as memwal_spark

    builder = SparkSession.builder.master("local[2]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        memwal_spark.register(session)
        session.dataSource.register(PlainLance)
        for name, options in _SPARK_SHAPES.items():
            _spark_shape(bench, session, name, options, (before, after))
    finally:
        session.stop()


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
_SPARK_SHAPES: dict[str, dict[str, str]] = {
    "all columns": {},
    "two columns": {"columns": "id,v"},
    "a filter, 1 % of the rows": {"columns": "id,v", "filter": "v < 0.01"},
}


def _spark_shape(
    bench: Bench, session: Any, name: str, options: dict[str, str], tables: tuple[Path, Path]
) -> None:
    before, after = tables

    def read(kind: str, table: Path, **more: str) -> Callable[[], None]:
        loaded = session.read.format(kind).options(**options, **more)
        return lambda: loaded.load(str(table)).write.format("noop").mode("overwrite").save()

    runs = {
        "memwal": read("memwal", before),
        "plain": read("plain_lance", after),
        "keys": lambda: _read_keys(before),
    }
    for warm in runs.values():
        warm()
    seconds = bench.side_by_side(runs, rounds=3 if bench.quick else 5)
    ours, plain, keys = seconds["memwal"], seconds["plain"], seconds["keys"]
    bench.figure(
        CASE,
        f"{name} on Spark: memwal against a plain read of the merged table and the keys",
        ours / (plain + keys),
        "x",
        at_most=3,
        measured=f"{ours:.3g} s against {plain:.3g} + {keys:.3g} s",
        costs=_sent(before),
    )
    if options and not bench.quick:
        looked_up = {"looked up": read("memwal", before, keys_bytes_max="1")}
        taken = bench.side_by_side(looked_up, rounds=1)["looked up"]
        bench.figure(
            CASE,
            f"{name} on Spark: the same with keys looked up by each task",
            taken / (plain + keys),
            "x",
            measured=f"{taken:.3g} s against {plain:.3g} + {keys:.3g} s",
        )


def _read_keys(table: Path) -> int:
    """The key column of each pending generation, one after the other."""
    found = 0
    for shard in open_table(str(table)).views.at(None).shards:
        for generation in shard.pending:
            path = table / "_mem_wal" / shard.shard_id / generation.path
            found += len(lance.dataset(str(path)).to_table(columns=["id"]))
    return found


def _sent(table: Path) -> dict[str, float]:
    """Bytes that the driver sends to each executor, and to the largest task besides."""
    from memwal.read.spark import MemWalDataSource

    source = MemWalDataSource({"path": str(table)})
    reader = source.reader(source.schema())
    parts = [len(pickle.dumps(part)) for part in reader.partitions()]
    return {
        "tasks": len(parts),
        "bytes to each executor": len(pickle.dumps(reader)),
        "bytes to the largest task": max(parts),
    }
