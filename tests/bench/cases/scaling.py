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
    kinds = (("half new keys", 0.5, 1.7), ("updates only", 0.0, None))
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

    seconds: dict[int, list[float]] = {1: [], 2: []}
    seen: dict[int, list[Merged]] = {1: [], 2: []}
    for number in range(bench.rounds):
        for cores in (1, 2) if number % 2 == 0 else (2, 1):
            engine = SparkEngine(master=f"local[{cores},3]")
            try:
                merge_copy(bench, table, [], engine=engine)
                seconds[cores].append(merge_copy(bench, table, seen[cores], engine=engine))
            finally:
                engine.stop()
    one, two = (statistics.median(seconds[cores]) for cores in (1, 2))
    last = seen[2][-1]
    bench.figure(
        "B2",
        f"{SHARDS} shards on local[2], against local[1] ({name})",
        one / two,
        "x",
        at_least=target,
        measured=f"{two:.3g} s against {one:.3g} s",
        costs=last.costs(rows * 160),
    )
    bench.figure(
        "B2",
        f"commits, of {SHARDS} shards ({name})",
        sum(m.commits - m.commits_shared for m in last.merges),
        "",
        at_most=SHARDS,
    )
