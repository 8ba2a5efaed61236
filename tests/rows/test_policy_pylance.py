"""What row-merge policies lean on in pylance 14.0.2: a generation keeps every row of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.format import layout
from memwal.model import FlushedGeneration
from tests.support.policy_tables import PolicyTable, Variant, make_policy_table

pytestmark = pytest.mark.integration

VARIANT = Variant(marker=False, expiry=False)


def generations(table: PolicyTable) -> list[tuple[FlushedGeneration, Any]]:
    (shard,) = table.stores.views.table().shards
    return [
        (
            g,
            lance.dataset(
                f"{table.uri}/{layout.generation_folder(shard.shard_id, g.path, g.generation)}"
            ),
        )
        for g in shard.pending
    ]


def all_n(dataset: Any) -> list[int | None]:
    scanner = dataset.scanner(columns=["n"], with_row_id=True, include_deleted_rows=True)
    found: list[int | None] = scanner.to_table()["n"].to_pylist()
    return found


def put(table: PolicyTable, writer: Any, *rows: tuple[int, int]) -> None:
    schema = table.dataset.schema
    writer.put(pa.Table.from_pylist([table.row(k, n) for k, n in rows], schema=schema))


def test_a_flush_hides_superseded_rows_and_keeps_them_in_order(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", VARIANT)
    rows = [(1, 10), (1, 11), (2, 20), None, (2, 21), (1, 12), (3, 30), (3, 31)]
    table.flush(*[(1, None) if r is None else (r[0], table.row(*r)) for r in rows], put_rows=3)

    ((listed, dataset),) = generations(table)

    assert dataset.to_table(columns=["n"])["n"].to_pylist() == [21, 12, 31]
    assert all_n(dataset) == [10, 11, 20, None, 21, 12, 30, 31]
    assert listed.physical_rows == 8


def test_rows_are_kept_wherever_a_writer_cuts_its_generations(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", VARIANT)
    (shard,) = table.shards
    with table.dataset.mem_wal_writer(
        shard, max_wal_flush_interval_ms=1, max_memtable_rows=7
    ) as writer:
        for n in range(40):
            put(table, writer, (n % 2, n), (0, 1000 + n))

    found = generations(table)

    assert len(found) > 2
    assert [n for _, dataset in found for n in all_n(dataset)] == [
        value for n in range(40) for value in (n, 1000 + n)
    ]
    assert all(listed.physical_rows == len(all_n(dataset)) for listed, dataset in found)


def test_rows_that_are_replayed_are_all_kept(tmp_path: Path) -> None:
    """A writer that is fenced never flushes; who took over replays its rows, each of them."""
    table = make_policy_table(tmp_path / "t", VARIANT)
    (shard,) = table.shards
    first = table.dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1)
    for n in range(5):
        put(table, first, (1, n), (1, 10 + n))
    with table.dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as second:
        put(table, second, (1, 99))

    ((_, dataset),) = generations(table)

    assert all_n(dataset) == [*(v for n in range(5) for v in (n, 10 + n)), 99]
