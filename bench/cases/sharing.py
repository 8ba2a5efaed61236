"""Many small shards: commits that they share against one commit each (B13)."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from bench.harness import Bench
from bench.merging import Merged, merge_copy
from bench.tables import make_base, new_shards, pending
from memwal.jobs.merge.plan import MergeLimits

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
    seen: dict[str, list[Merged]] = {"shared": [], "alone": []}
    seconds = bench.side_by_side(
        {
            way: partial(merge_copy, bench, table, seen[way], limits=limits[way])
            for way in ("shared", "alone")
        }
    )
    last = seen["shared"][-1]
    what = f"{shards} shards of {ROWS} rows that share commits, against one commit each"
    costs = last.costs(shards * ROWS * 160)
    bench.ratio("B13", what, seconds, "shared", "alone", inverse=True, at_least=1.0, costs=costs)
    bench.figure(
        "B13",
        f"commits, of {shards} shards",
        sum(m.commits - m.commits_shared for m in last.merges),
        "",
        at_most=shards,
    )
