"""All jobs on tables in each of Lance's storage formats; the way out of the one without merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memwal
from tests.support.nursery import run_memwal
from tests.support.sampling import grid

pytestmark = pytest.mark.integration

SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def rows(keys: range, value: int) -> pa.Table:
    return pa.table({"id": list(keys), "v": [value] * len(keys)}, schema=SCHEMA)


def put(uri: str, keys: range, value: int) -> None:
    with lance.dataset(uri).mem_wal_writer(SHARD) as writer:
        writer.put(rows(keys, value))


def values(table: pa.Table) -> dict[int, int]:
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("version", "v2_names", "stable_row_ids"),
    grid(["2.0", "2.1", "2.2"], [False, True], [False, True]),
)
def test_every_job(tmp_path: Path, version: str, v2_names: bool, stable_row_ids: bool) -> None:
    uri = str(tmp_path / "t")
    base = lance.write_dataset(
        rows(range(10), 0),
        uri,
        data_storage_version=version,
        enable_v2_manifest_paths=v2_names,
        enable_stable_row_ids=stable_row_ids,
    )
    base.create_scalar_index("v", "BTREE")
    assert run_memwal("init", uri, "--primary-key", "id").returncode == 0
    table = memwal.open_table(uri, engine="local")
    short: dict[str, Any] = {"execute": True, "allow_short_retention": True, "grace_seconds": 0}
    for number in (1, 2):
        put(uri, range(5 * number, 5 * number + 8), number)
        truth = values(table.read().read_all())
        table.merge()
        table.index_catchup()
        table.snapshot()
        table.compaction()
        for _ in range(2):
            table.garbage(retention_seconds=0, **short)
        table.verify()
        assert values(table.read().read_all()) == values(lance.dataset(uri).to_table()) == truth
    assert truth == {n: 0 if n < 5 else 1 if n < 10 else 2 for n in range(18)}


def test_the_way_out_of_the_legacy_format(tmp_path: Path) -> None:
    uri, new, file = (str(tmp_path / name) for name in ("t", "new", "rows.parquet"))
    base = lance.write_dataset(rows(range(3), 0), uri, data_storage_version="legacy")
    refused = run_memwal("init", uri, "--primary-key", "id")
    assert refused.returncode == 7 and "MW-K10" in refused.stderr
    assert lance.dataset(uri).version == 1

    base.update_field_metadata({"id": {"lance-schema:unenforced-primary-key": "true"}})
    base.initialize_mem_wal(unsharded=True)
    put(uri, range(2, 5), 1)
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    writer.put(rows(range(4, 6), 2))
    del writer
    for job in ("merge", "maintain"):
        stuck = run_memwal(job, uri)
        assert stuck.returncode == 7
        assert "legacy format" in stuck.stderr and "MW-K10" in stuck.stderr
    shown = json.loads(run_memwal("status", uri, "--json").stdout)
    assert "legacy format" in " ".join(shown["tables"][0]["warnings"])

    assert run_memwal("rescue", uri, "--yes", "--idle", "0s").returncode == 0
    assert run_memwal("read", uri, "--output", file).returncode == 0
    lance.write_dataset(pq.read_table(file), new)
    assert run_memwal("init", new, "--primary-key", "id").returncode == 0
    put(new, range(5, 7), 3)
    assert run_memwal("merge", new, "--engine", "local").returncode == 0
    assert values(lance.dataset(new).to_table()) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 3, 6: 3}
