"""Restores of real tables: what is read afterwards, and what becomes of writers of the old one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import Missing, NotATable, Refused
from memwal.format import layout, restores
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.restore.report import RestoreTableReport, show_table
from memwal.jobs.verify.job import run_verify
from memwal.model import ShardId, ShardManifest
from memwal.read import open_table
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT
from memwal.store.records.backups import StoredBackups
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.writers import ShardWriters
from tests.support.backups import back_up, resolve, restore
from tests.support.builders import PAYLOAD, Put, Rows, Table, make_table
from tests.support.policy_tables import make_policy_table
from tests.support.s3server import S3Server
from tests.support.sampling import many
from tests.support.stopping import Stop, StopAt
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration


class World:
    """A table with all that a backup may hold, the backup, and what it has to read as."""

    def __init__(self, root: Path, **write: Any) -> None:
        self.root, self.place = root, root / "backups"
        self.table = make_table(root / "table", rows=range(20), indexed=True, shards=2, **write)
        self.shard, self.other = self.table.shards
        self.table.flush(self.shard, Put([1, 2, 3], 50))
        self.table.flush(self.other, Put([11], 55))
        self.table.merge_all()
        self.table.flush(self.shard, Put([4, 5], 60))
        self.table.flush(self.other, Put([10], 65))
        self.writer = abandon(self.table, self.shard, Put([6], 70))
        self.truth = self.table.truth()
        back_up(self.table, self.place)

    def copied(self, root: Path) -> World:
        """Table and backups in another folder; the writer has opened the shard anew."""
        found = copy(self)
        found.root, found.place, found.truth = root, root / "backups", dict(self.truth)
        found.table = self.table.copied(root / "table")
        shutil.copytree(self.place, found.place)
        found.writer = found.table.writer(self.shard)
        return found

    @property
    def path(self) -> Path:
        return Path(self.table.uri)

    def rows(self, key: int, n: int) -> pa.Table:
        schema = pa.schema([*self.table.kind.fields, *PAYLOAD])
        return pa.Table.from_pylist([self.table.row(key, n)], schema=schema)

    def go_on(self) -> None:
        """The table's further life: puts, a flush, a merge, another writer with rows in the WAL."""
        self.writer.put(self.rows(7, 80))
        self.writer.close()
        self.table.merge_all()
        self.writer = self.table.writer(self.shard)
        self.writer.put(self.rows(8, 90))

    def at(self, path: Path) -> Table:
        return replace(self.table, uri=str(path))

    def manifest(self, path: Path | None = None, shard: ShardId | None = None) -> ShardManifest:
        table = self.at(path or self.path)
        found = table.stores.shard_manifests.latest(shard or self.shard)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("first"))


@pytest.fixture
def world(first: World, tmp_path: Path) -> World:
    return first.copied(tmp_path)


def check_restored(world: World, path: Path) -> None:
    """All rows of the backup are read, by memwal and, once a writer has them, by pylance.

    Then the table goes on: a new writer writes, all is merged, and nothing of the old is there.
    """
    table = world.at(path)
    assert read_all(table) == world.truth
    with table.writer(world.shard) as writer:
        writer.put(world.rows(15, 1))
    # A shard whose WAL had nothing to replay: its writers fence each other, and leave rows.
    fenced = table.writer(world.other)
    left = table.writer(world.other)
    assert "fenced" in fails(lambda: fenced.put(world.rows(16, 3)))
    left.put(world.rows(16, 2))
    new = {table.kind.key(key): table.row(key, n) for key, n in ((15, 1), (16, 2))}
    wanted = world.truth | new
    assert read_all(table) == wanted
    table.writer(world.other).close()
    assert table.lsm_rows() == wanted
    assert [report.error for report in table.merge_all()] == [None, None]
    assert table.base_rows() == wanted
    table.dataset.optimize.optimize_indices()
    (report,) = run_verify(RunOptions(tables=[resolve(path)]), SILENT).tables
    assert report.exit_code == 0, report.error


def read_all(table: Table) -> Rows:
    found = open_table(table.uri, table.options or None)
    return table.keyed(found.read(with_wal=True).read_all())


def check_done(report: RestoreTableReport) -> RestoreTableReport:
    assert (report.outcome, report.error) == ("done", None)
    return report


def fails(call: Any) -> str:
    with pytest.raises(OSError) as caught:
        call()
    return str(caught.value)


# ---- in a new place


def test_in_a_new_place(world: World) -> None:
    path = world.root / "new"
    planned = check_done(restore(world.place, path, dry_run=True))
    assert (planned.backup, planned.version_after, path.exists()) == ("b1", None, False)
    report = check_done(restore(world.place, path))
    assert (report.objects_copied, report.replaced) == (planned.objects_copied, ())
    assert report.backup_version == world.table.dataset.version
    assert [(s.shard_id, s.generations, s.wal_entries) for s in report.shards] == sorted(
        [(world.shard, (1, 2), 1), (world.other, (1, 2), 0)]
    )
    assert [index["name"] for index in world.at(path).dataset.list_indices()] == [
        index["name"] for index in world.table.dataset.list_indices()
    ]
    check_restored(world, path)
    assert world.table.lsm_rows() != {}  # the old one is as it was, and so is its writer
    world.writer.put(world.rows(7, 80))


def test_a_shard_that_was_never_merged_is_merged_in_a_new_place(tmp_path: Path) -> None:
    # Its generation is older than the only versions that the new place has.
    table = make_table(tmp_path / "table", rows=range(5), shards=2)
    table.flush(table.shards[1], Put([7], 10))
    table.flush(table.shards[0], Put([1], 20))
    table.merger().run(table.shards[0], MergeRequest())
    back_up(table, tmp_path / "backups")
    check_done(restore(tmp_path / "backups", tmp_path / "new"))
    copy = replace(table, uri=str(tmp_path / "new"))
    assert [report.error for report in copy.merge_all()] == [None, None]
    assert copy.base_rows() == table.truth()
    # One that was copied without it is still refused.
    since = tmp_path / "unproven"
    place = StoredBackups(replace(table, uri=str(tmp_path / "backups")).stores.objects)
    backup = place.find()
    assert backup.mem_wal_since_nanos > 0
    unproven = replace(backup, name="unproven", mem_wal_since_nanos=0)
    place.put(unproven, place.objects_of(backup))
    check_done(restore(tmp_path / "backups", since, backup="unproven"))
    refused = replace(table, uri=str(since)).merge_all()[1].error
    assert "MW-H04" in str(refused)


def test_operands_count_once_after_a_restore(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1, 2])
    table.flush((1, table.row(1, 5)), (3, table.row(3, 7)))
    table.merge()
    table.flush((1, table.row(1, 11)), (2, None))
    operand = (1, table.row(1, 13))
    writer = table.dataset.mem_wal_writer(table.shards[0], max_wal_flush_interval_ms=1)
    writer.put(pa.Table.from_pylist([operand[1]], schema=table.dataset.schema))
    table.written[table.shards[0]].append([operand])
    truth = table.by_key(table.truth())
    back_up(table, tmp_path / "copies")
    writer.put(pa.Table.from_pylist([table.row(1, 17)], schema=table.dataset.schema))
    writer.close()
    table.merge()
    check_done(restore(tmp_path / "copies", tmp_path / "t", over=True))
    assert table.keyed(open_table(table.uri).read(with_wal=True).read_all()) == truth
    table.flush((1, table.row(1, 19)))
    table.merge()
    assert table.base_rows() == table.by_key(table.truth())


def test_where_its_folder_was_deleted_an_old_writer_is_told_when_it_flushes(world: World) -> None:
    # Its epoch, its manifests and its WAL are all ahead of the backup's.
    world.go_on()
    world.table.writer(world.shard).close()
    world.writer = world.table.writer(world.shard)
    world.writer.put(world.rows(8, 91))
    before = world.manifest()
    shutil.rmtree(world.path)
    check_done(restore(world.place, world.path))
    assert world.manifest().writer_epoch > before.writer_epoch + layout.LEAP // 2
    world.writer.put(world.rows(8, 92))  # nothing shows where it stands
    assert "fenced" in fails(world.writer.close)
    check_restored(world, world.path)


@pytest.mark.nightly
def test_in_a_bucket_and_over_it(
    make_s3_uri: Callable[[], str], s3_server: S3Server, world: World
) -> None:
    uri, options = make_s3_uri(), s3_server.storage_options
    check_done(restore(world.place, uri, options=options))
    table = replace(world.table, uri=uri, options=options)
    assert read_all(table) == world.truth
    old = table.writer(world.shard)
    old.put(world.rows(7, 80))
    stale = table.dataset
    report = check_done(restore(world.place, uri, options=options, over=True))
    assert (report.objects_copied, report.kept_checkpoint is None) == (0, False)
    assert "fenced" in fails(lambda: old.put(world.rows(7, 81)))
    assert "ncompatible" in fails(lambda: stale.delete("k = 1"))
    assert read_all(table) == world.truth


# ---- over a table


def test_over_a_table_its_writer_is_fenced_and_its_rows_are_kept(world: World) -> None:
    world.go_on()
    third = world.table.add_shard()
    world.table.flush(third, Put([16], 99))
    later, stale = world.table.lsm_rows(), world.table.dataset
    before = world.manifest()
    refused = restore(world.place, world.path)
    assert (refused.exit_code, "(MW-A20)" in (refused.error or "")) == (5, True)
    assert world.manifest() == before

    report = check_done(restore(world.place, world.path, over=True))
    world.table.shards.remove(third)
    assert "ncompatible" in fails(
        lambda: lance.write_dataset(world.rows(9, 1), stale, mode="append")
    )
    assert "ncompatible" in fails(lambda: stale.delete("k = 1"))
    assert "fenced" in fails(lambda: world.writer.put(world.rows(8, 92)))
    assert "fenced" in fails(world.writer.close)
    assert {s.shard_id: s.known for s in report.shards} == {
        world.shard: True,
        world.other: True,
        third: False,
    }
    assert world.manifest(shard=third).flushed_generations == ()
    check_restored(world, world.path)

    assert report.kept_checkpoint is not None
    shown = " ".join(str(part) for part in show_table(report))
    for text in ("backup b1", report.kept_checkpoint, str(report.replaced_folder)):
        assert text in shown
    kept = open_table(world.table.uri).read(checkpoint=report.kept_checkpoint).read_all()
    assert world.table.keyed(kept) == later
    # What only the old WAL had is no part of a checkpoint.
    assert replaced_rows(world, report) == {90}


def test_a_restore_that_has_expired_is_no_fall_of_progress(world: World) -> None:
    world.go_on()
    world.table.merge_all()
    check_done(restore(world.place, world.path, over=True))
    restored = int(world.table.dataset.version)
    world.table.dataset.create_scalar_index("n", "BTREE")
    world.table.dataset.cleanup_old_versions(
        older_than=timedelta(0), error_if_tagged_old_versions=False
    )
    assert restored not in {version["version"] for version in world.table.dataset.versions()}
    (report,) = run_verify(RunOptions(tables=[resolve(world.path)]), SILENT).tables
    assert report.error is None
    assert f"turned back on purpose at {restored + 1}" in str(report)
    repaired = memwal.open_table(world.table.uri).repair(execute=True, yes=True)
    assert repaired.outcome == "nothing_to_do"
    assert read_all(world.table) == world.truth


def test_a_writer_of_memwal_is_fenced(world: World) -> None:
    stores = world.table.stores
    ours = ShardWriters(stores.objects, stores.tables, merged=world.table.progress())
    shard = ours.open(world.other)
    shard.put(world.rows(12, 80))
    check_done(restore(world.place, world.path, over=True))
    with pytest.raises(Fenced, match="restored from a backup"):
        shard.put(world.rows(12, 81))
    assert read_all(world.table) == world.truth


def test_over_a_broken_table(world: World) -> None:
    """Its data garbled, a generation and a WAL gone, a shard's newest manifest torn."""
    world.go_on()
    root, shard = world.path, layout.shard_folder(world.shard)
    data = sorted(f"data/{path.name}" for path in (world.place / "data").iterdir())
    for name in data:
        (root / name).write_bytes(b"x" * (root / name).stat().st_size)
    newest = world.manifest()
    (pending,) = (g for g in newest.flushed_generations if g.generation == 2)
    shutil.rmtree(root / shard / pending.path)
    shutil.rmtree(root / layout.wal_folder(world.other))
    torn = layout.shard_manifest_path(world.shard, newest.version)
    (root / torn).write_bytes(b"\xff" * 50)
    report = check_done(restore(world.place, world.path, over=True))
    assert {*data} <= {*report.replaced}
    kept = root / str(report.replaced_folder)
    assert set((kept / data[0]).read_bytes()) == {ord("x")}
    assert (kept / torn).read_bytes() == b"\xff" * 50
    with pytest.raises(Missing, match="was collected"):
        ShardManifests(world.table.stores.objects).read(world.shard, newest.version)
    with pytest.raises(OSError):
        world.writer.put(world.rows(8, 92))
        world.writer.close()
    check_restored(world, world.path)


@pytest.mark.nightly
def test_over_a_table_whose_version_is_torn(world: World) -> None:
    (name,) = (
        name
        for name in layout.table_manifest_names(world.table.dataset.version)
        if (world.path / layout.VERSIONS / name).exists()
    )
    (world.path / layout.VERSIONS / name).write_bytes(b"torn")
    report = check_done(restore(world.place, world.path, over=True))
    assert report.kept_checkpoint is None
    assert "no checkpoint" in report.warnings[0]
    assert any(path.startswith(layout.VERSIONS) for path in report.removed)
    check_restored(world, world.path)


def test_readers_see_nothing_of_it_before_the_mark(world: World) -> None:
    """A shard that has no manifest any more, and a table that goes on: its rows come at once."""
    shutil.rmtree(world.path / layout.shard_folder(world.other) / "manifest")
    before = world.manifest(shard=world.shard)
    seen = []

    def look(step: str) -> None:
        if step in ("copy", "keep"):
            folder = world.path / layout.shard_folder(world.other) / "manifest"
            seen.append((fails_to_open(world.path), folder.exists()))

    check_done(restore(world.place, world.path, over=True, steps=look))
    assert (False, False) in seen
    assert (False, True) not in seen
    assert world.manifest().writer_epoch > before.writer_epoch
    assert read_all(world.table) == world.truth


def test_a_version_of_a_table_made_again_with_the_same_numbers_stays(world: World) -> None:
    version = int(world.table.dataset.version)
    shutil.rmtree(world.path)
    again = make_table(world.path, rows=range(40, 50), shards=1)
    while int(again.dataset.version) < version:
        again.dataset.delete(f"n = {1040 + int(again.dataset.version)}")
    rows = again.base_rows()
    memwal.open_table(again.uri).checkpoint("mine")
    report = check_done(restore(world.place, world.path, over=True))
    assert any("another one than the backup's" in text for text in report.warnings)
    found = open_table(again.uri).read(checkpoint="mine", allow_reinitialised=True)
    assert again.keyed(found.read_all()) == rows
    check_restored(world, world.path)


def test_an_ingest_that_goes_on_until_its_writer_is_fenced_is_put_aside(world: World) -> None:
    folder = world.path / layout.INGESTS / "late"

    def go_on(step: str) -> None:
        if step == "shard":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "000000000001.json").write_text("{}")

    report = check_done(restore(world.place, world.path, over=True, steps=go_on))
    assert report.ingests_put_aside == ("late",)
    assert not list(folder.glob("*"))


# ---- refusals


def test_a_damaged_backup_leaves_the_table_as_it_was(world: World) -> None:
    world.go_on()
    later = world.table.lsm_rows()
    (data,) = list((world.place / "data").iterdir())[:1]
    data.write_bytes(b"y" * data.stat().st_size)
    (world.path / "data" / data.name).unlink(missing_ok=True)
    version = world.table.dataset.version
    report = restore(world.place, world.path, over=True)
    assert (report.exit_code, "(MW-A07)" in (report.error or "")) == (8, True)
    assert world.table.dataset.version == version
    world.writer.put(world.rows(8, 92))
    new = restore(world.place, world.root / "new")
    assert new.exit_code == 8
    assert fails_to_open(world.root / "new")
    assert later


def fails_to_open(path: Path) -> bool:
    try:
        lance.dataset(str(path))
    except (OSError, ValueError):
        return True
    return False


def test_places_that_are_refused(world: World) -> None:
    inside = restore(world.place, world.place / "inside")
    around = restore(world.place, world.root)
    itself = restore(world.place, world.place, over=True)
    assert [r.exit_code for r in (inside, around, itself)] == [2, 2, 2]
    another = world.root / "another"
    back_up(world.table, another)
    holds = restore(world.place, another, over=True)
    assert (holds.exit_code, "(MW-A21)" in (holds.error or "")) == (5, True)
    with pytest.raises(Refused, match="MW-L01"):
        restore(world.place, world.root / "new", lease=False)
    (world.root / "file").mkdir()
    (world.root / "file" / "some.txt").write_text("here")
    occupied = restore(world.place, world.root / "file")
    assert (occupied.exit_code, "(MW-A20)" in (occupied.error or "")) == (5, True)
    assert restore(world.root / "nothing", world.root / "new").exit_code == 2
    assert not (world.root / "new").exists()
    world.table.stores.leases.acquire("merge")
    report = restore(world.place, world.path, over=True)
    assert (report.outcome, report.exit_code) == ("held", 4)


@pytest.mark.nightly
def test_versions_that_are_named_by_another_scheme(world: World, tmp_path: Path) -> None:
    first = World(tmp_path / "v1", enable_v2_manifest_paths=False)
    report = restore(first.place, world.path, over=True)
    assert (report.exit_code, "(MW-A22)" in (report.error or "")) == (7, True)
    check_restored(world, world.path)
    check_done(restore(first.place, first.root / "new"))
    check_restored(first, first.root / "new")
    first.go_on()
    check_done(restore(first.place, first.path, over=True))
    check_restored(first, first.path)


# ---- killed


STEPS = ("base", "mark", "copy", "fence", "commit", "claim", "row", "shard")
OVER = ("claim", "remove", "keep", "commit", "aside", "mark", "copy", "fence", "row", "shard")


@pytest.mark.parametrize("step", STEPS[: many(len(STEPS), 1)])
def test_killed_in_a_new_place(world: World, step: str) -> None:
    path = world.root / "new"
    with pytest.raises(Stop):
        restore(world.place, path, steps=StopAt(step, 2 if step in ("copy", "claim") else 1))
    assert fails_to_open(path)
    if step not in ("mark",):
        back_up(world.table, world.place, "b2")
        other = restore(world.place, path, backup="b2")
        assert (other.exit_code, "'b1' was not finished" in (other.error or "")) == (5, True)
    check_done(restore(world.place, path, backup="b1"))
    check_restored(world, path)


@pytest.mark.parametrize("step", OVER[: many(len(OVER), 1)])
def test_killed_over_a_table(world: World, step: str) -> None:
    world.go_on()
    damaged = next((world.place / "data").iterdir()).name
    (world.path / "data" / damaged).write_bytes(b"x" * 100)
    stale = world.table.dataset
    with pytest.raises(Stop):
        restore(world.place, world.path, over=True, steps=StopAt(step, 1))
    blocked = step not in ("keep", "mark", "copy", "remove", "aside")
    assert fails_to_open(world.path) == blocked
    if blocked:  # a commit that was begun before, and a job
        (looked,) = run_verify(RunOptions(tables=[resolve(world.path)]), SILENT).tables
        assert (looked.exit_code, "(MW-A25)" in (looked.error or "")) == (5, True)
        with pytest.raises(OSError):
            stale.delete("k = 1")
    report = check_done(restore(world.place, world.path, over=blocked is False))
    kept = [*world.path.glob(f"{layout.REPLACED}/*/data/{damaged}")]
    assert [k.read_bytes() for k in kept] in ([b"x" * 100], [b"x" * 100] * 2)
    assert report.version_after == stale.version + 1
    with pytest.raises(OSError):
        world.writer.put(world.rows(8, 92))
    check_restored(world, world.path)


def test_killed_and_then_another_backup(world: World) -> None:
    path = world.root / "new"
    with pytest.raises(Stop):
        restore(world.place, path, steps=StopAt("shard", 1))
    world.writer.put(world.rows(7, 80))
    back_up(world.table, world.place, "b2")
    report = check_done(restore(world.place, path, over=True))
    assert report.backup == "b2"
    world.truth[world.table.kind.key(7)] = world.table.row(7, 80)
    assert read_all(world.at(path)) == world.truth


def test_what_comes_between_is_restored_over_kept_or_fenced(world: World) -> None:
    """A commit before the mark, a put that is acknowledged to the last, a claim."""
    before, commits, claims, put = world.manifest(), [], [], []

    def come(step: str) -> None:
        if step == "mark" and not commits:
            commits.append(lance.write_dataset(world.rows(17, 1), world.table.uri, mode="append"))
        if step == "aside" and not put:
            put.append(world.writer.put(world.rows(8, 98)))
        if step == "row" and not claims:
            assert "fenced" in fails(lambda: world.writer.put(world.rows(8, 99)))
            claims.append(ShardManifests(world.table.stores.objects).claim(world.shard))

    world.writer.put(world.rows(8, 97))
    report = check_done(restore(world.place, world.path, over=True, steps=come))
    assert report.version_after == commits[0].version + 1
    assert before.writer_epoch < claims[0].writer_epoch < world.manifest().writer_epoch
    assert replaced_rows(world, report) == {70, 97, 98}
    assert read_all(world.table) == world.truth


def replaced_rows(world: World, report: RestoreTableReport) -> set[int]:
    """What only the old WAL had."""
    folder = world.path / str(report.replaced_folder) / layout.wal_folder(world.shard)
    batches = [b for e in folder.iterdir() for b in pa.ipc.open_stream(e.read_bytes())]
    return {row["n"] for batch in batches for row in batch.to_pylist()}


def test_what_is_gone_again_before_the_end(world: World) -> None:
    path = world.root / "new"

    def delete(step: str) -> None:
        if step == "base":
            shutil.rmtree(path / "data")

    report = restore(world.place, path, steps=delete)
    assert (report.exit_code, "gone again" in (report.error or "")) == (1, True)
    assert fails_to_open(path)
    check_done(restore(world.place, path))
    assert read_all(world.at(path)) == world.truth


def test_a_mark_of_a_newer_memwal_is_left_alone(world: World) -> None:
    path = world.root / "new"
    with pytest.raises(Stop):
        restore(world.place, path, steps=StopAt("copy", 1))
    (mark,) = (path / layout.VERSIONS).iterdir()
    data = mark.read_bytes()
    assert restores.decode_restore_mark(data) is not None
    mark.write_bytes(data.replace(b"\n\x08\x01", b"\n\x08\x02"))
    report = restore(world.place, path, over=True)
    assert (report.exit_code, "(MW-A23)" in (report.error or "")) == (8, True)


# ---- from Python and the command line


def test_a_new_place_that_is_given_like_a_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.root)
    with pytest.raises(NotATable, match="no such table") as refused:
        memwal.open_table("again").restore(str(world.place))
    told, _, place = str(refused.value).partition("; a new place is written ")
    assert (place, Path("again").exists()) == ("./again", False)
    with pytest.raises(NotATable) as elsewhere:
        memwal.open_table("again").verify()
    assert str(elsewhere.value) == told
    report = memwal.open_table(place).restore(str(world.place), backup="b1")
    assert (report.backup, report.objects_copied > 0) == ("b1", True)
    with pytest.raises(Refused, match="over"):
        memwal.open_table(place).restore(str(world.place))
    assert read_all(world.at(world.root / "again")) == world.truth
