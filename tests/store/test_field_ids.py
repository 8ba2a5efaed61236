"""Lance's own changes of columns while rows wait: filled with NULL, left out, or refused by name.

Rows wait in a generation, or in the WAL of a writer that died, which is read, and rescued.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import Corruption, Missing, Refused
from memwal.format import layout
from memwal.ingest import open_writer
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.rescue.job import RescueOptions, run_rescue
from memwal.jobs.rescue.request import RescueRequest
from memwal.read import open_table
from memwal.report import JobReport
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.manifests import TableManifests
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.indexed import resolved
from tests.support.progress import Quiet
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration

X = pa.field("x", pa.int64())
KEY = 5


def make(folder: Path, *, rows: range = range(4)) -> Table:
    """A table with a column that no file has: Lance gives its id out again when it is dropped."""
    table = builders.make_table(folder / "t", rows=rows)
    table.dataset.add_columns(X)
    return table


def put(table: Table, waits: str, **values: Any) -> None:
    (shard,) = table.shards
    if waits == "generation":
        table.flush(shard, Put([KEY], 600, values))
    else:
        abandon(table, shard, Put([KEY], 600, values))


def rescue(table: Table) -> JobReport:
    options = RescueOptions(
        tables=[resolved(table)],
        confirm=lambda name, shards: True,
        request=RescueRequest(idle_seconds=0),
    )
    return run_rescue(options, Quiet())


def merge(table: Table) -> JobReport:
    return run_merge(MergeOptions(tables=[resolved(table)], engine="local"), Quiet())


def row(table: Table, **request: Any) -> dict[str, Any]:
    rows = open_table(table.uri).read(**request).read_all().to_pylist()
    (found,) = [row for row in rows if row["k"] == table.kind.key(KEY)[0]]
    return dict(found)


def add_again(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["x"])
    dataset.add_columns(X)


def add_another(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["x"])
    dataset.add_columns(pa.field("z", pa.int64()))


WAITING = pytest.mark.parametrize("waits", ["generation", "wal"])


@WAITING
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda d: d.add_columns(pa.field("y", pa.string())), {"x": 777, "y": None}),
        (lambda d: d.drop_columns(["x"]), {}),
        (lambda d: d.drop_columns(["nested"]), {"x": 777}),
    ],
    ids=["added", "dropped", "dropped, with values"],
)
def test_a_column_that_came_is_null_and_one_that_went_is_left_out(
    tmp_path: Path, waits: str, change: Callable[[Any], None], wanted: dict[str, Any]
) -> None:
    table = make(tmp_path)
    put(table, waits, x=777)
    change(table.dataset)
    expected = {"k": table.kind.key(KEY)[0], "n": 600} | wanted
    assert row(table, with_wal=True).items() >= expected.items()
    assert rescue(table).exit_code == 0
    assert merge(table).exit_code == 0
    found = row(table)
    assert found.items() >= expected.items()
    assert found.keys() == {*table.dataset.schema.names}


@WAITING
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (add_again, "MW-K12"),
        (add_another, "MW-K06"),
        (lambda d: d.alter_columns({"path": "x", "name": "z"}), "MW-K06"),
        (lambda d: d.alter_columns({"path": "nested.a", "name": "z"}), "MW-K08"),
    ],
    ids=["added again", "another under its id", "renamed", "a member renamed"],
)
def test_what_may_be_another_column_is_refused_by_reads_merges_and_rescues(
    tmp_path: Path, waits: str, change: Callable[[Any], None], code: str
) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    put(table, waits, x=777)
    change(table.dataset)
    with pytest.raises(Refused, match=code):
        row(table, with_wal=True)
    if waits == "generation":
        assert code in str(merge(table).tables[0])
    elif code != "MW-K08":
        assert code in str(rescue(table).tables[0])
        with pytest.raises(Exception, match=code), open_writer(table.uri, shard=shard) as writer:
            writer.write(table.dataset.head(1))
    assert table.dataset.count_rows() == 4


def test_a_repair_does_not_replay_what_may_be_another_column(tmp_path: Path) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    table.flush(shard, Put([1], 600))
    put(table, "wal", x=777)
    manifests = table.stores.shard_manifests
    newest = Path(table.uri, layout.shard_manifest_path(shard, max(manifests.versions(shard))))
    newest.write_bytes(newest.read_bytes()[:9])

    def repair(**asked: bool) -> Any:
        with pytest.raises(Corruption) as told:
            memwal.open_table(table.uri).repair(**asked)  # type: ignore[arg-type]
        (item,) = told.value.report.items  # type: ignore[union-attr]
        return item

    assert repair().effects
    add_another(table.dataset)
    before = manifests.versions(shard)
    item = repair(execute=True, yes=True)
    assert "MW-K06" in item.evidence and item.lost
    assert manifests.versions(shard) == before


@WAITING
def test_what_the_refusals_advise_brings_the_rows_in(tmp_path: Path, waits: str) -> None:
    renamed, again = make(tmp_path / "renamed"), make(tmp_path / "again")
    for table in (renamed, again):
        put(table, waits, x=777)
    renamed.dataset.alter_columns({"path": "x", "name": "z"})
    renamed.dataset.alter_columns({"path": "z", "name": "x"})
    add_again(again.dataset)
    again.dataset.drop_columns(["x"])
    for table in (renamed, again):
        assert (rescue(table).exit_code, merge(table).exit_code) == (0, 0)
    again.dataset.add_columns(X)
    assert row(again)["x"] is None
    if waits == "generation":
        assert row(renamed)["x"] == 777


@WAITING
def test_rows_of_a_writer_opened_since_are_taken(tmp_path: Path, waits: str) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    table.flush(table.shards[0], Put([1], 600))
    assert merge(table).exit_code == 0
    table.dataset.add_columns(X)
    add_again(table.dataset)
    put(table, waits, x=778)
    assert row(table, with_wal=True)["x"] == 778
    assert (rescue(table).exit_code, merge(table).exit_code) == (0, 0)
    assert row(table)["x"] == 778


def test_the_store_s_clock_tells_what_came_first(tmp_path: Path) -> None:
    """Whatever the time is where the column was added again."""
    table = make(tmp_path)
    add_again(table.dataset)
    put(table, "generation", x=778)
    assert row(table)["x"] == 778
    for file in Path(table.uri, layout.VERSIONS).glob("*.manifest"):
        os.utime(file, (time.time() + 60,) * 2)
    with pytest.raises(Refused, match="MW-K12"):
        row(table)


def test_rows_of_the_writer_before_are_not(tmp_path: Path) -> None:
    table = make(tmp_path)
    put(table, "generation", x=777)
    add_again(table.dataset)
    table.flush(table.shards[0], Put([1], 600, {"x": 778}))
    assert "generation 1" in str(merge(table).tables[0])
    assert table.progress() == {}


def test_a_column_that_was_never_gone_needs_no_old_manifests(tmp_path: Path) -> None:
    table = make(tmp_path)
    (shard,) = table.shards
    put(table, "generation", x=777)
    for file in Path(table.uri, layout.manifest_folder(shard)).iterdir():
        if layout.parse_shard_manifest_name(file.name) == 1:
            file.unlink()
    assert row(table)["x"] == 777


def test_a_version_that_expires_meanwhile_tells_nothing(tmp_path: Path) -> None:
    """Its columns were not gone: a reader was refused beside an expiry."""
    table = make(tmp_path)
    for name in ("y", "z", "a"):
        table.dataset.add_columns(pa.field(name, pa.int64()))
    latest = table.dataset.latest_version
    stores = table.stores

    class Expiring:
        def __getattr__(self, name: str) -> Any:
            return getattr(stores.tables, name)

        def base(self, version: int) -> Any:
            if version == latest - 1:
                raise Missing(f"version {version} was expired")
            return stores.tables.base(version)

    tables: Any = Expiring()
    fields = FieldIds(tables, TableManifests(stores.objects), stores.shard_manifests)
    assert fields.find_given(latest) == {}


def test_an_empty_table_is_no_exception(tmp_path: Path) -> None:
    table = make(tmp_path, rows=range(0))
    put(table, "generation", x=777)
    assert row(table)["x"] == 777
    add_again(table.dataset)
    with pytest.raises(Refused, match="MW-K12"):
        row(table)
