"""Merging a backlog into a base table: against a user's loop, the floor, Spark, and deletes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from bench.harness import Bench, run_memwal
from bench.merging import (
    Merged,
    floor,
    merge_copy,
    pending_uris,
    plain_merge,
    survivors,
    user_loop,
)
from bench.tables import flush, make_base, new_shards, pending, rows_of

TITLE = "Merge"

BASE_ROWS = 1_000_000
GENERATIONS = 10
GENERATION_ROWS = 50_000
TOMBSTONES = 200_000


def run(bench: Bench) -> None:
    """B1 and B3."""
    # These are quick, and a first run is a slow one.
    bench.rounds = max(2 if bench.quick else 3, bench.rounds)
    plain = bench.new_folder("merge") / "plain"
    make_base(plain, BASE_ROWS)
    pending(plain, new_shards(1), GENERATIONS, GENERATION_ROWS, BASE_ROWS)
    indexed = bench.copy(plain)
    lance.dataset(str(indexed)).create_scalar_index("id", "BTREE")
    _against_loop_and_floor(bench, plain, indexed)
    _on_spark(bench, indexed)
    shutil.rmtree(plain.parent)
    _tombstones(bench)


def _against_loop_and_floor(bench: Bench, plain: Path, indexed: Path) -> None:
    rows = survivors(pending_uris(plain))
    ours: list[Merged] = []
    merge_copy(bench, indexed, [])
    seconds = bench.side_by_side(
        {
            "memwal": lambda: merge_copy(bench, indexed, ours),
            "loop": _on_copy(bench, indexed, user_loop),
            "floor": _on_copy(
                bench, indexed, lambda table, uris: floor(table, uris, rows, table / "out")
            ),
            "pylance": _on_copy(bench, indexed, lambda table, uris: plain_merge(table, uris, rows)),
            "memwal, no index": lambda: merge_copy(bench, plain, []),
            "loop, no index": _on_copy(bench, plain, user_loop),
            "command": lambda: _command(bench, indexed),
        }
    )
    what = "merge, against a loop of merge_insert (key with a BTREE)"
    costs = ours[-1].costs(rows.nbytes)
    bench.ratio("B1", what, seconds, "memwal", "loop", inverse=True, at_least=6, costs=costs)
    what = "merge, against reading, writing and scanning once"
    bench.ratio("B1", what, seconds, "memwal", "floor")
    what = "merge, against reading and pylance's merge_insert of rows folded beforehand"
    bench.ratio("B1", what, seconds, "memwal", "pylance", at_most=1.1)
    what = "merge, against the loop, no index on the key"
    bench.ratio("B1", what, seconds, "memwal, no index", "loop, no index", inverse=True)
    bench.figure("B1", "memwal merge, the whole command", seconds["command"], "s")


def _on_copy(
    bench: Bench, origin: Path, work: Callable[[Path, list[str]], None]
) -> Callable[[], float]:
    def timed() -> float:
        table = bench.copy(origin)
        uris = pending_uris(table)
        started = time.perf_counter()
        work(table, uris)
        seconds = time.perf_counter() - started
        shutil.rmtree(table)
        return seconds

    return timed


def _command(bench: Bench, origin: Path) -> float:
    table = bench.copy(origin)
    seconds = run_memwal("merge", table, "--engine", "local").seconds
    shutil.rmtree(table)
    return seconds


def _on_spark(bench: Bench, origin: Path) -> None:
    from memwal.run.engines.spark import SparkEngine

    engine = SparkEngine(master="local[2,3]")
    try:
        merge_copy(bench, origin, [], engine=engine)
        seconds = bench.side_by_side(
            {
                "local": lambda: merge_copy(bench, origin, []),
                "spark": lambda: merge_copy(bench, origin, [], engine=engine),
            }
        )
    finally:
        engine.stop()
    bench.figure(
        "B1",
        "merge on a warm Spark local[2], beyond 1.15x of the local engine",
        max(0.0, seconds["spark"] - 1.15 * seconds["local"]),
        "s",
        at_most=1,
        measured="{spark:.3g} s against {local:.3g} s".format(**seconds),
    )


def _tombstones(bench: Bench) -> None:
    """The same generations with and without deletes, of keys that nothing else in them names."""
    without = bench.new_folder("tombstones") / "without"
    make_base(without, BASE_ROWS)
    deleting = bench.copy(without)
    shard = new_shards(1)[0]
    rng = np.random.default_rng(3)
    keys = rng.permutation(BASE_ROWS)
    doomed = np.array_split(keys[:TOMBSTONES], GENERATIONS)
    for number in range(GENERATIONS):
        new = GENERATION_ROWS // 2
        old = rng.choice(keys[TOMBSTONES:], GENERATION_ROWS - new, replace=False)
        fresh = BASE_ROWS + number * new + np.arange(new)
        rows = rows_of(np.concatenate([old, fresh]), number)
        flush(without, shard, rows)
        flush(deleting, shard, rows, doomed[number])
    seen: list[Merged] = []
    merged = survivors(pending_uris(without))
    deleted = pa.table({"id": keys[:TOMBSTONES]})
    seconds = bench.side_by_side(
        {
            "with": lambda: merge_copy(bench, deleting, seen),
            "without": lambda: merge_copy(bench, without, []),
            "pylance with": _on_copy(
                bench, deleting, lambda table, uris: plain_merge(table, uris, merged, deleted)
            ),
            "pylance without": _on_copy(
                bench, without, lambda table, uris: plain_merge(table, uris, merged)
            ),
        }
    )
    what = f"merge with {TOMBSTONES:,} tombstones, against without"
    costs = seen[-1].costs(merged.nbytes)
    bench.ratio("B3", what, seconds, "with", "without", costs=costs)
    what = "reading, and pylance's merge_insert for rows and another for deletes, against without"
    bench.ratio("B3", what, seconds, "pylance with", "pylance without")
    bench.figure(
        "B3",
        "what tombstones cost a merge, against what they cost pylance",
        (seconds["with"] / seconds["without"])
        / (seconds["pylance with"] / seconds["pylance without"]),
        "x",
        at_most=1.0,
    )
