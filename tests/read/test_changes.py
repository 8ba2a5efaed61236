"""`changes`: what changed between two versions, against whole reads of both."""

from __future__ import annotations

import json
import pickle
import random
from datetime import timedelta
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal
from memwal.cli.commands import make_app
from memwal.errors import Corruption, Refused, Unsupported, Usage
from memwal.read.plan.changes import ChangesRequest
from memwal.read.spark import MemWalDataSource
from memwal.read.store.changes import open_changes
from tests.support import garbage_runs
from tests.support.builders import Delete, Put, Row, Table, make_table
from tests.support.sampling import FULL, grid, many


def changes(table: Table, since: int, until: int | None = None, **asked: Any) -> list[Row]:
    stores = table.stores
    request = ChangesRequest(since=since, until=until, **asked)
    opened = open_changes(stores.tables, stores.table_manifests, request)
    found = pa.Table.from_batches(opened.read(), opened.schema).to_pylist()
    told = [row["_change"] for row in found]
    assert opened.counts == {kind: told.count(kind) for kind in ("insert", "update", "delete")}
    return found


def tracked(tmp_path: Any, kind: str = "int64", **more: Any) -> Table:
    return make_table(
        tmp_path / "t.lance", kind, enable_stable_row_ids=True, max_rows_per_file=8, **more
    )


def work(table: Table, chance: random.Random) -> None:
    """One thing that somebody does to a table."""
    shard = table.shards[0]
    keys = range(30)
    some = chance.sample(keys, 5)
    what = chance.choice(
        ("merge", "merge", "merge", "delete", "update", "rekey", "compact", "index")
    )
    n = chance.randrange(10_000)
    name = table.kind.names[-1]
    if what == "merge":
        table.flush(shard, Put(some[:3], n), Delete(some[3:]), Put(some[4:], n + 1))
        table.flush(shard, Delete(some[:1]))
        table.merge_all()
    elif what == "delete":
        table.dataset.delete(f"n % 7 = {n % 7}")
    elif what == "update":
        table.dataset.update({"n": f"n + {n}"}, where="n % 3 = 1")
    elif what == "rekey" and table.kind.name == "int64":
        there = sorted(key for (key,) in table.base_rows() if abs(key) < 10**6)
        moved = [key for key in there if key + 1000 not in there][:2]
        table.dataset.update(
            {name: f"{name} + 1000"}, where=f"{name} IN ({','.join(map(str, moved or [0]))})"
        )
    elif what == "compact":
        table.dataset.optimize.compact_files(target_rows_per_fragment=1000)
    elif what == "index":
        table.dataset.create_scalar_index("n", "BTREE", name="n_idx", replace=True)


@pytest.mark.parametrize(
    ("seed", "kind"), grid(range(many(6, 2)), ("int64", "utf8", "bool+uint64", "binary"))
)
def test_changes_make_a_copy_the_same_at_each_version(tmp_path: Any, seed: int, kind: str) -> None:
    table = tracked(tmp_path, kind, rows=range(20))
    first = int(table.dataset.version)
    chance = random.Random(seed)
    for _ in range(many(8, 5)):
        work(table, chance)
    held = {v: table.base_rows(v) for v in range(first, int(table.dataset.version) + 1)}
    last = max(held)
    for since, until in combinations_with_replacement(held, 2):
        if FULL or since == first or until in (since + 1, last):
            check(table, changes(table, since, until, before=True), held, since, until)
            check_again(table, changes(table, since, until, passing=True), held, since, until)


def check(table: Table, found: list[Row], held: Any, since: int, until: int) -> None:
    before, after = held[since], held[until]
    copy = dict(before)
    for row in found:
        key = tuple(row[name] for name in table.kind.names)
        change, version, _, then = (
            row.pop(f"_{n}") for n in ("change", "version", "time", "before")
        )
        assert since < version <= until
        assert then == before.get(key)
        assert change == ("insert" if key not in before else "update" if key in after else "delete")
        if change == "delete":
            assert key in held[version - 1] or until > since + 1
            assert copy.pop(key, None) is not None
        else:
            copy[key] = row
            assert held[version][key] == row
    assert copy == after, (since, until)


def check_again(table: Table, found: list[Row], held: Any, since: int, until: int) -> None:
    """Who has applied changes up to any version since then comes to the same rows."""
    if table.kind.name == "int64":  # whose keys are also updated: what they were is not told
        return
    told = {tuple(row[name] for name in table.kind.names): row["_change"] for row in found}
    assert len(told) == len(found)
    for began in range(since, until + 1):
        kept = {key: row for key, row in held[began].items() if key not in told}
        assert kept == {key: row for key, row in held[until].items() if key not in told}
    assert {key for key, change in told.items() if change != "delete"} <= held[until].keys()
    assert held[until].keys().isdisjoint(k for k, change in told.items() if change == "delete")


def test_work_on_files_and_indexes_changes_no_row(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(30), indexed=True)
    table.dataset.delete("k < 3")
    since = int(table.dataset.version)
    table.dataset.optimize.compact_files()
    table.dataset.create_scalar_index("n", "BTREE", name="n_idx")
    table.dataset.optimize.optimize_indices()
    assert table.dataset.version > since
    assert changes(table, since) == []


def test_from_nothing_each_row_is_an_insert(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(5))
    assert [row["_change"] for row in changes(table, 0)] == ["insert"] * 5
    assert [row["_before"] for row in changes(table, 0, before=True)] == [None] * 5


def test_a_key_that_came_and_went_is_not_told(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=[1])
    since = int(table.dataset.version)
    for op in (Put([5], 1), Delete([5])):
        table.flush(table.shards[0], op)
        table.merge_all()
    assert changes(table, since) == []


def follow(table: Table, way: str, **options: str) -> list[Row]:
    """The changes since the cursor `mart`, as Python or a worker of Spark's reads them."""
    if way == "python":
        return list(memwal.open_table(table.uri).changes(cursor="mart").read_all().to_pylist())
    options = {"path": table.uri, "changes_cursor": "mart", **options}
    source = pickle.loads(pickle.dumps(MemWalDataSource(options)))
    if way == "batch":
        reader = source.reader(source.schema())
        ranges = reader.partitions()
    else:
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        ranges = reader.partitions(start, reader.latestOffset(start, None))
    reader, ranges = pickle.loads(pickle.dumps((reader, ranges)))
    return [row for one in ranges for batch in reader.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("way", ["python", "batch", "stream"])
def test_who_died_before_the_commit_is_told_of_what_went_since(tmp_path: Any, way: str) -> None:
    """A consumer applies changes, dies, and begins where its cursor still stands."""
    table = tracked(tmp_path, rows=[1])
    memwal.open_table(table.uri).commit_changes("mart", int(table.dataset.version))
    copy = table.base_rows()

    def apply() -> None:
        for row in follow(table, way):
            key = (row["k"],)
            change, *_ = (row.pop(f"_{n}") for n in ("change", "version", "time"))
            if change == "delete":
                copy.pop(key, None)
            else:
                copy[key] = row

    def merge(*ops: Any) -> None:
        table.flush(table.shards[0], *ops)
        table.merge_all()

    merge(Put([5, 6, 7], 1), Delete([1]))
    apply()
    merge(Delete([5, 6]))
    merge(Put([1, 6], 2))
    merge(Delete([1, 6]))
    merge(Put([6], 3))
    apply()
    assert copy == table.base_rows()
    since = follow(table, way)
    told = {row["k"]: row["_change"] for row in since}
    keys = [table.kind.key(k)[0] for k in (1, 5, 6, 7)]
    assert len(told) == len(since)
    assert [told.get(k) for k in keys] == ["delete", "delete", "insert", "insert"]


@pytest.mark.parametrize("way", ["batch", "stream"])
def test_spark_reads_no_further_than_asked(tmp_path: Any, way: str) -> None:
    table = tracked(tmp_path, rows=[1])
    memwal.open_table(table.uri).commit_changes("mart", int(table.dataset.version))
    versions = []
    for key in (5, 6):
        table.flush(table.shards[0], Put([key], 1))
        table.merge_all()
        versions.append(int(table.dataset.version))
    until = versions[0]
    [row] = follow(table, way, changes_until=str(until))
    assert (row["k"], row["_change"]) == (*table.kind.key(5), "insert")
    memwal.open_table(table.uri).commit_changes("mart", until)
    assert follow(table, way, changes_until=str(until)) == []


def test_a_key_that_went_and_came_back_is_an_update(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=[1, 2])
    since = int(table.dataset.version)
    for op in (Delete([1]), Put([1], 7)):
        table.flush(table.shards[0], op)
        table.merge_all()
    (row,) = changes(table, since, columns=("n",), before=True)
    assert (row["_change"], row["n"], row["_before"]["n"]) == ("update", 7, 1001)


def test_a_row_that_got_another_key_is_a_delete_and_an_insert(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=[1, 2])
    since, (name,) = int(table.dataset.version), table.kind.names
    key = min(key for (key,) in table.base_rows())
    table.dataset.update({name: f"{name} + 1000"}, where=f"{name} = {key}")
    found = {(row["_change"], row[name]) for row in changes(table, since)}
    assert found == {("insert", key + 1000), ("delete", key)}


def test_columns_and_the_row_before(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=[1, 2])
    since = int(table.dataset.version)
    table.flush(table.shards[0], Put([1], 7), Delete([2]))
    table.merge_all()
    (k,) = table.kind.names
    found = {row[k]: row for row in changes(table, since, columns=("n",), before=True)}
    one, two = (table.kind.key(key)[0] for key in (1, 2))
    assert (found[one]["n"], found[one]["_before"]) == (7, {k: one, "n": 1001})
    assert (found[two]["n"], found[two]["_before"]) == (None, {k: two, "n": 1002})
    assert set(found[one]) == {"_change", "_version", "_time", k, "n", "_before"}


def test_a_restore_and_an_overwrite_are_told(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(5))
    since = int(table.dataset.version)
    table.dataset.delete("n = 1001")
    table.at(since).restore()
    with pytest.raises(
        Refused, match=rf"version {since + 2} was a Restore.*--since {since + 2}.*Y02"
    ):
        changes(table, since)
    assert changes(table, since + 2) == []
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    with pytest.raises(Refused, match="was a Overwrite"):
        changes(table, since + 2)


def test_a_version_that_expired_says_from_where_changes_are_known(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(5))
    since = int(table.dataset.version)
    table.dataset.tags.create("kept", since)
    for n in range(3):
        table.dataset.delete(f"n = {1000 + n}")
    latest = int(table.dataset.version)
    table.dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(
        Refused, match=rf"version {since + 1} has expired.*from version {latest} on.*Y01"
    ):
        changes(table, since)
    assert changes(table, latest) == []


def test_what_can_t_be_answered_says_why(tmp_path: Any) -> None:
    table = make_table(tmp_path / "plain.lance", rows=range(3))
    with pytest.raises(Unsupported, match=r"no stable row ids.*Y04"):
        changes(table, 1)
    table = tracked(tmp_path, rows=range(3))
    with pytest.raises(Usage, match="latest version is"):
        changes(table, 99)
    with pytest.raises(Usage, match="latest version is"):
        changes(table, -1)
    with pytest.raises(Usage, match="no column 'x'"):
        changes(table, 1, columns=("x",))


def garbage(table: Table) -> Any:
    return memwal.open_table(table.uri).garbage(
        execute=True, retention_seconds=0.0, grace_seconds=0.0, allow_short_retention=True
    )


def test_garbage_keeps_what_a_cursor_needs_until_it_moves_or_nobody_moves_it(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(9))
    since = int(table.dataset.version)
    api = memwal.open_table(table.uri)
    api.commit_changes("mart", since)
    for n in range(3):
        table.dataset.delete(f"n = {1000 + n}")
    latest = int(table.dataset.version)

    report = garbage(table)
    assert table.versions() == list(range(since, latest + 1))
    assert any(f"from {since} on are kept for cursor 'mart'" in text for text in report.warnings)
    assert api.changes(cursor="mart").read_all().num_rows == 3

    api.commit_changes("mart", since + 2, transaction="tx 7")
    garbage(table)
    assert table.versions() == list(range(since + 2, latest + 1))
    with pytest.raises(Refused, match="has expired"):
        api.changes(since=since)
    with pytest.raises(Usage, match="past"):
        api.commit_changes("mart", since + 1)

    garbage_runs.garbage(table, retention=0.0, cursor_age_seconds=0.0)
    assert table.versions() == [latest]
    (left,) = table.stores.cursors.list()
    assert (left.version, left.transaction) == (since + 2, "tx 7")
    with pytest.raises(Refused, match="has expired"):
        api.changes(cursor="mart")
    assert api.drop_cursor("mart").dropped
    with pytest.raises(Usage, match="no cursor 'mart'; the table has none"):
        api.changes(cursor="mart")


def test_a_cursor_that_can_t_be_read_stops_the_expiry(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(3))
    memwal.open_table(table.uri).commit_changes("mart", int(table.dataset.version))
    table.dataset.delete("n = 1001")
    before = table.versions()
    table.stores.objects.put("_maintenance/cursors/mart.json", b'{"format": 99}')
    with pytest.raises(Corruption, match="Y07"):
        garbage(table)
    assert table.versions() == before


def test_a_cursor_is_made_where_a_version_is(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=range(3))
    api = memwal.open_table(table.uri)
    with pytest.raises(Usage, match="there is no version 99"):
        api.commit_changes("mart", 99)
    with pytest.raises(Usage, match="not a cursor's name"):
        api.commit_changes("../x", 1)
    with pytest.raises(Usage, match="say from where"):
        api.changes()


def test_the_command_shows_rows_counts_and_cursors(tmp_path: Any) -> None:
    table = tracked(tmp_path, rows=[1, 2])
    since = int(table.dataset.version)
    table.flush(table.shards[0], Put([1, 3], 7), Delete([2]))
    table.merge_all()
    run = partial(CliRunner().invoke, make_app())
    shown = run(["changes", table.uri, "--since", str(since), "--limit", "1"])
    assert shown.exit_code == 0 and "1 insert, 1 update, 1 delete" in shown.output
    assert "1 row shown" in shown.output
    found = json.loads(run(["changes", table.uri, "--since", str(since), "--json"]).output)
    (told,) = found["tables"]
    assert sorted(row["_change"] for row in told["rows"]) == ["delete", "insert", "update"]
    assert (told["since"], told["until"], told["num_rows"]) == (since, since + 1, 3)
    assert (
        "now at version"
        in run(["changes", table.uri, "--cursor", "mart", "--commit", str(since)]).output
    )
    file = tmp_path / "changes.parquet"
    done = run(["changes", table.uri, "--cursor", "mart", "--before", "--output", str(file)])
    assert done.exit_code == 0 and pq.read_table(file)["_before"].null_count == 1
    assert "dropped" in run(["changes", table.uri, "--cursor", "mart", "--drop"]).output
    assert run(["changes", table.uri, "--cursor", "mart"]).exit_code == 2
