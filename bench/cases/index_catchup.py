"""Index catch-up after a merge, against building the index anew (B8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.harness import Bench, folder_bytes
from bench.tables import KEY, flush, new_shards
from memwal.config import Config, resolve_table
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.index_catchup.plan import IndexCatchupTableReport
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.run.progress import Silent

TITLE = "Index catch-up"

_DIM = 32
_WORDS = np.array([f"word{number:04d}" for number in range(5000)])
_TARGETS = {"BTREE": 0.2, "INVERTED": 0.3, "IVF_PQ": 0.05}
_COLUMNS = {"BTREE": "id", "INVERTED": "text", "IVF_PQ": "vector"}
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), _DIM)),
    ]
)


def run(bench: Bench) -> None:
    """B8, for each type of index."""
    base, changed = (200_000, 10_000) if bench.quick else (1_000_000, 50_000)
    plain = _merged_table(bench, base, changed, partitions=64 if bench.quick else 256)
    for kind, at_most in _TARGETS.items():
        _compare(bench, plain, kind, f"{changed:,} rows merged into {base:,}", at_most)


def _rows(ids: Any, seed: int) -> pa.Table:
    """Random text of 8 words out of 5,000, and random vectors."""
    rng = np.random.default_rng(seed)
    words = _WORDS[rng.integers(0, len(_WORDS), (len(ids), 8))]
    text = pa.array([" ".join(line) for line in words])
    values = pa.array(rng.random(len(ids) * _DIM, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, _DIM)
    return pa.table([pa.array(ids, pa.int64()), text, vectors], schema=_SCHEMA)


def _merged_table(bench: Bench, base: int, changed: int, partitions: int) -> Path:
    """A table with an index of each type, then half updates and half new rows merged into it."""
    uri = bench.new_folder("catchup") / "table"
    lance.write_dataset(_rows(np.arange(base), 1), str(uri))
    lance.dataset(str(uri)).initialize_mem_wal()
    dataset = lance.dataset(str(uri))
    for kind in _TARGETS:
        _build(dataset, kind, partitions)
    rng = np.random.default_rng(5)
    old = rng.choice(base, changed // 2, replace=False)
    ids = np.concatenate([old, np.arange(base, base + changed - len(old))])
    flush(uri, new_shards(1)[0], _rows(ids, 2))
    report = run_merge(MergeOptions(tables=[_resolved(uri)], engine="local"), Silent())
    assert report.outcome == "done", report
    return uri


def _build(dataset: Any, kind: str, partitions: int) -> None:
    if kind == "IVF_PQ":
        dataset.create_index(
            _COLUMNS[kind],
            kind,
            name=kind,
            replace=True,
            num_partitions=partitions,
            num_sub_vectors=8,
        )
    else:
        dataset.create_scalar_index(_COLUMNS[kind], kind, name=kind, replace=True)


def _compare(bench: Bench, plain: Path, kind: str, what: str, at_most: float) -> None:
    partitions = 64 if bench.quick else 256
    written: dict[str, int] = {}
    commits: dict[str, int] = {}

    def timed(name: str, work: Callable[[Path], None]) -> float:
        uri = bench.copy(plain)
        before, version = folder_bytes(uri), lance.dataset(str(uri)).version
        started = time.perf_counter()
        work(uri)
        taken = time.perf_counter() - started
        written[name] = folder_bytes(uri) - before
        commits[name] = lance.dataset(str(uri)).version - version
        return taken

    seconds = bench.side_by_side(
        {
            "catch-up": lambda: timed("catch-up", lambda uri: _catch_up(uri, kind)),
            "rebuild": lambda: timed(
                "rebuild", lambda uri: _build(lance.dataset(str(uri)), kind, partitions)
            ),
        }
    )
    what = f"{kind} catch-up after {what}, against a full build"
    costs = {
        "MB written": written["catch-up"] / 1e6,
        "by the build": written["rebuild"] / 1e6,
        "commits": commits["catch-up"],
    }
    bench.ratio("B8", what, seconds, "catch-up", "rebuild", at_most=at_most, costs=costs)


def _resolved(uri: Path) -> Any:
    return resolve_table(str(uri), Config(), {})


def _catch_up(uri: Path, kind: str) -> None:
    """The job as the command line runs it, in this process."""
    request = CatchupRequest(indexes=(kind,))
    report = run_index_catchup(
        IndexCatchupOptions(tables=[_resolved(uri)], engine="local", request=request), Silent()
    )
    assert report.outcome == "done", report
    (table,) = report.tables
    assert isinstance(table, IndexCatchupTableReport), report
    assert table.indexes[0].unindexed_rows_after == 0, report
