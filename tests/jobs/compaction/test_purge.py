"""Compaction of tables whose rows expire: what it deletes of them, and what stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.config import Settings
from memwal.errors import LostRace, Unsupported
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.compaction.plan import CompactionTableReport
from memwal.jobs.compaction.store import LanceCompactionTable
from memwal.read import open_table
from memwal.rows.expire import EXPIRE_KEY, find_horizon, make_expire
from memwal.run.reports import take_report
from tests.support.builders import Delete, Put, Rows, Table, make_table
from tests.support.indexed import resolved, state
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration

AT = pa.field("at", pa.timestamp("us", "UTC"))
NOW = datetime.now(UTC).replace(microsecond=0)
OLD, NEW = NOW - timedelta(days=91), NOW - timedelta(days=1)


def put(keys: Any, n: int, at: datetime | None) -> Put:
    return Put(keys, n, {"at": at})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """In the base: keys 0 to 9 without a time; 10 to 29 old, 30 to 49 new, in a fragment each."""
    made = make_table(
        tmp_path / "t", rows=range(10), columns=[AT], indexed=True, enable_stable_row_ids=True
    )
    for keys, at in ((range(10, 30), OLD), (range(30, 50), NEW)):
        made.flush(made.shards[0], put(keys, 0, at))
        made.merge_all()
    made.dataset.update_config({EXPIRE_KEY: make_expire("at", 90 * 86_400).as_text()})
    return made


def compact(table: Table, **options: Any) -> CompactionTableReport:
    limits = Settings(target_rows_per_fragment=10)
    settings: dict[str, Any] = {"engine": "local", "master": "local[2]", **options}
    of_table = resolved(table).with_settings(limits)
    report = run_compaction(CompactionOptions(tables=[of_table], **settings), Quiet())
    return take_report(report, CompactionTableReport)


def read(table: Table) -> Rows:
    return table.keyed(open_table(table.uri).read().read_all())


def living(table: Table) -> Rows:
    return {k: r for k, r in table.truth().items() if r["at"] != OLD}


def keys(table: Table, numbers: Any) -> set[Any]:
    return {table.kind.key(number) for number in numbers}


def test_expired_rows_leave_the_base_and_reads_stay(table: Table) -> None:
    before = read(table)
    assert before == living(table)
    progress = table.progress()
    foreseen = compact(table, dry_run=True)
    assert (foreseen.expired_rows, foreseen.purged_rows) == (20, 20)
    assert len(table.base_rows()) == 50
    done = compact(table)
    assert (done.expired_rows, done.purged_rows, done.rows_after) == (20, 20, 30)
    assert table.base_rows() == before == read(table)
    assert table.progress() == progress
    again = compact(table)
    assert (again.outcome, again.expired_rows, again.purged_rows) == ("nothing_to_do", 0, 0)


@pytest.mark.spark
def test_on_spark_it_is_merged_and_purged_as_here(table: Table, tmp_path: Path) -> None:
    table.flush(table.shards[0], put(range(10, 15), 100, NEW), put([30, 60], 200, OLD))
    found = []
    for engine in ("local", "spark"):
        copy = table.copied(tmp_path / engine)
        merged = memwal.open_table(copy.uri, engine=engine).merge()
        done = compact(copy, engine=engine)
        assert copy.base_rows() == read(copy) == living(table)
        counts = (done.expired_rows, done.purged_rows, done.commits, done.rows_after)
        found.append((merged.shards[0].rows_updated, counts))
    assert found == [(6, (17, 17, 1, 34))] * 2


def test_what_is_pending_wins_with_and_without_the_purged_row(table: Table) -> None:
    """Renewed, deleted, aged and new keys wait, then are merged; reads stay throughout."""
    shard = table.shards[0]
    table.flush(shard, put(range(10, 15), 100, NEW), Delete(range(15, 18)))
    table.flush(shard, put([13, 30], 200, OLD), put([60], 300, OLD), put([14], 400, None))
    before = read(table)
    assert before == living(table)
    assert keys(table, [10, 11, 12, 14]) <= before.keys()
    assert compact(table).purged_rows == 20
    assert read(table) == before
    table.merge_all()
    assert read(table) == before
    assert compact(table, dry_run=True).expired_rows == 3
    compact(table)
    assert read(table) == before


def test_a_row_that_a_merge_renewed_meanwhile_is_judged_again(table: Table) -> None:
    table.flush(table.shards[0], put([10], 100, NEW))

    def merge(step: str) -> None:
        if step == "purge" and table.progress()[table.shards[0]] == 2:
            table.merge_all()

    done = compact(table, steps=merge)
    assert (done.conflicts, done.purged_rows) == (1, 19)
    assert table.base_rows() == read(table) == living(table)


def test_lance_refuses_a_purge_of_rows_that_were_renewed(table: Table) -> None:
    table.flush(table.shards[0], put([10], 100, NEW))
    stores = table.stores
    view = stores.views.table()
    horizon = find_horizon(view, int(NOW.timestamp()) * 10**9)
    assert horizon is not None
    table.merge_all()
    with pytest.raises(LostRace):
        LanceCompactionTable(stores.tables).purge(view.version, horizon)
    assert len(table.base_rows()) == 50


def test_a_merge_whose_row_was_purged_meanwhile_goes_on(table: Table) -> None:
    table.flush(table.shards[0], put([10], 100, NEW))
    done = []

    def purge(step: str) -> None:
        if "commit" in step and not done:
            done.append(compact(table, lease=False))

    (report,) = table.merge_all(steps=purge)
    assert done[0].purged_rows == 20
    assert report.outcome == "done"
    assert table.base_rows() == read(table) == living(table)


def test_the_last_rows_go_and_newer_ones_come(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", columns=[AT], indexed=True)
    table.dataset.update_config({EXPIRE_KEY: make_expire("at", 90 * 86_400).as_text()})
    shard = table.shards[0]
    table.flush(shard, put(range(10), 0, OLD))
    table.merge_all()
    done = compact(table)
    assert (done.outcome, done.purged_rows) == ("done", 10)
    assert read(table) == table.base_rows() == {}
    table.flush(shard, put(range(5, 15), 50, NEW))
    table.merge_all()
    assert compact(table).purged_rows == 0
    assert read(table) == table.base_rows() == living(table)
    assert state(table).index_catchup == {"key_idx": state(table).merged}


def test_null_never_expires(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows=range(10), columns=[AT])
    table.dataset.update_config({EXPIRE_KEY: make_expire("at", 1).as_text()})
    assert compact(table).expired_rows == 0
    assert read(table) == table.truth()


def test_a_table_whose_rows_stay_is_not_looked_at(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows=range(10), columns=[AT])
    table.flush(table.shards[0], put(range(5), 0, OLD))
    table.merge_all()
    done = compact(table)
    assert (done.expired_rows, done.purged_rows, done.expired_before) == (None, 0, None)
    assert read(table) == table.truth()


def test_a_setting_that_is_not_understood_purges_nothing(table: Table) -> None:
    table.dataset.update_config({EXPIRE_KEY: '{"format": 2}'})
    with pytest.raises(Unsupported, match="MW-P15"):
        compact(table)
    assert len(table.base_rows()) == 50


def test_a_host_whose_clock_is_ahead_purges_nothing_that_lives(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files tell the store's time."""
    before = read(table)
    ahead = int((NOW + timedelta(days=400)).timestamp()) * 10**9
    monkeypatch.setattr("time.time_ns", lambda: ahead)
    done = compact(table)
    assert (done.expired_rows, done.purged_rows) == (20, 20)
    monkeypatch.undo()
    assert read(table) == before


def test_changes_tell_of_purged_rows_as_deletes(table: Table) -> None:
    version = int(table.dataset.version)
    compact(table)
    found = memwal.open_table(table.uri).changes(since=version).read_all()
    assert found["_change"].to_pylist() == ["delete"] * 20


def test_foreign_readers_see_expired_rows_until_they_are_purged(table: Table) -> None:
    assert lance.dataset(table.uri).count_rows() == 50
    compact(table)
    assert lance.dataset(table.uri).count_rows() == 30
