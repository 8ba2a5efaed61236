"""`read --with-wal`: rows that are in no generation are newer than all that are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import Corruption
from memwal.jobs.merge.request import MergeRequest
from memwal.read import Nearest, open_table
from tests.support import builders
from tests.support.builders import Delete, Put, Row, Rows, Table
from tests.support.command import run_here
from tests.support.nursery import run_memwal
from tests.support.wal_tables import abandon, entry_file, inflate

pytestmark = pytest.mark.integration


def read(table: Table, **asked: Any) -> Rows:
    return table.keyed(open_table(table.uri, table.options).read(with_wal=True, **asked).read_all())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two shards; one with merged, pending and unflushed rows, the other with unflushed alone."""
    table = builders.make_table(tmp_path / "t", rows=range(10), shards=2)
    one, two = table.shards
    table.flush(one, Put([0, 2, 20], 100), Delete([4]))
    assert table.merger().run(one, MergeRequest()).outcome == "done"
    table.flush(one, Put([0, 4, 22], 200), Delete([2]))
    abandon(table, one, Put([2, 6, 24], 300), Delete([0, 22]))
    abandon(table, two, Put([1, 31, 31], 400), Delete([3]))
    return table


def matching(table: Table, wanted: Any) -> Rows:
    return {key: row for key, row in table.truth().items() if wanted(row)}


def test_every_kind_of_read_with_rows_of_the_wal(table: Table) -> None:
    truth = table.truth()
    builders.same_rows(read(table), truth, "all")
    builders.same_rows(
        read(table, filter="n >= 300"), matching(table, lambda row: row["n"] >= 300), "filter"
    )
    # A filter that only an older version of a row matches brings nothing back.
    assert read(table, filter="n = 1000 or n = 100") == {}
    assert read(table, key={"k": table.kind.key(0)[0]}) == {}
    key = table.kind.key(2)
    assert read(table, key={"k": key[0]}) == {key: truth[key]}
    some = open_table(table.uri).read(columns=["text"], limit=4, with_wal=True).read_all()
    assert some.column_names == ["text"]
    assert set(some["text"].to_pylist()) <= {row["text"] for row in truth.values()}
    assert len(some) == 4


def test_a_search_with_rows_of_the_wal(table: Table) -> None:
    target = [300.0, 150.0, -300.0, 0.5]

    def distance(row: Row) -> float:
        return sum((a - b) ** 2 for a, b in zip(target, row["vector"], strict=True))

    near = sorted(matching(table, lambda row: row["vector"]).values(), key=distance)[:5]
    asked = Nearest(column="vector", vector=target, k=5)
    found = open_table(table.uri).read(nearest=asked, with_wal=True).read_all()
    assert found["n"].to_pylist() == [row["n"] for row in near]


def test_without_it_they_are_not_seen(table: Table) -> None:
    found = table.keyed(open_table(table.uri).read().read_all())
    builders.same_rows(found, table.lsm_rows(), "generations only")
    assert found != table.truth()


def test_a_flush_changes_nothing(table: Table) -> None:
    before = read(table)
    for shard in table.shards:
        with table.writer(shard):
            pass
    assert read(table) == before == table.keyed(open_table(table.uri).read().read_all())
    table.merge_all()
    assert read(table) == before


@pytest.mark.parametrize("seed", range(3))
def test_random_sessions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = builders.make_table(
        tmp_path / "t", ["int64", "utf8+int32", "binary"][seed], rows=range(20), shards=2
    )
    fresh = builders.numbers()
    for turn in range(5):
        for parity, shard in enumerate(table.shards):
            numbers = [2 * chance.randrange(15) + parity for _ in range(6)]
            ops = [
                Put(numbers[:3], next(fresh)),
                Delete(numbers[3:5]),
                Put(numbers[5:], next(fresh)),
            ]
            chance.shuffle(ops)
            writer = abandon(table, shard, *ops)
            if chance.random() < 0.5:
                writer.close()
                if chance.random() < 0.5:
                    table.merger().run(shard, MergeRequest())
        builders.same_rows(read(table), table.truth(), f"turn {turn}")


def test_reads_beside_a_writer_see_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Flushes and merges move rows all the time; a read right after a put sees it."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    done: builders.Effects = {}
    with table.writer(shard, max_memtable_rows=5) as writer:
        for n in range(1, 16):
            op = Put([n % 7, n % 4], 100 * n) if n % 4 else Delete([n % 7])
            builders.apply(table, writer, table.dataset.schema, op, done)
            if n % 5 == 0:
                table.merger().run(shard, MergeRequest())
            truth = {key: row for key, row in {**table.base, **done}.items() if row is not None}
            builders.same_rows(read(table), truth, f"after put {n}")


def test_a_wal_that_can_not_be_trusted_fails_the_read(table: Table) -> None:
    """Only where it is asked for."""
    path = entry_file(table, table.shards[1], 2)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(Corruption, match="position 2"):
        read(table)
    assert len(open_table(table.uri).read().read_all()) == len(table.lsm_rows())


def test_the_command(table: Table) -> None:
    def rows_of(*arguments: str, unread: int | None) -> list[Row]:
        done = run_here("read", table.uri, "--json", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        (told,) = json.loads(done.stdout)["tables"]
        assert told["unread_wal_entries"] == unread
        found: list[Row] = told["rows"]
        return found

    truth = {row["k"]: row["n"] for row in table.truth().values()}
    found = rows_of("--columns", "k,n", "--with-wal", unread=None)
    assert {row["k"]: row["n"] for row in found} == truth
    assert len(found) == len(truth)
    assert {row["k"]: row["n"] for row in rows_of("--columns", "k,n", unread=4)} != truth
    said = run_here("read", table.uri).stderr
    assert said == "the rows of 4 WAL entries are in no generation yet: --with-wal\n"
    assert run_here("read", table.uri, "--merged-only").stderr == ""


def test_a_table_without_a_key_gives_every_row_of_the_wal(tmp_path: Path) -> None:
    import lance

    path = str(tmp_path / "t")
    rows = pa.table({"n": [1]})
    lance.write_dataset(rows, path).initialize_mem_wal()
    table = Table(uri=path, kind=builders.KINDS["int64"])
    shard = table.add_shard()
    with table.writer(shard) as writer:
        writer.put(pa.table({"n": [2, 2]}))
    writer = table.writer(shard)
    writer.put(pa.table({"n": [3, 2]}))
    found = open_table(path).read(with_wal=True).read_all()
    assert sorted(found["n"].to_pylist()) == [1, 2, 2, 2, 3]
    writer.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [("read --with-wal", 5), ("verify", 5), ("rescue --dry-run", 5), ("rescue --yes --idle 0s", 6),
     ("inspect wal", 0), ("status", None), ("merge --dry-run", None)],
)  # fmt: skip
def test_an_entry_that_unfolds_to_too_much_is_refused(
    table: Table, command: str, code: int | None
) -> None:
    """A code of None: the command decodes no entry, and has nothing to say."""
    inflate(table, table.shards[1], 1)
    ran = run_memwal(*command.split(), table.uri, "--json")
    assert ran.returncode == (code or 0), ran.stdout + ran.stderr
    assert ("bytes; at most 1073741824 are decoded" in ran.stdout) == (code is not None)
    assert not any(text in ran.stdout for text in ("is not a WAL entry", " torn", "Traceback"))
    assert ran.stdout.count("too large") == (command == "inspect wal")
