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
import obstore
import pyarrow as pa
from obstore.store import from_url

from bench.counted_s3 import CountedS3
from bench.harness import MEMWAL, ROOT, Bench, run_memwal, run_peak, run_process
from memwal.config import Config, resolve_table
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.run.progress import Silent
from tests.support.day import ROUNDS, keep_table

TITLE = "Upkeep"
Storage = dict[str, str] | None

_ROWS = 200
_DIM = 16
_LATENCY_SECONDS = 0.02
# Deletions a second of Lance before 14.0.2, as its users measured them.
_LANCE_BEFORE = 30
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

_HAND = """
import sys
from datetime import timedelta
import lance
dataset = lance.dataset(sys.argv[2])
dataset.optimize.compact_files()
dataset.optimize.optimize_indices()
dataset.cleanup_old_versions(timedelta(days=7))
"""
_MIB = 2**20


def run(bench: Bench) -> None:
    """B24."""
    _many_fragments(bench)
    _on_s3(bench)
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
        runs: dict[str, Callable[..., object]] = {"memwal": _maintain, "by hand": _by_hand}
        if _LANCEDB.exists():
            runs["LanceDB"] = _optimize
        seconds = bench.side_by_side(
            {name: partial(_call, work, made) for name, work in runs.items()}
        )
        for theirs in runs.keys() - {"memwal"}:
            what = f"compact, index and expire {fragments:,} fragments, against {theirs}"
            bench.ratio("B24", what, seconds, "memwal", theirs, at_most=1.1)
    # The last are the most. Processes of their own, as memory that others left is not told apart.
    words = ("maintain", "--compaction", "always", "--retention", "7d", "--execute")
    memory = {
        "memwal": run_peak(MEMWAL, *words, made())[0] / _MIB,
        "by hand": run_peak(_HAND, made())[0] / _MIB,
    }
    told = ", ".join(f"{name} {peak:.0f} MiB" for name, peak in memory.items())
    what = f"memory at its peak, {fragments:,} fragments, against by hand"
    bench.figure("B24", what, memory["memwal"] / memory["by hand"], "x", measured=told)


def _on_s3(bench: Bench) -> None:
    """Requests of the same work, and how fast versions that name many objects expire."""
    objects = 5_000 if bench.quick else 100_000
    with CountedS3() as server:
        options = server.storage_options
        made = _make(bench, 1_000)
        seen = {}
        for name, work in {"memwal": _maintain, "by hand": _by_hand}.items():
            uri = server.place(made)
            server.forget()
            work(uri, options)
            seen[name] = server.seen()
        requests, size = (
            {name: value(s) for name, s in seen.items()}
            for value in (lambda s: s.requests, lambda s: s.bytes_sent + s.bytes_received)
        )
        told = ", ".join(f"{name} {requests[name]} ({seen[name].told})" for name in seen)
        what = "compact, index and expire 1,000 fragments on S3"
        bench.figure(
            "B24", f"{what}, requests against those by hand",
            requests["memwal"] / requests["by hand"], "x", measured=told, at_most=1.1,
        )  # fmt: skip
        bench.figure(
            "B24", f"{what}, bytes against those by hand",
            size["memwal"] / size["by hand"], "x", at_most=1.1,
        )  # fmt: skip
        local = bench.new_folder("many") / "t.lance"
        lance.write_dataset(pa.table({"id": np.arange(objects)}), str(local), max_rows_per_file=1)
        table = server.place(local)
        dataset: Any = lance.dataset(table, storage_options=options)
        dataset.optimize.compact_files()
        server.latency(_LATENCY_SECONDS)
        server.forget()
        started = time.perf_counter()
        words = ("--retention", "0s", "--allow-short-retention", "--execute", "--json")
        ended = run_memwal("garbage", table, *words, *server.arguments)
        seconds = time.perf_counter() - started
        (report,) = ended.json()["tables"]
        client: Any = {"allow_http": True}
        config: Any = {name: value for name, value in options.items() if name.startswith("aws_")}
        store = from_url(f"{table}/data", config=config, client_options=client)
        left = sum(len(page) for page in obstore.list(store))
        assert left < objects / 10, report
        bench.figure(
            "B24", f"expire {objects:,} objects at 20 ms a request, against 30 a second",
            (objects - left) / seconds / _LANCE_BEFORE, "x", at_least=10.0,
            measured=f"{seconds:.1f} s; {server.seen().told}",
        )  # fmt: skip


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


def _maintain(uri: Path | str, storage: Storage = None) -> None:
    """The job as the command line runs it, in this process."""
    table = resolve_table(str(uri), Config(), storage or {})
    request = MaintainRequest(compaction="always", retention_seconds=7 * 86_400)
    options = MaintainOptions(tables=[table], engine="local", request=request)
    assert run_maintain(options, Silent()).outcome == "done"
    _check(uri, storage)


def _by_hand(uri: Path | str, storage: Storage = None) -> None:
    dataset: Any = lance.dataset(str(uri), storage_options=storage)
    dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    dataset.cleanup_old_versions(timedelta(days=7))
    _check(uri, storage)


def _optimize(uri: Path) -> float:
    return float(run_process([_LANCEDB, "-c", _OPTIMIZE, uri.parent]).stdout)


def _check(uri: Path | str, storage: Storage = None) -> None:
    dataset: Any = lance.dataset(str(uri), storage_options=storage)
    assert len(dataset.get_fragments()) < 10
    assert dataset.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
