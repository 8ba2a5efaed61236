"""Which shard has a key: as the ingest that writes it, and the merge that reads it, have it."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import Usage
from memwal.ingest import open_writer
from tests.support.ingest_tables import make, rows_of

pytestmark = pytest.mark.integration

SPECS = [{"bucket_column": "id", "num_buckets": 4}, {"identity_column": "id"}, {"unsharded": True}]


@pytest.mark.parametrize("spec", [*SPECS, {}])
def test_it_is_where_an_ingest_writes_the_row(tmp_path, spec) -> None:
    table = make(tmp_path / "t", **spec)
    ids = memwal.shard_of(table.uri, pa.table({"id": pa.array(range(6), pa.int32())})).to_pylist()
    assert memwal.shard_of(table.uri, [{"id": 5}]).to_pylist() == ids[5:]
    for n, shard in enumerate(ids):
        with open_writer(table.uri) as writer:
            writer.write(rows_of([n]))
        listed = {
            s.shard_id: s.manifest.current_generation for s in table.stores.views.table().shards
        }
        assert listed[shard] == 1 + ids[: n + 1].count(shard)


def test_pylance_s_writer_takes_the_id(tmp_path) -> None:
    table = make(tmp_path / "t", **SPECS[0])
    [shard] = memwal.shard_of(table.uri, [{"id": 2}]).to_pylist()
    with lance.dataset(table.uri).mem_wal_writer(shard) as writer:
        writer.put(rows_of([2], 5))
    with open_writer(table.uri) as writer:
        writer.write(rows_of([2], 7))
    assert table.read() == {2: (7, "2-7")}
    assert memwal.shard_of(table.uri, []).to_pylist() == []


def test_what_a_shard_depends_on_has_to_be_given(tmp_path) -> None:
    table = make(tmp_path / "t", **SPECS[0])
    for rows, says in ([{"note": "a"}], "depends on id"), ([{"id": "x"}], "'id' is int64"):
        with pytest.raises(Usage, match=says):
            memwal.shard_of(table.uri, rows)
