"""B15: counters and lists by a row-merge policy, against a read-modify-write loop by plain pylance.

Both take the same batches, one after the other, and each batch is durable before the next is begun.
The loop reads the rows of a batch's keys, adds, and commits them by a merge_insert. With a policy
operands are put, and merged into the base table at the end, within the time. The tables have to be
equal afterwards, or the case fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import memwal
from bench.harness import Bench, folder_bytes
from bench.tables import KEY
from memwal.ingest import open_writer

TITLE = "Counters and lists, against read-modify-write"

CASE = "B15"
KEYS = 10_000
BATCH_KEYS = 100
SIZES = (10, 1_000, 100_000)
"""Bytes of a value."""
_TABLE_BYTES_MAX = 64 * 1024 * 1024
_LARGE_BYTES = 10_000
"""Of values from here on fewer batches are written, once."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is folded: `operands` makes a batch of keys' rows, `combine` the loop's new rows."""

    name: str
    schema: pa.Schema
    operator: str
    first: Callable[[int, int], list[pa.Array]]
    operands: Callable[[np.ndarray[Any, Any], int], list[pa.Array]]
    written: Sequence[str]
    """The columns that the loop reads and writes: no more than it needs."""
    combine: Callable[[pa.Table, pa.Table], pa.Table]


def run(bench: Bench) -> None:
    """B15."""
    for shape in (COUNTERS, LISTS):
        points = []
        for size in SIZES:
            keys = min(KEYS, _TABLE_BYTES_MAX // size)
            batches = 20 if bench.quick or size >= _LARGE_BYTES else 200
            taken = _compare(bench, shape, size, keys, batches)
            points.append((size, taken["loop"] / taken["policy"]))
        bench.plot("policies", shape.name, "bytes of a value", "times faster", points, log=True)


def _compare(bench: Bench, shape: Shape, size: int, keys: int, batches: int) -> dict[str, float]:
    origin = bench.new_folder("policies") / "table"
    _make_table(origin, shape, keys, size)
    rng = np.random.default_rng(7)
    picks = [rng.choice(keys, min(BATCH_KEYS, keys // 2), replace=False) for _ in range(batches)]
    work = [pa.table(shape.operands(ids, size), schema=shape.schema) for ids in picks]
    ended: dict[str, Path] = {}
    puts: list[float] = []

    def play(name: str, act: Callable[[Path], None]) -> Callable[[], float]:
        def call() -> float:
            ended[name] = bench.copy(origin)
            started = time.perf_counter()
            act(ended[name])
            return time.perf_counter() - started

        return call

    def by_policy(table: Path) -> None:
        started = time.perf_counter()
        with open_writer(str(table)) as writer:
            for rows in work:
                writer.write_durable(rows)
        puts.append(time.perf_counter() - started)
        memwal.open_table(str(table), engine="local").merge()

    def by_loop(table: Path) -> None:
        for rows in work:
            _modify(table, shape, rows)

    seconds = bench.side_by_side(
        {"policy": play("policy", by_policy), "loop": play("loop", by_loop)},
        1 if size >= _LARGE_BYTES else None,
    )
    _check_equal(ended["policy"], ended["loop"])
    changes = sum(map(len, picks))
    bench.ratio(
        CASE,
        f"{shape.name}, {size:,} B a value, {keys:,} keys, {batches} batches of {len(picks[0])}: "
        "read-modify-write against operands and their merge",
        seconds,
        "policy",
        "loop",
        inverse=True,
        at_least=10 if shape is COUNTERS and keys == KEYS else None,
        costs={
            "seconds of the writer": min(puts),
            "changes a second": changes / seconds["policy"],
            "bytes written": folder_bytes(ended["policy"]) - folder_bytes(origin),
            "bytes written by the loop": folder_bytes(ended["loop"]) - folder_bytes(origin),
        },
    )
    return seconds


def _make_table(uri: Path, shape: Shape, keys: int, size: int) -> None:
    rows = pa.table([pa.array(np.arange(keys)), *shape.first(keys, size)], schema=shape.schema)
    dataset = lance.write_dataset(rows, str(uri))
    dataset.initialize_mem_wal()
    config = uri.parent / "memwal.toml"
    config.write_text(f'[tables.t]\nuri = "{uri}"\n[tables.t.policy.columns]\n{shape.operator}\n')
    table = memwal.open_table("t", config=str(config), engine="local")
    # The first merge stores the policy; writers come after it.
    table.merge()


def _modify(uri: Path, shape: Shape, rows: pa.Table) -> None:
    """One turn of the loop: read the batch's keys, add, commit."""
    dataset = lance.dataset(str(uri))
    wanted = ", ".join(map(str, rows["id"].to_pylist()))
    there = dataset.to_table(columns=list(shape.written), filter=f"id IN ({wanted})")
    rows = rows.select(shape.written).sort_by("id")
    changed = shape.combine(there.sort_by("id"), rows)
    dataset.merge_insert("id").when_matched_update_all().execute(changed)


def _check_equal(one: Path, other: Path) -> None:
    tables = [lance.dataset(str(uri)).to_table().sort_by("id") for uri in (one, other)]
    if not tables[0].equals(tables[1]):
        raise RuntimeError("the policy and the loop came to different rows")


def _blobs(count: int, size: int) -> pa.Array:
    data = np.random.default_rng(count).bytes(count * size)
    return pa.array([data[n * size : (n + 1) * size] for n in range(count)], pa.binary())


def _lists(values: pa.Array) -> pa.Array:
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, values)


def _add(there: pa.Table, rows: pa.Table) -> pa.Table:
    total = pc.add(there["n"], rows["n"])
    return pa.table([there["id"], total], names=["id", "n"])


def _append(there: pa.Table, rows: pa.Table) -> pa.Table:
    pairs = zip(there["events"].to_pylist(), rows["events"].to_pylist(), strict=True)
    events = pa.array([old + new for old, new in pairs], there.schema.field("events").type)
    return pa.table([there["id"], events], names=["id", "events"])


_ID = pa.field("id", pa.int64(), nullable=False, metadata=KEY)

COUNTERS = Shape(
    name="counters",
    schema=pa.schema([_ID, pa.field("n", pa.int64()), pa.field("value", pa.binary())]),
    operator='n = "sum"\nvalue = "coalesce"',
    first=lambda keys, size: [pa.array(np.zeros(keys, np.int64)), _blobs(keys, size)],
    operands=lambda ids, size: [
        pa.array(ids),
        pa.array(np.ones(len(ids), np.int64)),
        pa.nulls(len(ids), pa.binary()),
    ],
    written=("id", "n"),
    combine=_add,
)

LISTS = Shape(
    name="lists",
    schema=pa.schema([_ID, pa.field("events", pa.list_(pa.binary()))]),
    operator='events = "list_append"',
    first=lambda keys, size: [_lists(_blobs(keys, size))],
    operands=lambda ids, size: [pa.array(ids), _lists(_blobs(len(ids), size))],
    written=("id", "events"),
    combine=_append,
)
