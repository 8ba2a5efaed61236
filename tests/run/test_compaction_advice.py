"""When a compaction is advised: by the number of small fragments, or by what is deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.run.compaction_advice import AdviceLimits, find_compaction_advice, judge
from memwal.store.tables.datasets import LanceTables

LIMITS = AdviceLimits(target_rows_per_fragment=1000)


def reason(fragments: int = 0, deleted: int = 0, rows: int = 10_000) -> str | None:
    return judge(
        small_fragments=fragments, deleted_rows=deleted, all_rows=rows, limits=LIMITS
    ).reason


def test_a_number_of_small_fragments_is_worth_it() -> None:
    assert reason(fragments=31) is None
    assert reason(fragments=301) == "301 small fragments"


def test_deleted_rows_are_worth_it_when_they_are_much_of_the_table() -> None:
    assert reason(deleted=999) is None
    assert reason(deleted=1000) == "1,000 deleted rows"
    # Of a small table they are little to gain.
    assert reason(deleted=99, rows=100) is None
    assert reason(fragments=40, deleted=100, rows=100) == "40 small fragments, 100 deleted rows"


@pytest.mark.integration
def test_lances_own_plan_is_what_counts(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for start in range(5):
        rows = pa.table({"id": range(10 * start, 10 * start + 10)})
        lance.write_dataset(rows, uri, mode="append" if start else "create")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": range(50, 60)}), uri, mode="append")
    lance.dataset(uri).delete("id < 5")
    tables = LanceTables(uri, {})
    dataset = tables.look()
    dataset.io_stats_incremental()
    settings = Settings(compaction_fragments_min=5, target_rows_per_fragment=30)

    found = find_compaction_advice(
        tables,
        int(dataset.version),
        ResolvedTable(name="t", uri=uri, settings=settings, storage_options={}),
    )

    # The one that the index does not cover is put together with none of them.
    assert found is not None
    assert (found.small_fragments, found.deleted_rows) == (5, 5)
    assert found.describe("do it") == "5 small fragments: do it"
    assert dataset.io_stats_incremental().read_iops <= 1  # its index section


@pytest.mark.integration
def test_a_table_that_was_made_again_is_planned_anew(tmp_path: Path) -> None:
    """Its version has the number of one that was looked at before."""
    uri, tables = str(tmp_path / "t"), LanceTables(str(tmp_path / "t"), {})
    for rows, files in ((20, 2), (30, 3)):
        shutil.rmtree(uri, ignore_errors=True)
        lance.write_dataset(pa.table({"id": range(rows)}), uri, max_rows_per_file=10)
        version = int(tables.look().version)
        assert version == 1
        assert len(tables.fragments(version)) == files
        [(ids, _)] = tables.plan_compaction(version, target_rows=1000, deleted_share=0.1)
        assert len(ids) == files
        assert tables.recall(version, "rows", lambda rows=rows: rows) == rows
