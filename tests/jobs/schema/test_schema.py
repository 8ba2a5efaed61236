"""`memwal schema` on real tables: with rows in generations and WALs, killed anywhere, and raced."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import LeaseHeld, LostRace, StoreUnavailable
from memwal.jobs.rescue.store import LanceShardWriters
from memwal.jobs.schema.apply import Altered, SchemaChanger, Written
from memwal.jobs.schema.job import SchemaOptions, run_schema
from memwal.jobs.schema.plan import SchemaPlan, plan_schema
from memwal.jobs.schema.report import SchemaTableReport
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.schema.store import StoredSchemaTable, read_type
from memwal.model import TableView
from memwal.read import open_table
from memwal.report import JobReport
from memwal.rows.expire import EXPIRE_KEY, make_expire
from memwal.rows.policy import STORED_KEY, make_policy
from memwal.testing import ManualClock
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.indexed import resolved
from tests.support.lancedb_process import lancedb_client
from tests.support.progress import Quiet
from tests.support.s3server import S3Server
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration

COLUMNS = [
    pa.field("c", pa.int32()),
    pa.field("f", pa.float32()),
    pa.field("items", pa.list_(pa.int32())),
]
KEYS = [i for i in range(40) if i % 5]  # of the others, files of 2.0 can't have the struct


def change(table: Table, steps: Any = lambda now: None, **asked: Any) -> JobReport:
    asked.setdefault("apply", True)
    request = SchemaRequest(**{k: tuple(v) if isinstance(v, list) else v for k, v in asked.items()})
    options = SchemaOptions(tables=[resolved(table)], engine="local", request=request)
    return run_schema(options, Quiet(), steps)


def done(report: JobReport) -> SchemaTableReport:
    assert report.exit_code == 0, report
    (found,) = report.tables
    assert isinstance(found, SchemaTableReport)
    return found


def refusal(report: JobReport) -> str:
    assert (report.outcome, report.exit_code) == ("refused", 5), report
    return str(report.tables[0].error)


def make(folder: Path, **write: Any) -> Table:
    table = builders.make_table(
        folder / "t", rows=KEYS, columns=COLUMNS, max_rows_per_file=15, **write
    )
    table.dataset.update({"c": "cast(n as int)", "f": "1.5"})
    return table


def put(table: Table, key: int, **values: Any) -> None:
    """One row, in a generation of its own, by a writer of the present schema."""
    dataset = table.dataset
    row = {name: values.get(name) for name in dataset.schema.names} | {"k": key}
    with dataset.mem_wal_writer(table.shards[0], max_wal_flush_interval_ms=1) as writer:
        writer.put(pa.Table.from_pylist([row], schema=dataset.schema))


def row_of(table: Table, key: int) -> dict[str, Any]:
    (row,) = table.dataset.to_table(filter=f"k = {key}").to_pylist()
    return dict(row)


def indexes(table: Table) -> dict[str, list[str]]:
    return {i["name"]: i["fields"] for i in table.dataset.list_indices() if i["name"][:2] != "__"}


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_every_change_at_once_is_one_step_after_what_is_pending_was_merged(
    tmp_path: Path, version: str
) -> None:
    table = make(tmp_path, data_storage_version=version, enable_stable_row_ids=version != "2.0")
    table.dataset.delete("n = 1002")
    put(table, 501, n=None, text="old", c=2**31 - 1, f=0.1, items=[1], nested={"a": 1, "b": "b"})
    asked: dict[str, Any] = {
        "drop": ["vector"], "rename": [("text", "words"), ("nested", "inner")],
        "widen": [("c", "int64"), ("f", "double")], "default": [("y", '"q"'), ("v", "[1, 2]")],
        "add": ["x:int32", "y:string", "v:fixed_size_list<item: float>[2]", "tags:list<string>"],
    }  # fmt: skip
    planned = done(change(table, **asked, apply=False))
    assert (planned.version_after, len(planned.steps)) == (planned.version_before, 9)
    assert planned.pending == 1

    ids = {c.name: c.field_id for c in planned.columns}
    before = {r["k"]: r for r in open_table(table.uri).read().read_all().to_pylist()}
    made = done(change(table, **asked))
    assert made.rows_rewritten == len(KEYS) + 1
    assert made.version_after == made.version_before + 1 + made.commits, "one is the merge"
    after = {c.name: c for c in made.columns}
    assert (after["c"].field_id, after["c"].type) == (ids["c"], "int64")
    dataset = table.dataset
    dataset.validate()
    assert (dataset.schema.field("y").nullable, dataset.config()) == (False, {})
    for row in dataset.to_table().to_pylist():
        old = before[row["k"]]
        assert row == {
            "k": old["k"], "n": old["n"], "words": old["text"], "inner": old["nested"],
            "c": old["c"], "f": old["f"], "items": old["items"], "x": None, "y": "q",
            "v": [1.0, 2.0], "tags": None,
        }  # fmt: skip
    assert dataset.count_rows() == len(KEYS)
    assert len(dataset.to_table(filter="c >= 1020")) == sum(r["c"] >= 1020 for r in before.values())

    assert done(change(table, **asked)).outcome == "nothing_to_do"
    table.dataset.optimize.compact_files()
    table.dataset.validate()
    put(table, 502, y="z", c=2**40, v=[3, 4], inner={"a": 1, "b": "b"}, tags=["a"])
    table.merge_all()
    row = row_of(table, 502)
    assert (row["c"], row["v"], row["tags"]) == (2**40, [3.0, 4.0], ["a"])


@pytest.mark.parametrize("writes", ["nothing", "rows", "rows, an hour ago"])
def test_a_writer_is_in_the_way_until_it_is_fenced(tmp_path: Path, writes: str) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    open_writer, wal, then = table.dataset.mem_wal_writer, writes != "nothing", time.time() - 3600
    writer = abandon(table, shard, Put([651], 5)) if wal else open_writer(shard)
    for file in Path(table.uri, "_mem_wal").rglob("*") if "hour" in writes else ():
        os.utime(file, (then, then))
    row = table.dataset.head(1)
    version = table.dataset.version
    (way,) = done(change(table, widen=[("c", "int64")], apply=False)).in_the_way
    assert way.shard_id == shard
    told = refusal(change(table, widen=[("c", "int64")]))
    assert "MW-K31" in told
    assert shard in told
    assert table.dataset.version == version

    made = done(change(table, widen=[("c", "int64")], fence=True))
    assert made.fenced == (shard,)
    with pytest.raises(OSError, match="fenced"):
        writer.put(row)
        writer.close()
    put(table, 652, c=2**40)
    table.merge_all()
    if wal:
        assert row_of(table, table.kind.key(651)[0])["n"] == builders.payload(5)["n"]
    assert row_of(table, 652)["c"] == 2**40


def test_what_can_not_be_merged_is_in_the_way(tmp_path: Path) -> None:
    table = make(tmp_path)
    put(table, 651, c=1)
    put(table, 652, c=2)
    shutil.rmtree(next(Path(table.uri).glob("_mem_wal/*/*_gen_2")))
    told = refusal(change(table, drop=["f"]))
    assert "MW-K32" in told
    assert "f" in table.dataset.schema.names


def test_a_column_with_an_index_is_not_widened(tmp_path: Path) -> None:
    table = make(tmp_path)
    table.dataset.create_scalar_index("c", "BTREE", name="c_idx")
    told = refusal(change(table, widen=[("c", "int64")], fence=True))
    assert "MW-K30" in told
    assert "c_idx" in told
    assert done(change(table, rename=[("c", "d")])).commits == 1
    assert indexes(table) == {"c_idx": ["d"]}
    table.dataset.drop_index("c_idx")
    assert done(change(table, widen=[("d", "int64")])).commits == 1


def test_an_index_goes_with_its_column_and_no_writer_maintains_it(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=KEYS)
    dataset = table.dataset
    dataset.drop_index("__lance_mem_wal")
    dataset.create_scalar_index("text", "BTREE", name="text_idx")
    dataset.initialize_mem_wal(maintained_indexes=["text_idx"])
    planned = done(change(table, drop=["text"], apply=False))
    assert planned.indexes_dropped == ("text_idx",)
    made = done(change(table, drop=["text"]))
    assert (made.indexes_dropped, made.commits) == (("text_idx",), 3)
    assert indexes(table) == {}
    assert table.stores.views.table().mem_wal.maintained_indexes == ()


def test_wide_tables_cost_what_their_columns_do(tmp_path: Path) -> None:
    def count_calls(columns: int) -> int:
        wide = [pa.field(f"c{i}", pa.int32()) for i in range(columns)]
        table = builders.make_table(tmp_path / str(columns), rows=range(2), columns=wide)
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            done(change(table, widen=[("c7", "int64")], drop=["c9"], apply=False))
        finally:
            sys.setprofile(None)
        return calls

    count_calls(10)  # imports
    assert count_calls(800) < 3 * count_calls(400)


class Died(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("at", ["forget", "drop", "commit", "committed"])
def test_a_run_killed_anywhere_is_finished_by_the_next(tmp_path: Path, at: str) -> None:
    table = make(tmp_path)
    put(table, 801, c=5)

    def steps(now: str) -> None:
        if now == at:
            raise Died

    table.dataset.create_scalar_index("items", "LABEL_LIST", name="gone")
    asked: dict[str, Any] = {"widen": [("c", "int64")], "rename": [("f", "g")], "drop": ["items"]}
    with pytest.raises(Died):
        change(table, steps, **asked)
    done(change(table, **asked))
    dataset = table.dataset
    assert dataset.schema.field("c").type == pa.int64()
    assert dataset.to_table(filter="c = 1001").num_rows == 1
    assert done(change(table, **asked)).outcome == "nothing_to_do"
    assert row_of(table, 801)["c"] == 5
    assert indexes(table) == {}


def once(name: str, work: Callable[[], object]) -> Callable[[str], None]:
    left = [work]

    def steps(now: str) -> None:
        if now == name and left:
            left.pop()()

    return steps


def test_a_merge_in_between_makes_it_look_again(tmp_path: Path) -> None:
    table = make(tmp_path)

    def put_and_merge() -> None:
        put(table, 901, c=5, f=2.0)
        table.merge_all()

    made = done(change(table, once("commit", put_and_merge), widen=[("c", "int64")]))
    assert made.conflicts == 1
    assert row_of(table, 901)["c"] == 5
    assert table.dataset.to_table(filter="c = 5").num_rows == 1


def test_a_generation_that_comes_meanwhile_stops_it(tmp_path: Path) -> None:
    table = make(tmp_path)

    def put_and_commit() -> None:
        put(table, 901, c=5)
        table.dataset.delete("n = 1001")

    told = refusal(change(table, once("commit", put_and_commit), widen=[("c", "int64")]))
    assert "MW-K32" in told
    assert done(change(table, widen=[("c", "int64")])).outcome == "done"
    assert row_of(table, 901)["c"] == 5


class Deaf(StoredSchemaTable):
    """A table whose commits land, and nobody hears of it."""

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        super().commit(version, plan)
        raise StoreUnavailable("no reply")


def change_with(
    table: StoredSchemaTable,
    check_rest: Callable[[TableView], object] = lambda view: None,
    **asked: Any,
) -> Altered:
    """What was done, even if it then failed."""
    made = Altered(plan=SchemaPlan(columns=(), wanted=()))
    changer = SchemaChanger(
        table=table,
        plan=lambda view: plan_schema(view, SchemaRequest(**asked), read_type),
        clock=ManualClock(),
        take_lease=lambda: None,
        before_commit=lambda: None,
        check_rest=check_rest,  # type: ignore[arg-type]
    )
    try:
        changer.run(made)
    except LostRace as error:
        assert "columns are as they were, without the indexes gone." in str(error)
    return made


def test_a_commit_whose_reply_is_lost_counts(tmp_path: Path) -> None:
    made = change_with(Deaf(make(tmp_path).stores), widen=(("c", "int64"),))
    assert (made.conflicts, made.commits, made.applied) == (1, 1, True)


def test_an_index_that_is_dropped_is_told_though_every_race_is_lost(tmp_path: Path) -> None:
    table, rested, tried = make(tmp_path), list[int](), list[int]()
    table.dataset.create_scalar_index("items", "LABEL_LIST", name="gone")

    class Slow(StoredSchemaTable):
        def commit(self, version: int, plan: SchemaPlan) -> Written:
            tried.append(version)
            raise LostRace("too late")

    made = change_with(
        Slow(table.stores), lambda view: rested.append(view.version), drop=("items",)
    )
    assert (made.dropped, made.commits, made.conflicts) == (("gone",), 1, len(tried))
    assert not made.applied
    assert {*tried} < {*rested}, "once more after the index went"


@pytest.mark.parametrize("at", ["commit", "committed"])
def test_what_was_done_is_told_though_the_rest_failed(tmp_path: Path, at: str) -> None:
    table = make(tmp_path)
    put(table, 651)
    table.dataset.create_scalar_index("items", "LABEL_LIST", name="gone")

    def fail() -> None:
        raise LeaseHeld("superseded")

    report = change(table, once(at, fail), drop=["items"], fence=True)
    (told,) = report.tables
    assert isinstance(told, SchemaTableReport), told
    assert (report.outcome, told.applied) == ("held", at == "committed")
    assert (told.indexes_dropped, told.fenced) == (("gone",), (table.shards[0],))
    audited = [(item.action, item.done) for item in told.audited()]
    assert audited == [("claim", True), ("drop", True), ("rewrite", told.applied)]
    assert ("items" in table.dataset.schema.names) != told.applied


def test_a_shard_whose_flush_failed_is_told_as_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path)
    put(table, 651)

    def fail() -> None:
        raise StoreUnavailable("away")

    claim = LanceShardWriters.claim
    monkeypatch.setattr(LanceShardWriters, "claim", lambda *a, **b: (claim(*a, **b), fail)[1])
    report = change(table, drop=["items"], fence=True)
    (told,) = report.tables
    assert isinstance(told, SchemaTableReport), told
    assert (report.outcome, told.fenced, told.commits) == ("failed", (table.shards[0],), 0)
    assert [item.action for item in told.audited()] == ["claim"]


def test_what_a_column_says_of_its_encoding_stays(tmp_path: Path) -> None:
    said = {b"lance-encoding:compression": b"zstd", b"unit": b"clicks"}
    columns = [pa.field("c", pa.int32(), metadata=said)]
    table = builders.make_table(tmp_path / "t", rows=KEYS, columns=columns)
    done(change(table, widen=[("c", "int64")]))
    done(change(table, rename=[("c", "d")]))
    field = table.dataset.schema.field("d")
    assert field.type == pa.int64()
    assert field.metadata.items() >= said.items()


def test_an_index_built_in_between_is_dropped(tmp_path: Path) -> None:
    table = make(tmp_path)

    def build() -> None:
        table.dataset.create_scalar_index("c", "BTREE", name="late")

    made = done(change(table, once("commit", build), widen=[("c", "int64")]))
    assert (made.indexes_dropped, indexes(table)) == (("late",), {})
    assert table.dataset.to_table(filter="c = 1001").num_rows == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"drop": ["k"]}, "MW-K20"),
        ({"rename": [("k", "key")]}, "MW-K20"),
        ({"widen": [("vector", "fixed_size_list<item: float>[8]")]}, "MW-K23"),
        ({"widen": [("items", "list<item: int64>")]}, "MW-K23"),
        ({"add": ["x:list<int8>"], "default": [("x", "[1]")]}, "MW-K24"),
        ({"rename": [("nested.b", "d")]}, "MW-K25"),
        ({"widen": [("c", "int16")]}, "MW-K23"),
        ({"widen": [("c", "float")]}, "MW-K23"),
        ({"add": ["x:int8"], "default": [("x", "300")]}, "MW-K24"),
        ({"add": ["x:int8"], "default": [("x", "null")]}, "MW-K24"),
        ({"widen": [("none", "int64")]}, "MW-K25"),
        ({"rename": [("none", "other")]}, "MW-K25"),
        ({"add": ["c:int64"]}, "MW-K26"),
        ({"rename": [("c", "f")]}, "MW-K26"),
        ({"add": ["_x:int64"]}, "MW-K27"),
        ({"rename": [("c", "_rowid")]}, "MW-K27"),
    ],
)
def test_what_would_lose_something_is_refused(
    tmp_path: Path, asked: dict[str, Any], code: str
) -> None:
    table = make(tmp_path)
    put(table, 651, c=1)
    before = table.stores.views.table()
    assert code in refusal(change(table, **asked, fence=True))
    after = table.stores.views.table()
    assert (after.version, after.shards) == (before.version, before.shards)


@pytest.mark.parametrize(
    "asked",
    [
        {"drop": ["c"], "rename": [("f", "c")]},
        {"drop": ["c"], "add": ["c:int64"]},
        {"rename": [("c", "f"), ("f", "c")]},
        {"default": [("c", "1")]},
        {"add": ["x"]},
        {"add": ["x:nothing"]},
        {"add": [f"x:{'list<' * 9999}int8{'>' * 9999}"]},
    ],
)
def test_what_a_second_run_could_not_tell_apart_is_no_request(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    assert change(make(tmp_path), **asked).exit_code == 2


def test_what_a_policy_or_an_expiry_needs_is_kept(tmp_path: Path) -> None:
    table = make(tmp_path)
    table.dataset.add_columns(pa.field("at", pa.date32()))
    table.dataset.update_config({EXPIRE_KEY: make_expire("at", 86_400).as_text()})
    for asked in ({"drop": ["at"]}, {"rename": [("at", "on")]}, {"widen": [("at", "date64[ms]")]}):
        assert "MW-K21" in refusal(change(table, **asked))
    policed = make(tmp_path / "p")
    policy = make_policy({"c": ("sum", None)}, None, None)
    policed.dataset.update_config({STORED_KEY: policy.as_text()})
    assert "MW-K21" in refusal(change(policed, drop=["c"]))
    assert done(change(policed, widen=[("c", "int64")])).rows_rewritten == len(KEYS)


def test_files_of_a_lost_attempt_are_leftovers_that_cleanup_removes(tmp_path: Path) -> None:
    table = make(tmp_path)
    other = once("commit", lambda: table.dataset.delete("n = 1001"))
    assert done(change(table, other, widen=[("c", "int64")])).conflicts == 1
    named = {f"data/{f.path}" for p in table.dataset.get_fragments() for f in p.metadata.files}
    table.dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert {f"data/{f.name}" for f in (Path(table.uri) / "data").iterdir()} == named
    table.dataset.validate()


def test_on_an_object_store(s3_server: S3Server, make_s3_uri: Callable[[], str]) -> None:
    table = builders.make_table(
        make_s3_uri(), rows=KEYS, indexed=True, options=s3_server.storage_options
    )
    table.flush(table.shards[0], Put([1, 2], 5))
    made = done(
        change(table, widen=[("text", "large_string")], add=["x:int8"], default=[("x", "1")])
    )
    assert made.rows_rewritten >= len(KEYS)
    assert all(f.file_size_bytes for p in table.dataset.get_fragments() for f in p.metadata.files)
    table.dataset.validate()
    assert row_of(table, table.kind.key(1)[0])["x"] == 1


def test_a_lancedb_client_goes_on(tmp_path: Path) -> None:
    with lancedb_client(tmp_path) as lancedb:
        lancedb("create", spec=["unsharded"])
        lancedb("put", rows=[{"id": 1, "tenant": "a", "n": 1}])
        table = Table(uri=str(tmp_path / "t.lance"), kind=builders.KINDS["int64"])
        done(change(table, widen=[("tenant", "large_string")], add=["x:int32"]))
        done(change(table, add=["y:int32"], default=[("y", "0")]))
        rows = lancedb("read")
        assert [(r["id"], r["tenant"], r["n"]) for r in rows] == [(1, "a", 1)], rows
