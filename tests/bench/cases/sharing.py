"""Many small shards: commits that they share against one commit each (B13)."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from memwal.jobs.merge.plan import MergeLimits
from tests.bench.harness import Bench
from tests.bench.merging import Merged, merge_copy
from tests.bench.tables import make_base, new_shards, pending

TITLE = "Shards that share commits"

ROWS = 200


def run(bench: Bench) -> None:
    """B13."""
    for shards in (8, 64) if bench.quick else (8, 64, 256):
        table = bench.new_folder("sharing") / "table"
        make_base(table, 1_000_000)
        pending(table, new_shards(shards), 1, ROWS, 1_000_000, new_share=0.5)
        _compare(bench, table, shards)
        shutil.rmtree(table)


def _compare(bench: Bench, table: Path, shards: int) -> None:
    limits = {"shared": MergeLimits(), "alone": MergeLimits(shards_per_commit_max=1)}
    seconds: dict[str, list[float]] = {"shared": [], "alone": []}
    seen: dict[str, list[Merged]] = {"shared": [], "alone": []}
    for number in range(bench.rounds):
        for way in limits if number % 2 == 0 else reversed(limits):
            seconds[way].append(merge_copy(bench, table, seen[way], limits=limits[way]))
    shared, alone = (statistics.median(seconds[way]) for way in ("shared", "alone"))
    last = seen["shared"][-1]
    bench.figure(
        "B13",
        f"{shards} shards of {ROWS} rows that share commits, against one commit each",
        alone / shared,
        "x",
        at_least=1.0,
        measured=f"{shared:.3g} s against {alone:.3g} s",
        costs=last.costs(shards * ROWS * 160),
    )
    bench.figure(
        "B13",
        f"commits, of {shards} shards",
        sum(m.commits - m.commits_shared for m in last.merges),
        "",
        at_most=shards,
    )
