"""The same backlog into bases of different sizes, and whether the join is chosen well (B4)."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import lance

from bench.harness import Bench
from bench.merging import Merged, merge_copy
from bench.tables import make_base, new_shards, pending
from memwal.jobs.merge import unit as _units
from memwal.jobs.merge.plan import JoinCosts, MergeLimits

TITLE = "Base size"

ROWS = 20_000
FEW_ROWS = 200
GENERATIONS = 4
BASES = (100_000, 1_000_000, 10_000_000)
ALLOWED = MergeLimits(index_join_allowed=True)
# Costs that settle the choice beforehand.
_INDEX_ONLY = {"index_seconds": 0.0, "index_seconds_per_source_row": 0.0}
_SCAN_ONLY = {"index_allowed": False}


def run(bench: Bench) -> None:
    """B4."""
    by_base: dict[int, dict[str, float]] = {}
    seen: list[Merged] = []
    for base in BASES:
        table = bench.new_folder("base") / "table"
        make_base(table, base, dim=0)
        lance.dataset(str(table)).create_scalar_index("id", "BTREE")
        if base == BASES[-1]:
            few = bench.copy(table)
        pending(table, new_shards(1), GENERATIONS, ROWS // GENERATIONS, base, dim=0)
        by_base[base] = _seconds(bench, table, seen)
        shutil.rmtree(table)
    pending(few, new_shards(1), 1, FEW_ROWS, BASES[-1], dim=0)
    _choice(bench, _seconds(bench, few, []), f"{FEW_ROWS} rows into {BASES[-1]:,}")
    small, large = BASES[0], BASES[-1]
    costs = seen[-1].costs(ROWS * 40)
    for name, what in (("default", "scan join, the default"), ("chosen", "--allow-index-join")):
        bench.figure(
            "B4",
            f"{ROWS:,} rows into {large:,}, against into {small:,} ({what})",
            by_base[large][name] / by_base[small][name],
            "x",
            at_most=5,
            measured=f"{by_base[large][name]:.3g} s against {by_base[small][name]:.3g} s",
            costs=costs,
        )
        bench.plot(
            "base-size",
            what,
            "rows in the base",
            "seconds",
            [(base, seconds[name]) for base, seconds in by_base.items()],
            log=True,
        )
    for base, seconds in by_base.items():
        _choice(bench, seconds, f"{ROWS:,} rows into {base:,}")


def _choice(bench: Bench, seconds: dict[str, float], what: str) -> None:
    """What choosing costs, and what the default, which never takes the index, costs."""
    best = min(seconds["scan"], seconds["index"])
    bench.figure(
        "B4",
        f"the chosen join, against the better fixed one, {what}",
        seconds["chosen"] / best,
        "x",
        at_most=1.1,
        measured=", ".join(f"{name} {value:.3g} s" for name, value in seconds.items()),
    )


def _seconds(bench: Bench, table: Path, seen: list[Merged]) -> dict[str, float]:
    """Medians: by default, with the index join allowed, and with either join alone."""

    def fixed(join: str, costs: dict[str, float]) -> float:
        runs: list[Merged] = []
        with mock.patch.object(
            _units, "JoinCosts", lambda **given: JoinCosts(**{**given, **costs})
        ):
            taken = merge_copy(bench, table, runs, limits=ALLOWED)
        if {name for m in runs[-1].merges for name in m.joins} != {join}:
            raise RuntimeError(f"not joined by {join}: {runs[-1].results}")
        return taken

    merge_copy(bench, table, [])
    return bench.side_by_side(
        {
            "default": lambda: merge_copy(bench, table, seen),
            "chosen": lambda: merge_copy(bench, table, [], limits=ALLOWED),
            "scan": lambda: fixed("scan", _SCAN_ONLY),
            "index": lambda: fixed("index", _INDEX_ONLY),
        },
        rounds=9,  # of some 50 ms each, where five left a third of noise
    )
