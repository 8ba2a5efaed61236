"""Rows that writers wrote under an older schema, merged and read under the new one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.errors import Refused
from memwal.read import open_table
from memwal.read.plan.request import Nearest, Search
from memwal.rows.policy import make_policy
from tests.jobs.merge.test_merge_shapes import merge_job
from tests.support import builders, evolved
from tests.support.builders import Put, Table
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration

AGAIN = "--allow-reinitialised"
SMALL = pa.field("small", pa.int32())
MEMBERS = pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]))


def make(path: Path, *columns: pa.Field, **options: Any) -> Table:
    return builders.make_table(path / "t", rows=range(4), columns=columns, **options)


def read(table: Table, **request: Any) -> list[dict[str, Any]]:
    rows = open_table(table.uri).read(**request).read_all().to_pylist()
    return sorted(rows, key=lambda row: row["k"])


def check(table: Table, column: str, wanted: dict[int, Any], *flags: str, **options: Any) -> None:
    """Every read has these values of the keys, by number, before the merge and after it."""
    keys = {table.kind.key(number)[0]: value for number, value in wanted.items()}
    for request in ({}, {"columns": ["k", column]}):
        found = {row["k"]: row[column] for row in read(table, **request, **options)}
        assert {key: found[key] for key in keys} == keys
    for key, value in keys.items():
        # What looks like a function is asked of each generation by itself.
        for left in (column, f"coalesce({column}, {column})"):
            if isinstance(value, int | str):
                matches = read(table, filter=f"{left} = {value!r} AND k = {key}", **options)
                assert [row[column] for row in matches] == [value]
    if "with_wal" in options:
        return
    assert merge_job(table, *flags).exit_code == 0
    found = {row["k"]: row[column] for row in table.dataset.to_table().to_pylist()}
    assert {key: found[key] for key in keys} == keys


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (pa.int32(), pa.int64(), -(2**31)),
        (pa.int32(), pa.float64(), 2**31 - 1),
        (pa.string(), pa.large_string(), "ä"),
        (pa.timestamp("s"), pa.timestamp("ns"), datetime(2020, 1, 2)),
    ],
    ids=str,
)
def test_a_widened_column_is_converted(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, value: Any
) -> None:
    table = make(tmp_path, pa.field("v", old))
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"v": value}))
    with table.writer(shard) as writer:  # opened before
        schema = table.dataset.schema
        evolved.widen(table.uri, "v", new)
        done: builders.Effects = {}
        builders.apply(table, writer, schema, Put([3, 6], 700, {"v": value}), done)
        builders.apply(table, writer, schema, Put([7], 700, {"v": None}), done)
    assert table.dataset.schema.field("v").type == new
    table.flush(shard, Put([8], 700, {"v": value}))
    check(table, "v", {2: value, 5: value, 3: value, 6: value, 7: None, 8: value, 0: None})


def test_a_value_that_does_not_fit_is_refused_with_its_key(tmp_path: Path) -> None:
    table = make(tmp_path, pa.field("v", pa.timestamp("s")))
    (shard,) = table.shards
    table.flush(shard, Put([5], 600, {"v": datetime(2020, 1, 2)}))
    key = table.kind.key(6)[0]
    table.flush(shard, Put([6], 600, {"v": datetime(2900, 1, 2)}))
    evolved.widen(table.uri, "v", pa.timestamp("ns"))
    run = merge_job(table)
    assert run.exit_code == 5
    assert f"'v' of the row {{'k': {key}}} does not fit timestamp[ns]" in str(run.report)
    assert table.progress() == {}
    with pytest.raises(Refused, match=r"generation 2 .*does not fit"):
        read(table)


def test_a_table_that_was_narrowed_is_refused_and_widened_again(tmp_path: Path) -> None:
    table = make(tmp_path, SMALL)
    (shard,) = table.shards
    before = table.dataset.version
    evolved.widen(table.uri, "small", pa.int64())
    table.flush(shard, Put([5], 600, {"small": 2**40}))
    table.at(before).restore()
    run = merge_job(table)
    assert run.exit_code == 5
    assert "--widen small=int64 --apply" in str(run.report)
    with pytest.raises(Refused):
        read(table)
    evolved.widen(table.uri, "small", pa.int64())
    check(table, "small", {5: 2**40})


@pytest.mark.parametrize("change", ["added", "was nullable"])
def test_a_default_takes_the_place_of_what_older_rows_lack(tmp_path: Path, change: str) -> None:
    table = make(tmp_path, *([] if change == "added" else [SMALL]))
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"small": None}))
    table.flush(shard, Put([6], 600, {"small": 3}))
    if change == "added":
        table.dataset.add_columns(SMALL)
    evolved.fill(table.uri, "small", 7)
    evolved.require(table.uri, "small", "7")
    check(table, "small", {2: 7, 5: 7, 6: 7 if change == "added" else 3, 3: 7})


def test_a_wal_that_a_new_writer_replayed_gets_the_default(tmp_path: Path) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    abandon(table, shard, Put([5], 600))
    table.dataset.add_columns(SMALL)
    evolved.fill(table.uri, "small", 7)
    evolved.require(table.uri, "small", "7")
    check(table, "small", {5: 7}, with_wal=True)
    table.flush(shard, Put([6], 600, {"small": 3}))
    check(table, "small", {5: 7, 6: 3})


def test_a_wal_is_converted_too(tmp_path: Path) -> None:
    table = make(tmp_path, SMALL, MEMBERS)
    (shard,) = table.shards
    abandon(table, shard, Put([5], 600, {"small": 9, "s": {"a": 1, "b": "x"}}))
    evolved.widen(table.uri, "small", pa.int64())
    table.dataset.alter_columns({"path": "s.a", "name": "c"})
    table.dataset.drop_columns(["s.b"])
    check(table, "small", {5: 9}, with_wal=True)
    check(table, "s", {5: {"c": 1}}, with_wal=True)
    found = read(table, filter="s.c = 1", with_wal=True)
    assert [row["s"] for row in found] == [{"c": 1}]


def test_a_column_without_default_that_may_not_be_null_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    table.flush(shard, Put([5], 600))
    table.dataset.add_columns(SMALL)
    evolved.fill(table.uri, "small", 7)
    evolved.require(table.uri, "small", None)
    run = merge_job(table)
    assert run.exit_code == 5
    assert "--require small" in str(run.report)
    evolved.require(table.uri, "small", "7")
    check(table, "small", {5: 7})


def _cast(uri: str, column: str, kind: pa.DataType) -> None:
    """Without a MemWAL Lance takes a cast; then the table gets another MemWAL."""
    lance.dataset(uri).drop_index("__lance_mem_wal")
    lance.dataset(uri).alter_columns({"path": column, "data_type": kind})
    lance.dataset(uri).initialize_mem_wal()


def test_lance_s_own_cast_is_converted_where_a_version_shows_it(tmp_path: Path) -> None:
    table = make(tmp_path, SMALL)
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"small": 9}))
    _cast(table.uri, "small", pa.int64())
    check(table, "small", {2: 9, 5: 9, 3: None}, AGAIN, allow_reinitialised=True)


def test_lance_s_own_cast_to_a_narrower_type_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path, pa.field("wide", pa.int64()))
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"wide": 2**40}))
    _cast(table.uri, "wide", pa.int32())
    run = merge_job(table, AGAIN)
    assert run.exit_code == 5
    assert "MW-K08" in str(run.report)


@pytest.mark.parametrize("first_is_kept", [False, True])
def test_a_cast_that_no_version_shows_is_refused(tmp_path: Path, first_is_kept: bool) -> None:
    table = make(tmp_path, SMALL)
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"small": 9}))
    if first_is_kept:
        table.dataset.tags.create("first", table.dataset.version)
    _cast(table.uri, "small", pa.int64())
    table.dataset.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    run = merge_job(table, AGAIN)
    assert run.exit_code == 5
    assert "MW-K12" in str(run.report)


def test_members_of_a_struct_are_lined_up(tmp_path: Path) -> None:
    table = make(tmp_path, MEMBERS)
    (shard,) = table.shards
    table.flush(shard, Put([2, 5], 600, {"s": {"a": 1, "b": "x"}}), Put([6], 600, {"s": None}))
    table.dataset.alter_columns({"path": "s.a", "name": "c"})
    table.dataset.drop_columns(["s.b"])
    table.dataset.add_columns(pa.field("s", pa.struct([pa.field("b", pa.string())])))
    wanted = {"c": 1, "b": None}
    assert [row["s"] for row in read(table, filter="s.c = 1")] == [wanted, wanted]
    assert read(table, filter="s.b = 'x'") == []
    check(table, "s", {2: wanted, 5: wanted, 6: None})


# ---- searches


def test_a_search_finds_words_that_are_converted_and_those_of_a_default(tmp_path: Path) -> None:
    table = make(tmp_path, pa.field("words", pa.string()))
    (shard,) = table.shards
    table.flush(shard, Put([5], 600, {"words": "apples"}), Put([6], 600, {"words": None}))
    evolved.fill(table.uri, "words", "an apple")
    evolved.widen(
        table.uri,
        "words",
        pa.large_string(),
        nullable=False,
        metadata={"memwal:default": '"an apple"'},
    )
    table.dataset.create_scalar_index("words", "INVERTED")
    wanted = Search(column="words", query="apples")
    found = {row["k"]: row["words"] for row in read(table, search=wanted)}
    keys = {number: table.kind.key(number)[0] for number in (3, 5, 6)}
    assert {found[keys[3]], found[keys[6]]} == {"an apple"}
    assert found[keys[5]] == "apples"
    assert len(found) == 6


def test_a_search_finds_vectors_that_are_converted(tmp_path: Path) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    table.flush(shard, Put([5], 601))
    evolved.widen(table.uri, "vector", pa.list_(pa.float64(), 4))
    near = Nearest(column="vector", vector=(601.0, 300.5, -601.0, 0.5), k=1)
    (row,) = read(table, nearest=near)
    assert (row["k"], row["_distance"]) == (table.kind.key(5)[0], 0)
    check(table, "vector", {5: [601.0, 300.5, -601.0, 0.5]})


# ---- with a row-merge policy

ITEMS = pa.list_(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]))
LISTS = [
    pa.field("bag", pa.list_(pa.int32())),
    pa.field("log", ITEMS),
    pa.field("seen", pa.int32()),
]
POLICY = make_policy(
    {
        "bag": ("set_union", None),
        "log": ("list_append", None),
        "seen": ("coalesce", None),
        "small": ("sum", None),
    },
    None,
    None,
)


def make_with_policy(path: Path) -> Table:
    table = make(path, *LISTS, SMALL)
    table.stores.tables.put_policy(POLICY.as_text())
    return table


def test_a_default_takes_the_place_of_a_result_and_of_no_operand(tmp_path: Path) -> None:
    table = make_with_policy(tmp_path)
    (shard,) = table.shards
    nothing = {"bag": None, "log": None}
    table.flush(shard, Put([2], 600, {**nothing, "seen": 5, "small": 10}))
    assert merge_job(table).exit_code == 0
    table.flush(shard, Put([2, 6], 600, {**nothing, "seen": None, "small": None}))
    for column in ("seen", "small"):
        evolved.fill(table.uri, column, 7)
        evolved.require(table.uri, column, "7")
    table.flush(shard, Put([2], 600, {**nothing, "seen": 5, "small": 1}))
    check(table, "seen", {2: 5, 6: 7, 3: 7})
    check(table, "small", {2: 11, 6: 7, 3: 7})


def test_an_operand_in_the_wal_says_nothing_where_it_has_null(tmp_path: Path) -> None:
    table = make_with_policy(tmp_path)
    (shard,) = table.shards
    nothing = {"bag": None, "log": None}
    table.flush(shard, Put([2], 600, {**nothing, "seen": 5, "small": 10}))
    abandon(table, shard, Put([2, 6], 600, {**nothing, "seen": None, "small": None}))
    evolved.fill(table.uri, "seen", 7)
    evolved.require(table.uri, "seen", "7")
    check(table, "seen", {2: 5, 6: 7, 3: 7}, with_wal=True)


def test_lists_of_structs_fold_with_those_of_an_older_schema(tmp_path: Path) -> None:
    table = make_with_policy(tmp_path)
    (shard,) = table.shards
    old = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    rest = {"seen": None, "small": 2**30}
    table.flush(shard, Put([2, 6], 600, {**rest, "bag": [2, 1], "log": old}))
    table.dataset.alter_columns({"path": "log.item.a", "name": "c"})
    table.dataset.drop_columns(["log.item.b"])
    evolved.widen(table.uri, "small", pa.int64())
    new = {"bag": [1, 3], "log": [{"c": 2}, {"c": 3}], "small": 2**40}
    table.flush(shard, Put([2], 600, {**rest, **new}))
    result = {"bag": [2, 1, 3], "log": [{"c": 1}, {"c": 2}, {"c": 2}, {"c": 3}]}
    result["small"] = 2**40 + 2**30
    key = table.kind.key(2)[0]
    for column, wanted in result.items():
        assert {row["k"]: row[column] for row in read(table)}[key] == wanted
    check(table, "log", {2: result["log"], 6: [{"c": 1}, {"c": 2}]})
    check(table, "bag", {2: [2, 1, 3], 6: [2, 1]})
    check(table, "small", {2: 2**40 + 2**30, 6: 2**30})
