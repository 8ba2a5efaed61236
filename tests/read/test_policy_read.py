"""The merging read by a row-merge policy, on real tables, against the row-by-row model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import Refused, Unsupported
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest
from memwal.jobs.merge.request import MergeRequest
from memwal.read import open_table
from memwal.read.job import ReadOptions, explain, run_read
from memwal.read.plan.request import Nearest, ReadRequest, Search
from memwal.read.request import ReadAsked
from memwal.read.table import ReadableTable
from memwal.rows.policy import RowPolicy, make_policy
from memwal.store.records.checkpoints import LanceTags
from tests.support.policy_tables import (
    PolicyTable,
    Variant,
    make_policy_table,
    random_generation,
    random_table,
    seconds,
)
from tests.support.sampling import seeds

pytestmark = pytest.mark.integration

SEEDS = seeds(5, 1)
KINDS_TRIED = ("int64", "utf8", "utf8+int32", "binary")
FILTERS = (
    "n > 20",
    "n IS NULL OR n < 0",
    "note = 'note 7' OR top >= '5'",
    "array_length(log) >= 2",
    "n + 1 > 5 AND seen = 1",
    "true",
)


def reader(table: PolicyTable) -> ReadableTable:
    return ReadableTable(table.uri, clock=table.clock)


def rows_of(table: PolicyTable, **how: Any) -> dict[Any, Any]:
    return table.keyed(reader(table).read(**how).read_all())


def matching(table: PolicyTable, truth: dict[Any, Any], condition: str) -> dict[Any, Any]:
    """The truth's rows that match, by Lance's own word."""
    fields = [pa.field(f.name, f.type) for f in table.dataset.schema]
    rows = pa.Table.from_pylist(list(truth.values()), schema=pa.schema(fields))
    return table.keyed(lance.write_dataset(rows, "memory://").to_table(filter=condition))


def check(table: PolicyTable, chance: random.Random) -> None:
    """All kinds of reads are the truth's."""
    truth = table.by_key(table.truth())
    found = reader(table).read().read_all()
    assert found.schema.equals(table.dataset.schema)
    assert table.keyed(found) == truth
    condition = chance.choice(FILTERS)
    wanted = matching(table, truth, condition)
    assert rows_of(table, filter=condition) == wanted
    names = [*table.kind.names, *chance.sample(["n", "tags", "log", "note", "top"], 2)]
    shown = rows_of(table, columns=names[::-1], filter=condition)
    assert shown == {k: {n: r[n] for n in names[::-1]} for k, r in wanted.items()}
    number = chance.randrange(14)
    key = dict(zip(table.kind.names, table.kind.key(number), strict=True))
    assert rows_of(table, key=key) == {
        k: r for k, r in truth.items() if k == table.kind.key(number)
    }
    assert len(reader(table).read(limit=3).read_all()) == min(3, len(truth))
    some = rows_of(table, limit=2, filter=condition)
    assert len(some) == min(2, len(wanted))
    assert all(wanted[k] == row for k, row in some.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_reads_are_the_truth_whatever_is_merged(tmp_path: Path, seed: int) -> None:
    variant = Variant(key=KINDS_TRIED[seed % 4], marker=seed % 3 != 0, expiry=seed % 5 != 0)
    table = random_table(tmp_path / "t", seed, variant)
    chance = random.Random(seed)
    first = int(table.dataset.version)
    check(table, chance)
    for shard in table.shards:
        until = chance.randint(1, len(table.written[shard]))
        found = table.merger().run(shard, MergeRequest(until_generation=until))
        assert found.error is None, found
        check(table, chance)
    truth = table.by_key(table.truth())
    for version in range(first, int(table.dataset.version) + 1):
        assert rows_of(table, version=version) == truth


def test_time_passes_for_readers(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1, 2])
    table.flush(
        (1, table.row(1, 5, until=seconds(10))),
        (2, table.row(2, 7, op=False, until=seconds(20))),
        (3, table.row(3, 9, until=seconds(30))),
    )
    for _ in range(5):
        assert rows_of(table) == table.by_key(table.truth())
        table.clock.advance(9)
    table.merge()
    assert {r["n"] for r in rows_of(table).values()} == {1001}


def test_no_snapshot_is_advised_where_none_is_taken(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    with pytest.warns(UserWarning, match="policy gets no snapshot; .* as for latest$"):
        open_table(table.uri, consistency="snapshot").read().read_all()


def test_a_checkpoint_has_the_policy_and_the_expiry_of_its_moment(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", stored=False)
    table.flush((1, table.row(1, 5, op=False, until=seconds(10))), (2, table.row(2, 5)))
    maker = CheckpointMaker(
        uri=table.uri,
        views=table.stores.views,
        checkpoints=table.stores.checkpoints,
        tags=LanceTags(table.stores.tables),
        clock=table.clock,
        take_lease=lambda: None,
        before_commit=lambda: None,
    )
    maker.create(CheckpointRequest(name="bare", holder="ann"))
    bare = rows_of(table)
    table.stores.tables.put_policy(table.variant.policy.as_text())
    table.flush((2, table.row(2, 6)))
    maker.create(CheckpointRequest(name="folded", holder="ann"))
    folded = rows_of(table)
    assert folded == table.by_key(table.truth())
    table.clock.advance(60)
    table.merge()
    assert rows_of(table) == {key: row for key, row in folded.items() if row["until"] is None}
    assert rows_of(table, checkpoint="folded") == folded
    assert rows_of(table, checkpoint="bare") == bare


def test_what_was_merged_expires_in_the_base(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t")
    table.flush((3, table.row(3, 9, until=seconds(30))), (4, table.row(4, 1)))
    table.merge()
    assert len(rows_of(table)) == 2
    table.clock.advance(30)
    assert [r["n"] for r in rows_of(table).values()] == [1]
    assert rows_of(table, columns=["k"]).keys() == {table.kind.key(4)}
    assert rows_of(table, filter="n = 9") == {}


def test_rows_that_are_in_the_wal_only_are_folded_too(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1, 2])
    table.flush((1, table.row(1, 5)))
    schema = table.dataset.schema
    keys = pa.schema([schema.field("k")])
    writer = table.dataset.mem_wal_writer(table.shards[0], max_wal_flush_interval_ms=1)
    entries = [(1, table.row(1, 6)), (1, table.row(1, 7)), (2, None), (2, table.row(2, 3))]
    for key, row in entries:
        if row is None:
            writer.delete(pa.table({"k": [table.kind.key(key)[0]]}, schema=keys))
        else:
            writer.put(pa.Table.from_pylist([row], schema=schema))

    assert {r["n"] for r in rows_of(table).values()} == {1006, 1002}
    table.written[table.shards[0]].append(entries)
    assert rows_of(table, with_wal=True) == table.by_key(table.truth())
    writer.close()
    assert rows_of(table) == table.by_key(table.truth())


def test_a_policy_that_came_after_a_version_counts_for_it(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1], stored=False)
    table.flush((1, table.row(1, 5)), (1, table.row(1, 6)))
    before = int(table.dataset.version)
    table.stores.tables.put_policy(table.variant.policy.as_text())
    table.merge()

    truth = table.by_key(table.truth())
    assert rows_of(table, version=before) == rows_of(table) == truth


def test_a_large_backlog_is_folded_shard_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.read.store.policy_read._TOGETHER_BYTES_MAX", 1)
    table = make_policy_table(tmp_path / "t", rows=range(12), shards=3)
    chance = random.Random(3)
    for number, shard in enumerate(table.shards):
        entries = random_generation(table, chance, range(number, 12, 3), 10)
        table.flush(*entries, shard=shard)
    assert rows_of(table) == table.by_key(table.truth())


def test_a_search_is_unsupported(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    with pytest.raises(Unsupported, match=r"can't be searched for texts: .*; once it is merged"):
        reader(table).read(search=Search(column="n", query="a"))
    with pytest.raises(Unsupported, match="row-merge policy can't be searched"):
        reader(table).read(nearest=Nearest(column="n", vector=(1.0,)))


def test_an_operators_error_is_the_readers(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    table.flush((1, table.row(1, 2**63 - 1)))
    with pytest.raises(Refused, match=r"operator 'sum' failed on column 'n' of key"):
        reader(table).read()
    # A column that is not read is not folded.
    assert rows_of(table, columns=["k", "note"])[table.kind.key(1)]["note"] != "note 1001"


def test_a_key_that_does_not_fit_stops_only_the_reads_that_may_want_it(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1, 2, 3])
    table.flush((1, table.row(1, 2**63 - 1)), (2, table.row(2, 1)), (4, table.row(4, 2**63 - 1)))
    table.flush((4, table.row(4, 1)))
    ids = {number: table.kind.key(number)[0] for number in (1, 2, 3, 4)}
    good = {table.kind.key(number): 1000 + number + (number == 2) for number in (2, 3)}

    def numbers(condition: str) -> dict[Any, int]:
        return {key: row["n"] for key, row in rows_of(table, filter=condition).items()}

    assert numbers(f"k in ({ids[2]}, {ids[3]})") == good
    assert numbers(f"k != {ids[1]} and k != {ids[4]}") == good
    assert rows_of(table, key={"k": ids[2]})[table.kind.key(2)]["n"] == 1003
    for bad in (1, 4):
        with pytest.raises(Refused, match=rf"of key {{'k': {ids[bad]}}}: overflow"):
            reader(table).read(filter=f"k = {ids[bad]}")
        with pytest.raises(Refused, match=rf"of key {{'k': {ids[bad]}}}: overflow"):
            reader(table).read(key={"k": ids[bad]})
    # Of a filter of more columns, nothing tells what it needs of the key.
    for condition in (f"k = {ids[2]} or n > 5", f"k = {ids[2]} and n > 5", f"k + n > {ids[1]}"):
        with pytest.raises(Refused, match="overflow"):
            reader(table).read(filter=condition)


def test_however_many_keys_do_not_fit_others_are_read(tmp_path: Path) -> None:
    many = range(1, 121)
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=many)
    table.flush(*((n, table.row(n, 2**63 - 1)) for n in many), (500, table.row(500, 7)))
    (key,) = table.kind.key(500)
    assert [row["n"] for row in rows_of(table, filter=f"k = {key}").values()] == [7]
    with pytest.raises(Refused, match="overflow"):
        reader(table).read(filter="n > 5")


def test_explain_says_how_it_is_read(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1], indexed=True)
    table.flush((1, table.row(1, 5)))
    opened = reader(table)
    document = explain(opened, ReadRequest(keys=opened.check_keys({"k": table.kind.key(1)[0]})))
    assert "row-merge policy" in document["way"]


# ---- the command


def command(table: PolicyTable, policy: RowPolicy | None, *, explained: bool = False) -> Any:
    resolved = ResolvedTable(
        name="t", uri=table.uri, settings=Settings(), storage_options={}, policy=policy
    )
    return run_read(ReadOptions(table=resolved, asked=ReadAsked(explain=explained))).to_json()


@pytest.mark.parametrize("explained", [False, True])
def test_the_command_wants_the_configured_policy_in_the_table(
    tmp_path: Path, explained: bool
) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1], stored=False)
    policy = table.variant.policy
    with pytest.raises(Refused, match="does not have yet"):
        command(table, policy, explained=explained)
    table.stores.tables.put_policy(policy.as_text())
    assert command(table, policy, explained=explained)["outcome"] == "done"
    assert command(table, None, explained=explained)["outcome"] == "done"
    with pytest.raises(Refused, match="the table's is"):
        command(table, make_policy({"n": ("max", None)}, None, None), explained=explained)
