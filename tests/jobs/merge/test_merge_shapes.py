"""What a generation may look like, and what a merge must refuse while other shards go on."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from typer.testing import CliRunner

from memwal.cli import app as cli_app
from memwal.format import layout
from memwal.jobs.merge import store as merge_table
from memwal.jobs.merge.job import open_merge_table
from memwal.model import ShardId, ShardStatus
from memwal.rows import fold
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Table
from tests.support.sampling import grid

pytestmark = pytest.mark.integration

REFUSED, UNSUPPORTED, CORRUPT, PARTLY = 5, 7, 8, 6


@dataclass(frozen=True)
class Run:
    """What a `memwal merge` said."""

    exit_code: int
    report: dict[str, Any]

    @property
    def table(self) -> dict[str, Any]:
        (table,) = self.report["tables"]
        return table

    @property
    def shards(self) -> dict[str, dict[str, Any]]:
        return {shard["shard_id"]: shard for shard in self.table["shards"]}


def merge_job(table: Table, *flags: str) -> Run:
    """`memwal merge` on the local engine."""
    arguments = ["merge", table.uri, "--engine", "local", "--json", *flags]
    done = CliRunner().invoke(cli_app.app, arguments)
    assert done.stdout, done.stderr
    return Run(done.exit_code, json.loads(done.stdout))


def two_shards(path: Path, kind: str = "int64", **table: Any) -> tuple[Table, ShardId, ShardId]:
    """A table whose second shard has one good generation (key 11)."""
    made = builders.make_table(path / "t", kind, rows=range(4), shards=2, **table)
    bad, good = made.shards
    made.flush(good, Put([11], 500))
    return made, bad, good


def check_only_bad_refused(
    table: Table, bad: ShardId, good: ShardId, code: int, *words: str, merged: int = 0
) -> str:
    """The bad shard stays at `merged` for a reason that says `words`; the good one is merged."""
    run = merge_job(table)
    assert run.exit_code == PARTLY, run
    assert run.shards[good]["outcome"] == "done"
    error = run.shards[bad]["error"]
    for word in words:
        assert word in error
    assert table.progress().get(bad, 0) == merged
    builders.same_rows(
        table.base_rows(), table.expected({good: 1, bad: merged}), "base beside a refused shard"
    )
    assert merge_job(table, "--shard", bad).exit_code == code
    return error


def check_all_merged(table: Table, *flags: str) -> None:
    before = int(table.dataset.version)
    run = merge_job(table, *flags)
    assert run.exit_code == 0, run
    builders.check_versions(table, before)
    builders.check_merged(table)


# ---- generations from writers that do less


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_generation_that_was_not_deduped(tmp_path: Path, fragments: int) -> None:
    table, shard, _ = two_shards(tmp_path)
    script = [(1, False), (7, False), (1, False), (7, True), (2, True), (2, False), (9, True)]
    rows = [table.row(key, 100 + place) for place, (key, _) in enumerate(script)]
    generation = builders.hand_written(
        table,
        shard,
        rows,
        tombstones=[dead for _, dead in script],
        rows_per_file=-(-len(rows) // fragments),
    )
    builders.list_generations(table, shard, generation)
    last = {table.kind.key(key): place for place, (key, _) in enumerate(script)}
    table.effects[shard].append(
        {key: None if script[at][1] else rows[at] for key, at in last.items()}
    )
    assert merge_job(table).exit_code == 0
    builders.check_merged(table)


def test_a_generation_without_a_tombstone_column(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path)
    rows = [table.row(key, 100 + key) for key in (2, 3, 20, 21)]
    builders.list_generations(
        table, shard, builders.hand_written(table, shard, rows, tombstone_column=False)
    )
    table.effects[shard].append(dict(zip(map(table.kind.key, (2, 3, 20, 21)), rows, strict=True)))
    assert merge_job(table).exit_code == 0
    builders.check_merged(table)


SAID = {"in_memory_bytes": 2**30, "physical_rows": 20_000}


@pytest.mark.parametrize("sizes", [{}, pytest.param(SAID, marks=pytest.mark.nightly)])
def test_a_large_generation_is_streamed(tmp_path: Path, sizes: dict[str, int]) -> None:
    table, shard, _ = two_shards(tmp_path)
    keys = range(20, 20_020)
    rows = [table.row(key, key) for key in keys]
    builders.list_generations(table, shard, builders.hand_written(table, shard, rows, **sizes))
    table.effects[shard].append(dict(zip(map(table.kind.key, keys), rows, strict=True)))
    stores = table.stores
    view = stores.views.shard(shard)
    assert open_merge_table(stores).fold(view, shard, view.shards[0].pending[-1:]).streams
    assert merge_job(table).exit_code == 0
    builders.check_merged(table)


@pytest.mark.parametrize(("kind", "anchored"), [("int64", False), ("int8", True)])
def test_the_base_is_searched_for_a_guard_only_where_it_matters(
    tmp_path: Path, kind: str, anchored: bool
) -> None:
    table = builders.make_table(tmp_path / "t", kind, rows=range(4))
    (shard,) = table.shards
    table.flush(shard, Put([2, 11], 500))
    view = table.stores.views.shard(shard)
    fold = open_merge_table(table.stores).fold(view, shard, view.shards[0].pending)
    assert fold.facts.anchored_in_base is anchored


# ---- schema drift


@pytest.mark.parametrize("in_memory_bytes_max", [0, 1 << 30], ids=["streamed", "table"])
def test_rows_that_are_not_found_again_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes_max: int
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    table.flush(table.shards[0], Put([2, 11, 12], 500))
    version = int(table.dataset.version)
    whole = fold.fold

    def short(*arguments: Any) -> fold.Folded:
        folded = whole(*arguments)
        return replace(folded, reach=tuple(rows - 1 for rows in folded.reach))

    monkeypatch.setattr(merge_table, "_IN_MEMORY_BYTES_MAX", in_memory_bytes_max)
    monkeypatch.setattr(fold, "fold", short)
    run = merge_job(table)
    assert run.exit_code == CORRUPT
    assert "1 of 3 rows to merge were not found again" in str(run.table["error"])
    assert int(table.dataset.version) == version
    monkeypatch.undo()
    check_all_merged(table)


def test_an_added_column_is_null_even_where_a_row_matches(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path)
    table.flush(shard, Put([2, 12], 600))
    table.dataset.add_columns(pa.field("added", pa.int64()))
    table.flush(shard, Put([3, 13], 700, {"added": 77}))
    check_all_merged(table)
    assert table.base_rows()[table.kind.key(3)]["added"] == 77
    assert table.base_rows()[table.kind.key(2)]["added"] is None


def test_an_added_column_loses_its_value_to_a_row_that_lacks_it(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path)
    with table.writer(shard) as old_writer:
        table.dataset.add_columns(pa.field("added", pa.int64()))
        key = table.kind.key(2)
        base = table.dataset.to_table().filter(pa.compute.equal(pa.compute.field("k"), key[0]))
        at = base.schema.get_field_index("added")
        valued = base.set_column(at, base.schema.field(at), pa.array([55], pa.int64()))
        table.dataset.merge_insert("k").when_matched_update_all().execute(valued)
        assert table.base_rows()[key]["added"] == 55
        done: builders.Effects = {}
        old_schema = pa.schema([f for f in table.dataset.schema if f.name != "added"])
        builders.apply(table, old_writer, old_schema, Put([2], 600), done)
    table.effects[shard].append(done)
    assert merge_job(table).exit_code == 0
    builders.check_merged(table)
    assert table.base_rows()[key]["added"] is None


def test_an_added_column_may_have_the_field_id_that_a_tombstone_column_took(
    tmp_path: Path,
) -> None:
    table, shard, _ = two_shards(tmp_path)
    table.flush(shard, Put([2, 12], 600), Delete([3]))
    table.dataset.add_columns(pa.field("flag", pa.bool_()))
    check_all_merged(table)
    assert {row["flag"] for row in table.base_rows().values()} == {None}


def test_a_dropped_column_is_left_out(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path)
    table.flush(shard, Put([2, 12], 600), Delete([3]))
    table.dataset.drop_columns(["text"])
    check_all_merged(table)


def test_a_dropped_and_added_column_never_gets_old_values(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path)
    table.flush(shard, Put([2, 12], 601))
    table.dataset.drop_columns(["text"])
    table.dataset.add_columns(pa.field("text", pa.string()))
    assert merge_job(table).exit_code == 0
    assert {row["text"] for row in table.base_rows().values()} == {None}
    assert table.base_rows()[table.kind.key(12)]["n"] == 602


def test_a_new_column_in_place_of_the_last_one_never_gets_old_values(tmp_path: Path) -> None:
    table, shard, _ = two_shards(tmp_path, columns=[pa.field("last", pa.string())])
    table.flush(shard, Put([2, 12], 601, {"last": "old"}))
    table.dataset.drop_columns(["last"])
    table.dataset.add_columns(pa.field("other", pa.string()))
    assert merge_job(table).exit_code == 0
    assert {row["other"] for row in table.base_rows().values()} == {None}
    assert table.base_rows()[table.kind.key(12)]["n"] == 602


def test_a_changed_type_is_refused(tmp_path: Path) -> None:
    table, bad, good = two_shards(tmp_path)
    schema = table.dataset.schema
    at = schema.get_field_index("n")
    other = schema.set(at, pa.field("n", pa.uint64()))
    generation = builders.hand_written(table, bad, [table.row(12, 5)], schema=other)
    builders.list_generations(table, bad, generation)
    check_only_bad_refused(table, bad, good, REFUSED, "'n'", "uint64", "int64")


def test_a_missing_column_that_may_not_be_null_is_refused(tmp_path: Path) -> None:
    # pylance adds no such column to a table with a MemWAL, so it is in the table from the start.
    required = pa.field("required", pa.int64(), nullable=False)
    schema = pa.schema([*KINDS["int64"].fields, *builders.PAYLOAD, required])
    table = Table(uri=str(tmp_path / "t"), kind=KINDS["int64"])
    lance.write_dataset(pa.Table.from_pylist([], schema=schema), table.uri).initialize_mem_wal()
    bad, good = table.add_shard(), table.add_shard()
    table.flush(good, Put([11], 500, {"required": 1}))
    lacking = schema.remove(len(schema) - 1)
    generation = builders.hand_written(table, bad, [table.row(12, 5)], schema=lacking)
    builders.list_generations(table, bad, generation)
    check_only_bad_refused(table, bad, good, REFUSED, "'required'", "may not be NULL")


# ---- types


def rich_columns() -> dict[str, tuple[pa.DataType, Any]]:
    instant = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
    pair = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
    return {
        "deep": (pa.struct([pa.field("inner", pair)]), {"inner": {"x": 1, "y": None}}),
        "structs": (pa.list_(pair), [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
        "lists": (pa.list_(pa.list_(pa.int8())), [[1], [], None]),
        "half": (pa.list_(pa.float16(), 3), [1.0, 0.5, -2.0]),
        "money": (pa.decimal128(20, 3), decimal.Decimal("12345.678")),
        "instant": (pa.timestamp("us"), instant),
        "instant_utc": (pa.timestamp("ns", "UTC"), instant.replace(tzinfo=datetime.UTC)),
        "day": (pa.date32(), instant.date()),
        "span": (pa.duration("us"), datetime.timedelta(seconds=3)),
        "fixed": (pa.binary(4), b"\0\1\2\3"),
        "large": (pa.large_string(), "text"),
        "flag": (pa.bool_(), True),
        "unsigned": (pa.uint64(), 2**64 - 1),
        "dictionary": (pa.dictionary(pa.int32(), pa.string()), "word"),
    }


def test_nested_and_other_types_come_through_unchanged(tmp_path: Path) -> None:
    rich = rich_columns()
    fields = [pa.field(name, kind) for name, (kind, _) in rich.items()]
    table, shard, _ = two_shards(tmp_path, columns=fields)
    values = {name: value for name, (_, value) in rich.items()}
    table.flush(shard, Put([2, 12], 600, values), Put([13], 601))
    table.flush(shard, Delete([12, 3]), Put([14], 602, values))
    check_all_merged(table)


BLOBS = {
    "v1": (
        pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        lambda values: pa.array(values, pa.large_binary()),
        "2.1",
    ),
    "v2": (blob_field("blob"), blob_array, "2.2"),
}


@pytest.mark.parametrize("form", BLOBS)
def test_blobs(tmp_path: Path, form: str) -> None:
    field, array, storage = BLOBS[form]
    kind = KINDS["int64"]
    schema = pa.schema([*kind.fields, field])

    def rows(values: dict[int, bytes | None]) -> pa.Table:
        columns = [pa.array(list(values), pa.int64()), array(list(values.values()))]
        return pa.table(columns, schema=schema)

    uri = str(tmp_path / "t")
    before = {0: b"zero", 1: None, 2: b"", 3: b"three"}
    lance.write_dataset(rows(before), uri, data_storage_version=storage).initialize_mem_wal()
    table = Table(uri=uri, kind=kind)
    shard = table.add_shard()
    first, second = {1: b"x" * 200_000, 2: None, 4: b"four"}, {0: b"", 5: b"y" * 70_000}
    for number, batch in enumerate((first, second)):
        with table.writer(shard) as writer:
            writer.put(rows(batch))
            if number:
                writer.delete(pa.table({"k": pa.array([3], pa.int64())}))
    (done,) = table.merge_all()
    assert done.error is None
    scanner = table.dataset.scanner(columns=["k", "blob"], blob_handling="all_binary")
    found = {row["k"]: row["blob"] for row in scanner.to_table().to_pylist()}
    wanted = {**before, **first, **second}
    del wanted[3]
    assert found == wanted


# ---- what a merge refuses


def test_a_null_key_is_refused(tmp_path: Path) -> None:
    table, bad, good = two_shards(tmp_path)
    loose = table.dataset.schema.set(0, pa.field("k", pa.int64()))
    rows = [table.row(12, 5), {**table.row(13, 6), "k": None}]
    builders.list_generations(table, bad, builders.hand_written(table, bad, rows, schema=loose))
    check_only_bad_refused(table, bad, good, REFUSED, "NULL", "'k'")


def test_a_hole_is_refused_after_what_comes_before_it_is_merged(tmp_path: Path) -> None:
    table, bad, good = two_shards(tmp_path)
    for number in range(3):
        table.flush(bad, Put([2, 12 + number], 600 + 10 * number))
    builders.unlist_generation(table, bad, 2)
    error = check_only_bad_refused(table, bad, good, REFUSED, "generation 2", merged=1)
    assert "--allow-holes" in error


def test_a_hole_may_be_passed_over(tmp_path: Path) -> None:
    table, bad, _ = two_shards(tmp_path)
    for number in range(3):
        table.flush(bad, Put([2, 12 + number], 600 + 10 * number))
    builders.unlist_generation(table, bad, 2)
    table.effects[bad][1] = {}
    check_all_merged(table, "--allow-holes")


@pytest.mark.parametrize(("lost", "what"), grid([1, 2, 3], ["folder", "data"]))
def test_a_missing_generation_is_corruption(tmp_path: Path, lost: int, what: str) -> None:
    table, bad, good = two_shards(tmp_path)
    for number in range(3):
        table.flush(bad, Put([2, 12 + number], 600 + 10 * number))
    listed = table.stores.shard_manifests.latest(bad).flushed_generations[lost - 1]
    folder = Path(table.uri) / layout.generation_folder(bad, listed.path, lost)
    shutil.rmtree(folder if what == "folder" else folder / "data")
    check_only_bad_refused(table, bad, good, CORRUPT, listed.path)


def test_a_sealed_shard_is_refused(tmp_path: Path) -> None:
    table, bad, good = two_shards(tmp_path)
    table.flush(bad, Put([12], 600))
    builders.set_status(table, bad, ShardStatus.SEALED)
    check_only_bad_refused(table, bad, good, REFUSED, "SEALED")
    builders.set_status(table, bad, ShardStatus.ACTIVE)
    assert merge_job(table).exit_code == 0
    builders.check_merged(table)


def test_a_sealed_shard_without_work_is_no_error(tmp_path: Path) -> None:
    table, bad, _ = two_shards(tmp_path)
    table.flush(bad, Put([12], 600))
    check_all_merged(table)
    builders.set_status(table, bad, ShardStatus.SEALED)
    run = merge_job(table)
    assert (run.exit_code, run.report["outcome"]) == (0, "nothing_to_do")


def reinitialise_by_overwrite(table: Table) -> None:
    kept = table.dataset.to_table()
    lance.write_dataset(kept, table.uri, mode="overwrite")
    table.dataset.initialize_mem_wal()


def reinitialise_by_restore(table: Table) -> None:
    table.at(1).restore()
    table.dataset.initialize_mem_wal()


REINITIALISE = pytest.mark.parametrize(
    "reinitialise",
    [reinitialise_by_overwrite, reinitialise_by_restore],
    ids=["overwrite", "restore"],
)


@pytest.mark.parametrize(
    ("reinitialise", "merged_before"),
    grid([reinitialise_by_overwrite, reinitialise_by_restore], [False, True]),
)
def test_generations_of_an_earlier_life_are_refused(
    tmp_path: Path, reinitialise: Any, merged_before: bool
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4), shards=2)
    bad, good = table.shards
    table.flush(bad, Put([12], 600), Delete([1]))
    if merged_before:
        check_all_merged(table)
    reinitialise(table)
    table.base = table.base_rows()
    table.flush(good, Put([11], 500))
    error = check_only_bad_refused(table, bad, good, REFUSED, "initialised")
    assert "--allow-reinitialised" in error
    # Still refused when the shard's writer goes on, and when other shards' merges have given the
    # index entry a new creation time.
    table.flush(bad, Put([13], 700))
    assert merge_job(table, "--shard", bad).exit_code == REFUSED


@REINITIALISE
def test_generations_of_an_earlier_life_may_be_merged_on_purpose(
    tmp_path: Path, reinitialise: Any
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    table.flush(table.shards[0], Put([12], 600), Delete([1]))
    reinitialise(table)
    check_all_merged(table, "--allow-reinitialised")


def test_a_table_without_a_primary_key_is_unsupported(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"a": pa.array([1, 2], pa.int64())})
    lance.write_dataset(rows, uri).initialize_mem_wal()
    table = Table(uri=uri, kind=KINDS["int64"])
    with table.writer(table.add_shard()) as writer:
        writer.put(rows)
    before = int(table.dataset.version)
    run = merge_job(table)
    assert run.exit_code == UNSUPPORTED
    assert "primary key" in run.table["error"]
    assert int(table.dataset.version) == before
