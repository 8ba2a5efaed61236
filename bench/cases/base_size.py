"""The same backlog into bases of different sizes (B4)."""

from __future__ import annotations

import shutil
from statistics import median

import lance

from bench.harness import Bench
from bench.merging import Merged, merge_copy
from bench.tables import make_base, new_shards, pending

TITLE = "Base size"

ROWS = 20_000
GENERATIONS = 4
BASES = (100_000, 1_000_000, 10_000_000)
_ROUNDS = 9  # of some 50 ms each, where five left a third of noise


def run(bench: Bench) -> None:
    """B4."""
    by_base: dict[int, float] = {}
    seen: list[Merged] = []
    for base in BASES:
        table = bench.new_folder("base") / "table"
        make_base(table, base, dim=0)
        lance.dataset(str(table)).create_scalar_index("id", "BTREE")
        pending(table, new_shards(1), GENERATIONS, ROWS // GENERATIONS, base, dim=0)
        merge_copy(bench, table, [])
        by_base[base] = median(merge_copy(bench, table, seen) for _ in range(_ROUNDS))
        shutil.rmtree(table)
    small, large = BASES[0], BASES[-1]
    bench.figure(
        "B4",
        f"{ROWS:,} rows into {large:,}, against into {small:,}",
        by_base[large] / by_base[small],
        "x",
        at_most=5,
        measured=f"{by_base[large]:.3g} s against {by_base[small]:.3g} s",
        costs=seen[-1].costs(ROWS * 40),
    )
    bench.plot(
        "base-size",
        "a merge",
        "rows in the base",
        "seconds",
        [*by_base.items()],
        log=True,
    )
