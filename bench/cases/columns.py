"""Merges of tables with many columns, and of long vectors, against pylance's own merge (B25)."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from bench.harness import Bench
from bench.merging import Merged, merge_copy, pending_uris, plain_merge, survivors
from bench.tables import KEY, flush, new_shards, rows_of

TITLE = "Many columns"

_CELLS = 1_000_000
_KEY = pa.field("id", pa.int64(), nullable=False, metadata=KEY)


def run(bench: Bench) -> None:
    """B25."""
    columns = (50, 500) if bench.quick else (50, 500, 5_000)
    taken = []
    for count in columns:
        rows = _CELLS // count
        made = [_numbers(np.arange(rows) + start, count) for start in (0, rows // 2, rows)]
        what = f"2 x {rows:,} rows of {count:,} columns into {rows:,}"
        taken.append(_against_pylance(bench, what, made))
    growth = {name: taken[-1][name] / taken[-2][name] for name in taken[-1]}
    bench.figure(
        "B25",
        f"growth of a merge's seconds, as many values in {columns[-1]:,} columns against "
        f"{columns[-2]:,}: against pylance's own",
        growth["memwal"] / growth["pylance"],
        "x",
        at_most=1.1,
        measured=", ".join(f"{name} {value:.1f}x" for name, value in growth.items()),
    )
    rows, dim = (2_000 if bench.quick else 20_000), 1_536
    made = [rows_of(np.arange(rows) + start, start, dim) for start in (0, rows // 2, rows)]
    _against_pylance(bench, f"2 x {rows:,} vectors of {dim:,} floats into {rows:,}", made)


def _numbers(ids: np.ndarray, count: int) -> pa.Table:
    values = np.random.default_rng(int(ids[0])).random((count - 1, len(ids)))
    fields = [_KEY, *(pa.field(f"c{number}", pa.float64()) for number in range(count - 1))]
    return pa.table([pa.array(ids), *map(pa.array, values)], schema=pa.schema(fields))


def _against_pylance(bench: Bench, what: str, made: list[pa.Table]) -> dict[str, float]:
    """Merge two generations into a base; returns the seconds of both."""
    base, *generations = made
    table = bench.new_folder("columns") / "table"
    lance.write_dataset(base, table).initialize_mem_wal()
    (shard,) = new_shards(1)
    for rows in generations:
        flush(table, shard, rows)
    uris = pending_uris(table)
    folded = survivors(uris)
    seen: list[Merged] = []
    runs = {
        "memwal": partial(merge_copy, bench, table, seen),
        "pylance": partial(_merge_plainly, bench, table, uris, folded),
    }
    seconds = bench.side_by_side(runs)
    bench.ratio(
        "B25", f"{what}, against reading and pylance's merge_insert of rows folded beforehand",
        seconds, "memwal", "pylance", at_most=1.1, costs=seen[-1].costs(folded.nbytes),
    )  # fmt: skip
    return seconds


def _merge_plainly(bench: Bench, table: Path, uris: list[str], folded: pa.Table) -> float:
    copy = bench.copy(table)
    started = time.perf_counter()
    plain_merge(copy, uris, folded)
    seconds = time.perf_counter() - started
    shutil.rmtree(copy)
    return seconds
