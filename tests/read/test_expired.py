"""Reads of a table whose rows expire, on real tables, against a model of what lives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import Refused
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest
from memwal.read.job import explain
from memwal.read.plan.request import Nearest, ReadRequest, Search
from memwal.read.plan.sources import plan_tasks
from memwal.read.store.tasks import TaskReads, take_snapshot
from memwal.read.table import OpenedRead, ReadableTable
from memwal.rows.expire import EXPIRE_KEY, make_expire
from memwal.store.records.checkpoints import LanceTags
from memwal.testing import ManualClock
from tests.read.test_spark_read import through_tasks
from tests.support.builders import Delete, Put, Row, Table, make_table

pytestmark = pytest.mark.integration

DAY = 86_400
EXPIRE = make_expire("at", 90 * DAY)
AT = pa.field("at", pa.timestamp("us", "UTC"))
CLOCK = ManualClock()
NOW = datetime.fromtimestamp(CLOCK.now_nanos() // 10**9, UTC)
OLD, NEW, EDGE = (NOW - timedelta(days=days) for days in (91, 1, 90))


def put(keys: Any, n: int, at: datetime | None) -> Put:
    return Put(keys, n, {"at": at})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Keys 0 to 9 in the base without a time, 10 to 19 old, 20 to 29 new; nothing is pending."""
    made = make_table(tmp_path / "t", rows=range(10), columns=[AT])
    made.flush(made.shards[0], put(range(10, 20), 0, OLD), put(range(20, 30), 0, NEW))
    made.merge_all()
    made.dataset.update_config({EXPIRE_KEY: EXPIRE.as_text()})
    return made


def living(table: Table, horizon: datetime = EDGE) -> dict[Any, Row]:
    return {
        key: row for key, row in table.truth().items() if row["at"] is None or row["at"] >= horizon
    }


def reader(table: Table, *, seconds: float = 0) -> ReadableTable:
    clock = ManualClock()
    return ReadableTable(table.uri, clock=Ahead(seconds) if seconds else clock)


class Ahead(ManualClock):
    """A clock that is fast, or slow."""

    def __init__(self, seconds: float) -> None:
        super().__init__(start_nanos=CLOCK.now_nanos() + int(seconds * 10**9))


def check(table: Table, *, seconds: float = 0) -> None:
    """All kinds of reads give what lives, by the reader's clock."""
    found = reader(table, seconds=seconds)
    horizon = EDGE + timedelta(seconds=seconds)
    truth = living(table, horizon)
    assert table.keyed(found.read().read_all()) == truth
    assert found.read(columns=["n"]).read_all().num_rows == len(truth)
    few = {k: r for k, r in truth.items() if r["n"] is not None and r["n"] % 2}
    assert table.keyed(found.read(filter="n % 2 = 1 -- odd").read_all()) == few
    assert found.read(columns=["n"], filter="n % 2 = 1").read_all().num_rows == len(few)
    assert found.read(limit=3).read_all().num_rows == min(3, len(truth))
    for key in (dict(zip(table.kind.names, k, strict=True)) for k in table.truth()):
        wanted = {k: r for k, r in truth.items() if k == tuple(key.values())}
        assert table.keyed(found.read(key=key).read_all()) == wanted
    near = found.read(nearest=Nearest(column="vector", vector=(1.0, 1.0, 1.0, 1.0), k=100))
    vectors = {k: r for k, r in truth.items() if r["vector"] is not None}
    assert table.keyed(near.read_all().drop_columns(["_distance"])).keys() == vectors.keys()
    for bytes_max in (10**9, 0):
        assert table.keyed(read_in_tasks(found, bytes_max)) == truth


def read_in_tasks(found: ReadableTable, keys_bytes_max: int) -> pa.Table:
    """As Spark's tasks read it: who wins is decided before, or looked up by each."""

    def take(opened: OpenedRead) -> pa.Table:
        snapshot = take_snapshot(
            found.tables, opened.view, opened.plan, opened.now_nanos(), opened.unflushed
        )
        reads = TaskReads(found.generations, snapshot)
        tasks = plan_tasks(opened.plan, reads.list_fragments(), 1)
        decided = reads.decide(keys_bytes_max)
        batches = [batch for task in tasks for batch in reads.read(task, decided)]
        return pa.Table.from_batches(batches, schema=opened.read.schema)

    return found.use_read(ReadRequest(), take)


def states(table: Table) -> Iterator[str]:
    """Generations that renew, age, delete and bring back; each is pending, then all are merged."""
    shard = table.shards[0]
    table.flush(shard, put([10, 11], 50, NEW), put([20, 21], 60, OLD))
    yield "renewed and aged"
    table.flush(shard, Delete([10, 20, 22]), put([11], 70, OLD), put([21], 80, None))
    yield "deleted, aged again and without a time"
    table.flush(shard, put([12, 20], 90, EDGE), put([0, 40], 95, EDGE - timedelta(seconds=1)))
    yield "at the horizon"


def test_reads_give_what_lives_whatever_is_pending(table: Table) -> None:
    check(table)
    for _ in states(table):
        check(table)
    before = living(table)
    table.merge_all()
    check(table)
    assert living(table) == before


FAR = [pytest.param(days * DAY, marks=pytest.mark.nightly) for days in (-40, 40, 89)]


@pytest.mark.parametrize("seconds", [-2, 2, *FAR])
def test_reads_go_by_the_reader_s_clock(table: Table, seconds: float) -> None:
    for _ in states(table):
        pass
    check(table, seconds=seconds)
    table.merge_all()
    check(table, seconds=seconds)


def test_an_index_of_the_column_answers_the_same(table: Table) -> None:
    table.dataset.create_scalar_index("at", "BTREE", name="at_idx")
    for _ in states(table):
        pass
    check(table)
    table.merge_all()
    check(table)


def test_a_search_finds_what_lives(table: Table) -> None:
    table.dataset.create_scalar_index("text", "INVERTED", name="text_idx")
    for _ in states(table):
        pass
    for _ in range(2):
        found = reader(table).read(search=Search(column="text", query="text")).read_all()
        truth = {k for k, row in living(table).items() if row["text"] is not None}
        assert table.keyed(found.drop_columns(["_score"])).keys() == truth
        table.merge_all()


def test_each_merge_leaves_reads_as_they_are(table: Table) -> None:
    for _ in states(table):
        before = table.keyed(reader(table).read().read_all())
        table.merge_all()
        assert table.keyed(reader(table).read().read_all()) == before


def test_spark_s_tasks_leave_out_what_has_expired(tmp_path: Path) -> None:
    """By the driver's clock; the tasks run here, without a JVM."""
    past, future = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)
    table = make_table(tmp_path / "t", rows=range(3), columns=[AT])
    table.flush(table.shards[0], put([1, 3], 0, past), put([4, 5], 10, future))
    table.merge_all()
    table.dataset.update_config({EXPIRE_KEY: EXPIRE.as_text()})
    table.flush(table.shards[0], put([4], 20, past), put([3], 30, future))
    wanted = sorted(row["n"] for row in table.truth().values() if row["at"] != past)
    for more in ({}, {"keys_bytes_max": "1"}, {"partition_bytes": "1"}):
        assert sorted(row["n"] for row in through_tasks(table.uri, columns="n", **more)) == wanted


def test_rows_of_the_wal_expire_and_renew(table: Table) -> None:
    writer = table.writer(table.shards[0], durable_write=True)
    schema = table.dataset.schema
    rows = [table.row(10, 1, {"at": NEW}), table.row(20, 1, {"at": OLD})]
    writer.put(pa.Table.from_pylist(rows, schema=schema))
    found = table.keyed(reader(table).read(with_wal=True).read_all())
    renewed, aged = table.kind.key(10), table.kind.key(20)
    assert found.keys() == (living(table).keys() | {renewed}) - {aged}
    writer.close()


def test_one_instant_a_read(table: Table) -> None:
    """The instant of the plan is that of every source, however long the read takes."""

    class Passing(ManualClock):
        def now_nanos(self) -> int:
            self.advance(30 * DAY)
            return super().now_nanos()

    found = ReadableTable(table.uri, clock=Passing())
    opened, rows = found.open_reader(ReadRequest())
    assert opened.plan.expired_before is not None
    horizon = datetime.fromisoformat(opened.plan.expired_before)
    assert table.keyed(rows.read_all()) == living(table, horizon)


def test_a_version_stays_as_it_was(table: Table) -> None:
    """Of a version that is asked for, rows have expired that had when it was committed."""
    version = int(table.dataset.version)
    at = table.stores.table_manifests.read(version).timestamp_nanos
    committed = datetime.fromtimestamp(at // 10**9, UTC)
    truth = living(table, committed - timedelta(days=90))
    for seconds in (0, 3000 * DAY):
        found = reader(table, seconds=seconds).read(version=version).read_all()
        assert table.keyed(found) == truth
    # Before the setting, nothing expired.
    found = reader(table).read(version=version - 1, merged_only=True).read_all()
    assert table.keyed(found) == table.truth()


def test_a_checkpoint_stays_as_it_was(table: Table) -> None:
    table.flush(table.shards[0], put([10], 50, NEW), put([20], 60, OLD))
    CheckpointMaker(
        uri=table.uri,
        views=table.stores.views,
        checkpoints=table.stores.checkpoints,
        tags=LanceTags(table.stores.tables),
        clock=ManualClock(),
        take_lease=lambda: None,
        before_commit=lambda: None,
    ).create(CheckpointRequest(name="kept", holder="ann"))
    truth = living(table)
    later = reader(table, seconds=3000 * DAY)
    assert table.keyed(later.read(checkpoint="kept").read_all()) == truth
    assert table.kind.key(10) not in table.keyed(later.read().read_all())


def test_explain_has_the_condition(table: Table) -> None:
    found = explain(reader(table), ReadRequest())
    assert "TimestampMicrosecond(1742224000000000" in found["base"]["lance_plan"]


def test_a_read_is_refused_where_the_column_is_gone(table: Table) -> None:
    table.dataset.drop_columns(["at"])
    with pytest.raises(Refused, match="MW-P16"):
        reader(table).read()


def test_settings_are_of_the_table_not_of_the_file(table: Table) -> None:
    resolved = ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})
    assert resolved.expire is None
    assert table.keyed(reader(table).read().read_all()) == living(table)
