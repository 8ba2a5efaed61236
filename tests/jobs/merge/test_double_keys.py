"""Bases that hold a key more than once, on real tables: reads show the same before and after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.jobs.merge.job import MergeUnit, report_shards, run_merge_unit
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.read import open_table
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Table
from tests.support.policy_tables import make_policy_table
from tests.support.sampling import grid

pytestmark = pytest.mark.integration


def make(folder: Path, kind: str, shards: int = 2) -> Table:
    """Keys 0 to 5, as far as there are so many, each twice in the base."""
    keys = range(min(KINDS[kind].keys_max, 6))
    return builders.make_table(folder / "t", kind, rows=keys, doubles=keys, shards=shards)


def read(table: Table) -> Counter[str]:
    return Counter(map(repr, open_table(table.uri).read().read_all().to_pylist()))


def merge(table: Table, *, shared: bool) -> tuple[ShardReport, ...]:
    """Merge with commits of each shard's own, or in a unit that would share them."""
    if not shared:
        return tuple(table.merge_all())
    unit = MergeUnit(
        uri=table.uri,
        storage_options={},
        shard_ids=tuple(table.shards),
        request=MergeRequest(),
        limits=MergeLimits(),
    )
    return tuple(report_shards(unit, run_merge_unit(unit)))


@pytest.mark.parametrize(("kind", "shared"), grid(KINDS, (False, True)))
def test_a_double_that_is_written_or_deleted_has_one_row_or_none(
    tmp_path: Path, kind: str, shared: bool
) -> None:
    table = make(tmp_path, kind)
    few = KINDS[kind].keys_max < 6
    table.flush(table.shards[0], Put([0], 1), *([] if few else [Delete([2])]))
    table.flush(table.shards[1], Delete([1]), *([] if few else [Put([3, 9], 2)]))
    before, version = read(table), int(table.dataset.version)
    assert before == Counter(map(repr, table.shown()))

    reports = merge(table, shared=shared)

    assert [report.outcome for report in reports] == ["done", "done"]
    assert "1 key more than once" in str(reports[0].warning)
    assert read(table) == before
    builders.check_versions(table, version)
    held = Counter(map(repr, table.dataset.to_table().to_pylist()))
    assert held == Counter(map(repr, table.shown()))


@pytest.mark.parametrize(("kind", "indexed"), grid(("int64", "utf8+int32"), (False, True)))
def test_doubles_among_more_keys_than_a_filter_names(
    tmp_path: Path, kind: str, indexed: bool
) -> None:
    table = builders.make_table(
        tmp_path / "t", kind, rows=range(11_000), doubles=[5, 10_900], indexed=indexed
    )
    table.flush(table.shards[0], Put(range(10_500), 7), Delete([10_900]))
    version = int(table.dataset.version)
    (report,) = table.merge_all()
    counts = (report.rows_inserted, report.rows_updated, report.rows_deleted, report.commits)
    assert counts == (1, 10_499, 4, 1)
    builders.check_versions(table, version)
    builders.check_merged(table)


def test_a_merge_of_other_keys_makes_one_commit(tmp_path: Path) -> None:
    table = make(tmp_path, "int64", shards=1)
    table.flush(table.shards[0], Put([8], 1))
    version = int(table.dataset.version)
    (report,) = table.merge_all()
    assert (report.warning, int(table.dataset.version)) == (None, version + 1)


@pytest.mark.parametrize("barrier", [False, True], ids=["folded", "written over"])
def test_with_a_policy_a_double_is_refused(tmp_path: Path, barrier: bool) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1, 2])
    again: pa.Table = lance.dataset(table.uri).to_table(limit=1)
    lance.write_dataset(again, table.uri, mode="append")
    table.flush(*([(1, None)] if barrier else []), (1, table.row(1, 5)))
    version = int(lance.dataset(table.uri).version)
    report = table.merger().run(table.shards[0], MergeRequest())
    assert report.outcome == "refused"
    assert "more than once" in str(report.error) and "MW-P11" in str(report.error)
    assert int(lance.dataset(table.uri).version) == version
