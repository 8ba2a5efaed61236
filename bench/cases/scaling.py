"""Shards side by side on Spark: two cores against one (B2)."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from bench.harness import Bench
from bench.merging import Merged, merge_copy
from bench.tables import make_base, new_shards, pending

TITLE = "Scaling"

SHARDS = 8
GENERATIONS = 4


def run(bench: Bench) -> None:
    """B2."""
    rows = 10_000 if bench.quick else 50_000
    kinds = (("half new keys", 0.5, 1.5), ("updates only", 0.0, None))
    for name, new_share, target in kinds[:1] if bench.quick else kinds:
        table = bench.new_folder("scaling") / "table"
        make_base(table, 1_000_000)
        pending(table, new_shards(SHARDS), GENERATIONS, rows, 1_000_000, new_share=new_share)
        # Set after the writers are done and before the JVM starts, from which Spark's workers get
        # their environment. Not LANCE_IO_THREADS=1 as well: Lance hangs with it.
        os.environ.update(LANCE_CPU_THREADS="1", OMP_NUM_THREADS="1")
        _scale(bench, table, name, SHARDS * GENERATIONS * rows, target)
        shutil.rmtree(table)


def _scale(bench: Bench, table: Path, name: str, rows: int, target: float | None) -> None:
    from memwal.run.engines.spark import SparkEngine

    # Lance's own threads use both cores on local[1] too, unless the processes are held to one.
    cores = os.sched_getaffinity(0)
    ways = {"two": (2, cores), "one": (1, {min(cores)}), "one task": (1, cores)}
    seen: dict[str, list[Merged]] = {way: [] for way in ways}

    def timed(way: str) -> float:
        tasks, held_to = ways[way]
        os.sched_setaffinity(0, held_to)
        engine = SparkEngine(master=f"local[{tasks},3]")
        try:
            merge_copy(bench, table, [], engine=engine)
            return merge_copy(bench, table, seen[way], engine=engine)
        finally:
            engine.stop()
            os.sched_setaffinity(0, cores)

    seconds = bench.side_by_side({way: partial(timed, way) for way in ways})
    last = seen["two"][-1]
    what = f"{SHARDS} shards on local[2] and two cores, against local[1] and one ({name})"
    costs = last.costs(rows * 160)
    bench.ratio("B2", what, seconds, "two", "one", inverse=True, at_least=target, costs=costs)
    what = f"{SHARDS} shards on local[2], against local[1] with both cores ({name})"
    bench.ratio("B2", what, seconds, "two", "one task", inverse=True)
    bench.figure(
        "B2",
        f"commits, of {SHARDS} shards ({name})",
        sum(m.commits - m.commits_shared for m in last.merges),
        "",
        at_most=SHARDS,
    )
