"""Base tables in each version of Lance's file format that the page about compatibility names."""

from __future__ import annotations

import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import memwal

pytestmark = pytest.mark.integration

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("text", pa.string())]
)


def rows(ids: list[int], text: str) -> pa.Table:
    return pa.table({"id": ids, "text": [text] * len(ids)}, schema=SCHEMA)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_it_is_written_merged_indexed_compacted_and_read(tmp_path: Path, version: str) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(rows([1, 2, 3], "old"), uri, data_storage_version=version)
    dataset.create_scalar_index("id", "BTREE")
    dataset.initialize_mem_wal(unsharded=True)
    with dataset.mem_wal_writer(str(uuid.uuid4())) as writer:
        writer.put(rows([2, 4], "new"))
        writer.delete(pa.table({"id": pa.array([3], pa.int64())}))
    wanted = [(1, "old"), (2, "new"), (4, "new")]
    table = memwal.open_table(uri)

    def read() -> list[tuple[int, str]]:
        return sorted((row["id"], row["text"]) for row in table.read().read_all().to_pylist())

    assert read() == wanted
    table.maintain(compaction="always")
    assert (read(), table.status().pending_generations) == (wanted, 0)
    assert lance.dataset(uri).data_storage_version == version
    base = lance.dataset(uri).to_table().to_pylist()
    assert sorted((row["id"], row["text"]) for row in base) == wanted
    table.verify()
