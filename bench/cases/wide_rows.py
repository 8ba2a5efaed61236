"""Wide rows, 10 KB: time and memory of a merge, compaction and a full read, with limits (B21)."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from bench.harness import MEMWAL, Bench, Ended, run_peak
from bench.tables import KEY, flush, new_shards

TITLE = "Wide rows"

_DIM, _TEXT = 1536, 4096
_ROW_BYTES = _DIM * 4 + _TEXT
_GENERATION_ROWS = 5_000
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), _DIM)),
    ]
)


def run(bench: Bench) -> None:
    """B21."""
    folder = bench.new_folder("wide")
    base, generations = (5_000, 4) if bench.quick else (20_000, 46)
    table = folder / "table"
    batches = (batch for start in range(0, base, 1_000) for batch in _rows(start, 1_000))
    dataset = lance.write_dataset(
        pa.RecordBatchReader.from_batches(_SCHEMA, batches), table, max_rows_per_file=1_000
    )
    dataset.initialize_mem_wal()
    (shard,) = new_shards(1)
    for number in range(generations):
        # Half of them new.
        start = base - _GENERATION_ROWS // 2 + number * _GENERATION_ROWS // 2
        flush(table, shard, pa.Table.from_batches(_rows(start, _GENERATION_ROWS)))
    pending = f"{generations * _GENERATION_ROWS * _ROW_BYTES / 1e9:.1f} GB pending"
    _speed(bench, table, generations, pending)
    for limit in (500, 1_000, 2_000):
        _limited(bench, table, ["merge"], limit, pending)
    _limited(bench, table, ["compaction"], 400, f"{base:,} rows in files of 1,000")
    for suffix in ("arrow", "parquet"):
        words = ["read", "--output", str(folder / f"rows.{suffix}")]
        _limited(bench, table, words, 400, pending)
    shutil.rmtree(folder)


def _rows(start: int, count: int) -> list[pa.RecordBatch]:
    """Random rows, so that nothing of them is packed."""
    rng = np.random.default_rng(start)
    values = rng.random(count * _DIM, dtype=np.float32)
    columns = [
        pa.array(np.arange(start, start + count)),
        pa.array([rng.bytes(_TEXT // 2).hex() for _ in range(count)]),
        pa.FixedSizeListArray.from_arrays(pa.array(values), _DIM),
    ]
    found: list[pa.RecordBatch] = pa.table(columns, schema=_SCHEMA).to_batches()
    return found


def _speed(bench: Bench, table: Path, generations: int, pending: str) -> None:
    """Without a limit; the floor reads what is pending and writes it."""
    peaks: list[int] = []

    def merge() -> float:
        peak, ended = _run(bench, table, ["merge"])
        peaks.append(peak)
        return float(ended.json()["tables"][0]["shards"][0]["seconds"])

    def rewrite() -> None:
        out = bench.new_folder("floor") / "table"
        lance.write_dataset(
            pa.RecordBatchReader.from_batches(_SCHEMA, _pending_batches(table)), out
        )
        shutil.rmtree(out)

    seconds = bench.side_by_side({"merge": merge, "read and write": rewrite})
    size = generations * _GENERATION_ROWS * _ROW_BYTES / 1e6
    bench.ratio(
        "B21", f"a merge of {pending}, against reading and writing it", seconds,
        "merge", "read and write",
        costs={"MB/s": size / seconds["merge"], "peak MB": statistics.median(peaks) / 1e6},
    )  # fmt: skip


def _pending_batches(table: Path) -> Iterator[pa.RecordBatch]:
    for generation in sorted(table.glob("_mem_wal/*/*_gen_*")):
        yield from lance.dataset(generation).to_batches(columns=_SCHEMA.names, batch_size=1_000)


def _limited(bench: Bench, table: Path, words: list[str], limit: int, what: str) -> None:
    """The peak as a part of the limit, in MB."""
    found = [
        _run(bench, table, [*words, "--memory-max", f"{limit}MB"]) for _ in range(bench.rounds)
    ]
    peak = statistics.median(peak for peak, _ in found)
    shown = " ".join([words[0], *(word.rpartition(".")[2] for word in words[2:])])
    bench.figure(
        "B21",
        f"{shown}: peak memory, as a part of --memory-max {limit}MB: {what}",
        peak / (limit * 1e6),
        "x",
        at_most=1.0,
        measured=f"{peak / 1e6:,.0f} MB",
        costs={"seconds": statistics.median(ended.seconds for _, ended in found)},
    )


def _run(bench: Bench, table: Path, words: list[str]) -> tuple[int, Ended]:
    uri = bench.copy(table)
    engine = [] if words[0] == "read" else ["--engine", "local"]
    peak, ended = run_peak(MEMWAL, *words, uri, "--json", *engine)
    shutil.rmtree(uri)
    return peak, ended
