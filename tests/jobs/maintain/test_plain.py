"""A Lance table without a MemWAL: jobs do their part, and say where there is nothing to do."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import NotATable, Usage
from memwal.ingest import open_writer
from tests.support import builders

ROWS = 30


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Three small fragments, of which an index has the first, and five versions."""
    uri = str(tmp_path / "plain")
    for start in range(0, ROWS, 10):
        rows = pa.table({"id": range(start, start + 10), "text": [f"row {start}"] * 10})
        dataset = lance.write_dataset(rows, uri, mode="append" if start else "create")
        if not start:
            dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.delete("id = 7")
    return uri


def ids(uri: str) -> set[int]:
    return set(lance.dataset(uri).to_table().column("id").to_pylist())


def test_every_job_does_its_part(uri: str) -> None:
    table, before = memwal.open_table(uri), ids(uri)
    status = table.status()
    assert (status.has_mem_wal, status.shards, status.warnings) == (False, (), ())
    assert [(i.name, i.unindexed_rows) for i in status.indexes] == [("id_idx", 20)]
    assert table.merge().outcome == table.snapshot().outcome == "nothing_to_do"
    assert table.verify().outcome == "done"
    assert table.compaction().outcome == "done"
    assert len(lance.dataset(uri).get_fragments()) == 1
    table.index_catchup()
    assert [i.unindexed_rows for i in table.status().indexes] == [0]
    table.checkpoint("kept")
    done = table.garbage(
        execute=True, retention_seconds=0, grace_seconds=0, allow_short_retention=True
    )
    kept = [v["version"] for v in lance.dataset(uri).versions()]
    assert done.outcome == "done"
    assert len(kept) == 1
    assert ids(uri) == before == set(table.read().read_all().column("id").to_pylist())


def test_maintain_is_all_of_it(uri: str) -> None:
    before = ids(uri)
    done = memwal.open_table(uri).maintain()
    assert [(j.job, j.report.outcome) for j in done.jobs] == [
        ("merge", "nothing_to_do"),
        ("index-catchup", "done"),
        ("snapshot", "nothing_to_do"),
        ("garbage", "nothing_to_do"),
    ]
    assert ids(uri) == before


def test_columns_change_and_their_indexes_go(uri: str) -> None:
    done = memwal.open_table(uri).schema(add=["x:int64"], drop=["id"], apply=True)
    assert done.indexes_dropped == ("id_idx",)
    assert lance.dataset(uri).schema.names == ["text", "x"]


def test_some_need_a_mem_wal(uri: str) -> None:
    with pytest.raises(NotATable, match="memwal init"):
        open_writer(uri)


def test_a_table_that_lost_its_mem_wal_is_no_plain_one(tmp_path: Path) -> None:
    """Rows may wait in its shards."""
    table = builders.make_table(tmp_path / "t", rows=range(3))
    table.flush(table.shards[0], builders.Put([1], 1))
    table.dataset.drop_index("__lance_mem_wal")
    with pytest.raises(Usage, match="_mem_wal/ has 1 shard"):
        memwal.open_table(table.uri).maintain()
