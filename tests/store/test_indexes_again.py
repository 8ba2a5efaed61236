"""Vector indexes that are built again: with their parameters, as far as these can be read."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.store.tables.indexes import build_index, find_index, read_recipe

pytestmark = pytest.mark.integration


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    vectors = pa.array([float(n * n % 97) for n in range(4 * 300)], pa.float32())
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(vectors, 4)})
    made = lance.write_dataset(table, tmp_path / "t")
    more = {"num_partitions": 3, "m": 12, "ef_construction": 77}
    made.create_index("v", "IVF_HNSW_SQ", name="near", metric="cosine", **more)
    return made


def test_a_graph_keeps_its_parameters(dataset: lance.LanceDataset) -> None:
    before = find_index(dataset, "near")
    build_index(dataset, read_recipe(dataset, "near"))
    after = find_index(dataset, "near")
    assert after.segments[0].uuid != before.segments[0].uuid
    assert after.details["hnsw"] == before.details["hnsw"]
    assert len(dataset.stats.index_stats("near")["indices"][0]["partitions"]) == 3


def test_an_index_whose_statistics_lance_panics_over(
    dataset: lance.LanceDataset, tmp_path: Path
) -> None:
    [file] = tmp_path.glob("t/_indices/*/index.idx")
    data = bytearray(file.read_bytes())
    data[-40:-32] = (10**14).to_bytes(8, "little")  # where the columns' metadata begins
    file.write_bytes(data)
    torn = lance.dataset(tmp_path / "t")
    with pytest.raises(BaseException, match="range start must not be greater") as caught:
        torn.stats.index_stats("near")
    assert caught.type.__name__ == "PanicException"
    build_index(torn, read_recipe(torn, "near"))
    assert find_index(torn, "near").details["hnsw"]["max_connections"] == 12
