"""Upkeep of many small fragments against Lance's own calls, and over a day of writes (B24)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.harness import ROOT, Bench, run_process
from memwal.config import Config, resolve_table
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.run.progress import Silent
from tests.support.day import ROUNDS, keep_table

TITLE = "Upkeep"

_ROWS = 200
_DIM = 16
_LANCEDB = ROOT / ".venv-lancedb" / "bin" / "python"
_OPTIMIZE = """
import sys, time
from datetime import timedelta
import lancedb
table = lancedb.connect(sys.argv[1]).open_table("t")
started = time.perf_counter()
table.optimize(cleanup_older_than=timedelta(days=7))
print(time.perf_counter() - started)
"""


def run(bench: Bench) -> None:
    """B24."""
    _many_fragments(bench)
    _day(bench)


def _day(bench: Bench) -> None:
    """What stays of a day's writes, as a share of the most in its first half."""
    seen = keep_table(bench.new_folder("day") / "t")
    for name in seen[0]:
        most = max(found[name] for found in seen[: ROUNDS // 2])
        points = [(number / 4, 100 * found[name] / most) for number, found in enumerate(seen)]
        bench.plot("a day of writes", name, "hours", "% of the most in 12 hours", points)
        late = max(share for _, share in points[ROUNDS // 2 :]) / 100
        bench.figure("B24", f"{name} in the second half of a day", late, "x", at_most=1.2)


def _many_fragments(bench: Bench) -> None:
    """For some numbers of fragments; half of the rows are in the index."""
    for fragments in (100, 1_000) if bench.quick else (100, 1_000, 10_000):
        made = partial(bench.copy, _make(bench, fragments))
        runs = {"memwal": _maintain, "by hand": _by_hand}
        if _LANCEDB.exists():
            runs["LanceDB"] = _optimize
        seconds = bench.side_by_side(
            {name: partial(_call, work, made) for name, work in runs.items()}
        )
        for theirs in runs.keys() - {"memwal"}:
            what = f"compact, index and expire {fragments:,} fragments, against {theirs}"
            bench.ratio("B24", what, seconds, "memwal", theirs, at_most=1.1)


def _call(work: Callable[[Path], object], copy: Callable[[], Path]) -> object:
    uri = copy()
    started = time.perf_counter()
    told = work(uri)
    return told if isinstance(told, float) else time.perf_counter() - started


def _make(bench: Bench, fragments: int) -> Path:
    uri = bench.new_folder("upkeep") / "t.lance"
    half = fragments * _ROWS // 2
    lance.write_dataset(_rows(0, half), str(uri), max_rows_per_file=_ROWS)
    lance.dataset(str(uri)).create_scalar_index("id", "BTREE")
    lance.write_dataset(_rows(half, 2 * half), str(uri), max_rows_per_file=_ROWS, mode="append")
    return uri


def _rows(first: int, end: int) -> pa.Table:
    values = pa.array(np.random.default_rng(first).random((end - first) * _DIM, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, _DIM)
    return pa.table({"id": np.arange(first, end), "vector": vectors})


def _maintain(uri: Path) -> None:
    """The job as the command line runs it, in this process."""
    table = resolve_table(str(uri), Config(), {})
    request = MaintainRequest(compaction="always", retention_seconds=7 * 86_400)
    options = MaintainOptions(tables=[table], engine="local", request=request)
    assert run_maintain(options, Silent()).outcome == "done"
    _check(uri)


def _by_hand(uri: Path) -> None:
    dataset: Any = lance.dataset(str(uri))
    dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    dataset.cleanup_old_versions(timedelta(days=7))
    _check(uri)


def _optimize(uri: Path) -> float:
    return float(run_process([_LANCEDB, "-c", _OPTIMIZE, uri.parent]).stdout)


def _check(uri: Path) -> None:
    dataset: Any = lance.dataset(str(uri))
    assert len(dataset.get_fragments()) < 10
    assert dataset.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
