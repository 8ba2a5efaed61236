"""B20: megabytes a second of a merge, on the kinds of work that others published figures of.

The bytes are those of the keys and values that the generations bring, counted once: what is read of
the base, and what is written, is not added. They are divided by the seconds of the whole job, from
opening the table to the run's record, in a process that has run one before.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.counted_s3 import CountedS3
from bench.harness import Bench
from bench.pinned import Taken, Work, run_pinned
from bench.tables import KEY, flush, new_shards

TITLE = "Throughput"

CASE = "B20"
_MB = 1e6
_KEY_BYTES = 32
_VALUE_BYTES = 224
_GENERATION_ROWS = 100_000  # a writer's own bound
_WIDE_BYTES = 64 * 1024


def run(bench: Bench) -> None:
    """B20."""
    bench.rounds = max(2, bench.rounds)
    _small_rows(bench)
    _large_rows(bench)


# ---- rows of 256 bytes, by their key: what an LSM tree's compaction has


def _small_rows(bench: Bench) -> None:
    generations, base_rows = (4, 100_000) if bench.quick else (40, 1_000_000)
    folder = bench.new_folder("small")
    table, warm_up = folder / "table", folder / "warm-up"
    _make_small(table, base_rows, generations, _GENERATION_ROWS)
    _make_small(warm_up, 1_000, 1, 1_000)
    size = generations * _GENERATION_ROWS * (_KEY_BYTES + _VALUE_BYTES)
    cores = sorted(os.sched_getaffinity(0))
    what = f"rows of {_KEY_BYTES} + {_VALUE_BYTES} B, half of them new keys, {size / _MB:,.0f} MB"
    alone = [_merge_copies(bench, [table], warm_up, cores[-1:])[0] for _ in range(bench.rounds)]
    _tell(bench, f"merge on one core, {what}", size, alone, at_least=150)
    if len(cores) > 1:
        both = [_merge_copies(bench, [table] * 2, warm_up, cores) for _ in range(bench.rounds)]
        together = [
            Taken(
                seconds=max(taken.seconds for taken in pair),
                cpu_seconds=sum(taken.cpu_seconds for taken in pair),
            )
            for pair in both
        ]
        _tell(bench, f"two tables, a process and a core each, {what} each", 2 * size, together)
    few = folder / "few"
    _make_small(few, 100_000, max(2, generations // 10), _GENERATION_ROWS)
    _against_others(bench, few, warm_up, cores[-1])
    _on_s3(bench, few, warm_up, cores[-1])
    shutil.rmtree(folder)


def _against_others(bench: Bench, table: Path, warm_up: Path, core: int) -> None:
    """The floor of any merge, and a user's loop of merge-inserts, by seconds of the one core."""

    def timed(job: str) -> float:
        return _merge_copies(bench, [table], warm_up, [core], jobs=[job])[0].cpu_seconds

    seconds = bench.side_by_side(
        {job: partial(timed, job) for job in ("merge", "floor", "loop")}, bench.rounds
    )
    size = f"{_new_bytes(table) / _MB:,.0f} MB"
    what = f"merge on one core, the same rows, {size}, against reading, writing and scanning once"
    bench.ratio(CASE, what, seconds, "merge", "floor")
    what = f"merge on one core, the same rows, {size}, against a loop of merge_insert"
    bench.ratio(CASE, what, seconds, "merge", "loop", inverse=True)


def _on_s3(bench: Bench, table: Path, warm_up: Path, core: int) -> None:
    size = _new_bytes(table)
    with CountedS3() as server:
        found = []
        for _ in range(bench.rounds):
            uri, warm = server.place(table), server.place(warm_up)
            server.forget()
            found += run_pinned(_work(uri, warm, core, options=server.storage_options))
        seen = server.seen()
    what = f"merge on one core, against the S3 server, the same rows, {size / _MB:,.0f} MB"
    costs = {"server's processor s": seen.server_cpu_seconds}
    _tell(bench, what, size, found, **costs)


def _new_bytes(table: Path) -> int:
    generations = [path.parent for path in (table / "_mem_wal").glob("*/*/_versions")]
    rows = sum(lance.dataset(str(generation)).count_rows() for generation in generations)
    return int(rows) * (_KEY_BYTES + _VALUE_BYTES)


def _make_small(table: Path, base_rows: int, generations: int, rows: int) -> None:
    """Half of each generation are rows of the base, the others have keys that no other has."""
    dataset = lance.write_dataset(_small(np.arange(base_rows), 1), str(table))
    dataset.initialize_mem_wal()
    shard, rng = new_shards(1)[0], np.random.default_rng(5)
    for number in range(generations):
        old = rng.choice(base_rows, rows // 2, replace=False)
        new = base_rows + number * rows + np.arange(rows - len(old))
        flush(table, shard, _small(np.concatenate([old, new]), number))


def _small(ids: Any, seed: int) -> pa.Table:
    """Keys in no order, as hashes have none; bytes that nothing compresses."""
    scattered = (np.asarray(ids, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).tolist()
    keys = pa.array([f"{key:032x}" for key in scattered])
    return _table(keys, _bytes(len(keys), _VALUE_BYTES, seed))


# ---- 64 KiB a row into a small base with an index on its key


def _large_rows(bench: Bench) -> None:
    base_rows, rows = (512, 256) if bench.quick else (4_096, 1_024)
    folder = bench.new_folder("large")
    warm_up = folder / "warm-up"
    _make_large(warm_up, 64, 16, 8)
    size = rows * _WIDE_BYTES
    for percent in (0, 50, 100):
        table = folder / f"{percent}"
        _make_large(table, base_rows, rows, rows * percent // 100)
        found = [
            _merge_copies(bench, [table], warm_up, [None], jobs=("merge", "index-catchup"))[0]
            for _ in range(bench.rounds)
        ]
        what = f"{rows:,} rows of 64 KiB into {base_rows:,}, {percent} % of them there"
        _tell(bench, f"merge and catch-up of the key's BTREE, all cores, {what}", size, found)
    shutil.rmtree(folder)


def _make_large(table: Path, base_rows: int, rows: int, old: int) -> None:
    dataset = lance.write_dataset(_large(np.arange(base_rows), 1), str(table))
    dataset.initialize_mem_wal()
    lance.dataset(str(table)).create_scalar_index("id", "BTREE")
    flush(table, new_shards(1)[0], _large(base_rows - old + np.arange(rows), 2))


def _large(ids: Any, seed: int) -> pa.Table:
    return _table(pa.array([f"{key:032d}" for key in ids]), _bytes(len(ids), _WIDE_BYTES, seed))


# ---- shared


def _table(keys: pa.Array, values: pa.Array) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False, metadata=KEY), ("value", "binary")]
    )
    return pa.table([keys, values], schema=schema)


def _bytes(count: int, size: int, seed: int) -> pa.Array:
    values = pa.array(np.frombuffer(np.random.default_rng(seed).bytes(count * size), np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), count, [None, values.buffers()[1]]
    ).cast(pa.binary())


def _work(uri: Path | str, warm_up: Path | str, core: int | None, **more: Any) -> Work:
    return Work(uri=str(uri), warm_up=str(warm_up), core=core, **more)


def _merge_copies(
    bench: Bench, tables: Sequence[Path], warm_up: Path, cores: Sequence[int | None], **more: Any
) -> list[Taken]:
    """The same work in a process for each table, side by side, a core each."""
    work = [
        _work(bench.copy(table), bench.copy(warm_up), core, **more)
        for table, core in zip(tables, cores, strict=False)
    ]
    taken = run_pinned(*work)
    for each in work:
        shutil.rmtree(Path(each.uri).parent)
    return taken


def _tell(
    bench: Bench,
    what: str,
    size: int,
    found: Sequence[Taken],
    at_least: float | None = None,
    **costs: float,
) -> None:
    seconds = statistics.median(taken.seconds for taken in found)
    cpu_seconds = statistics.median(taken.cpu_seconds for taken in found)
    bench.figure(
        CASE,
        what,
        size / _MB / seconds,
        "MB/s",
        at_least=at_least,
        measured=f"{seconds:.3g} s, {cpu_seconds:.3g} s of the processor",
        costs={"MB a processor second": size / _MB / cpu_seconds} | costs,
    )
