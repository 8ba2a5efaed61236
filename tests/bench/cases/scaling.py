"""Shards side by side on Spark: two cores against one (B2)."""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

from tests.bench.harness import Bench
from tests.bench.merging import Merged, merge_copy
from tests.bench.tables import make_base, new_shards, pending

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
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    seen: dict[str, list[Merged]] = {way: [] for way in ways}
    for number in range(bench.rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            tasks, held_to = ways[way]
            os.sched_setaffinity(0, held_to)
            engine = SparkEngine(master=f"local[{tasks},3]")
            try:
                merge_copy(bench, table, [], engine=engine)
                seconds[way].append(merge_copy(bench, table, seen[way], engine=engine))
            finally:
                engine.stop()
                os.sched_setaffinity(0, cores)
    medians = {way: statistics.median(taken) for way, taken in seconds.items()}
    last = seen["two"][-1]
    bench.ratio(
        "B2",
        f"{SHARDS} shards on local[2] and two cores, against local[1] and one ({name})",
        medians,
        "two",
        "one",
        inverse=True,
        at_least=target,
        costs=last.costs(rows * 160),
    )
    bench.ratio(
        "B2",
        f"{SHARDS} shards on local[2], against local[1] with both cores ({name})",
        medians,
        "two",
        "one task",
        inverse=True,
    )
    bench.figure(
        "B2",
        f"commits, of {SHARDS} shards ({name})",
        sum(m.commits - m.commits_shared for m in last.merges),
        "",
        at_most=SHARDS,
    )
