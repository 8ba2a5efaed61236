"""Restores of real tables: what is read afterwards, and what becomes of writers of the old one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import NotATable, Refused
from memwal.format import layout, restores
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.restore.plan import RestoreTableReport
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
from tests.support.fencing import claim_epoch
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


def test_in_a_new_place(world: World) -> None:
    path = world.root / "new"
    version = world.table.dataset.version
    planned = check_done(restore(world.place, path, dry_run=True))
    assert (planned.backup, planned.version_after, path.exists()) == ("b1", None, False)
    report = check_done(restore(world.place, path))
    assert report.objects_copied == planned.objects_copied
    assert report.backup_version == version
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
    (tmp_path / "t").rename(tmp_path / "broken")
    check_done(restore(tmp_path / "copies", tmp_path / "t"))
    assert table.keyed(open_table(table.uri).read(with_wal=True).read_all()) == truth
    table.flush((1, table.row(1, 19)))
    table.merge()
    assert table.base_rows() == table.by_key(table.truth())


def test_where_the_old_table_was_moved_aside_its_writer_is_told_when_it_flushes(
    world: World,
) -> None:
    # Its epoch, its manifests and its WAL are all ahead of the backup's.
    stale = world.table.dataset
    world.go_on()
    world.table.writer(world.shard).close()
    world.writer = world.table.writer(world.shard)
    world.writer.put(world.rows(8, 91))
    before, later = world.manifest(), world.table.lsm_rows()
    refused = restore(world.place, world.path)
    assert (refused.exit_code, "(MW-A20)" in (refused.error or "")) == (5, True)
    assert world.manifest() == before

    world.path.rename(world.root / "broken")
    check_done(restore(world.place, world.path))
    assert world.manifest().writer_epoch > 10**12
    assert "ncompatible" in fails(lambda: stale.delete("k = 1"))
    world.writer.put(world.rows(8, 92))  # nothing shows where it stands
    assert "fenced" in fails(world.writer.close)
    check_restored(world, world.path)
    assert world.at(world.root / "broken").lsm_rows() == later


def test_the_writer_of_a_restored_table_is_told_of_the_next_restore(world: World) -> None:
    for old in ("broken", "broken again"):
        world.path.rename(world.root / old)
        check_done(restore(world.place, world.path))
        writer, world.writer = world.writer, world.table.writer(world.shard)
    writer.put(world.rows(8, 92))
    assert "fenced" in fails(writer.close)
    world.writer.close()
    assert read_all(world.table) == world.truth


def test_a_writer_of_memwal_is_told(world: World) -> None:
    stores = world.table.stores
    ours = ShardWriters(stores.objects, stores.tables, merged=world.table.progress())
    shard = ours.open(world.other)
    shard.put(world.rows(12, 80))
    world.path.rename(world.root / "broken")
    check_done(restore(world.place, world.path))
    shard.put(world.rows(12, 81))
    with pytest.raises(Fenced, match="restored from a backup"):
        shard.close()
    assert read_all(world.table) == world.truth


@pytest.mark.nightly
def test_in_a_bucket(make_s3_uri: Callable[[], str], s3_server: S3Server, world: World) -> None:
    uri, options = make_s3_uri(), s3_server.storage_options
    check_done(restore(world.place, uri, options=options))
    table = replace(world.table, uri=uri, options=options)
    assert read_all(table) == world.truth
    old = table.writer(world.shard)
    old.put(world.rows(7, 80))
    held = restore(world.place, uri, options=options)
    assert (held.exit_code, "(MW-A20)" in (held.error or "")) == (5, True)
    objects = table.stores.objects
    objects.delete([file.path for file in objects.list("")])
    check_done(restore(world.place, uri, options=options))
    old.put(world.rows(7, 81))
    assert "fenced" in fails(old.close)
    assert read_all(table) == world.truth


# ---- refusals


def test_a_damaged_backup_becomes_no_table(world: World) -> None:
    data = next((world.place / "data").iterdir())
    data.write_bytes(b"y" * data.stat().st_size)
    report = restore(world.place, world.root / "new")
    assert (report.exit_code, "(MW-A07)" in (report.error or "")) == (8, True)
    assert fails_to_open(world.root / "new")


def fails_to_open(path: Path) -> bool:
    try:
        lance.dataset(str(path))
    except (OSError, ValueError):
        return True
    return False


def test_places_that_are_refused(world: World) -> None:
    places = (world.place / "inside", world.root, world.place)
    assert [restore(world.place, place).exit_code for place in places] == [2, 2, 2]
    with pytest.raises(Refused, match="MW-L01"):
        restore(world.place, world.root / "new", lease=False)
    (world.root / "file").mkdir()
    (world.root / "file" / "some.txt").write_text("here")
    occupied = restore(world.place, world.root / "file")
    assert (occupied.exit_code, "(MW-A20)" in (occupied.error or "")) == (5, True)
    for source, asked in (
        (world.root / "nothing", {}),
        (world.place, {"backup": "b2"}),
    ):
        assert restore(source, world.root / "new", **asked).exit_code == 2
    assert not (world.root / "new").exists()
    world.at(world.root / "new").stores.leases.acquire("restore")
    report = restore(world.place, world.root / "new")
    assert (report.outcome, report.exit_code) == ("held", 4)


@pytest.mark.nightly
def test_versions_that_are_named_by_the_first_scheme(tmp_path: Path) -> None:
    first = World(tmp_path / "v1", enable_v2_manifest_paths=False)
    check_done(restore(first.place, first.root / "new"))
    check_restored(first, first.root / "new")


# ---- killed


STEPS = ("copy", "mark", "fence", "commit", "claim", "row", "shard")


@pytest.mark.parametrize("step", STEPS[: many(len(STEPS), 1)])
def test_killed_in_a_new_place(world: World, step: str) -> None:
    path = world.root / "new"
    with pytest.raises(Stop):
        restore(world.place, path, steps=StopAt(step, 2 if step in ("copy", "claim") else 1))
    assert fails_to_open(path)
    if step != "mark":
        (looked,) = run_verify(RunOptions(tables=[resolve(path)]), SILENT).tables
        assert (looked.exit_code, "(MW-A25)" in (looked.error or "")) == (5, True)
        back_up(world.table, world.place, "b2")
        other = restore(world.place, path, backup="b2")
        assert (other.exit_code, "'b1' was not finished" in (other.error or "")) == (5, True)
    check_done(restore(world.place, path, backup="b1"))
    check_restored(world, path)


def test_killed_and_then_garbled(world: World) -> None:
    path = world.root / "new"
    with pytest.raises(Stop):
        restore(world.place, path, steps=StopAt("commit", 1))
    data = next((path / "data").iterdir())
    data.write_bytes(b"x" * data.stat().st_size)
    report = restore(world.place, path)
    assert (report.exit_code, "with other bytes" in (report.error or "")) == (5, True)
    data.unlink()
    assert check_done(restore(world.place, path)).objects_copied == 1
    check_restored(world, path)


def test_what_comes_between_is_fenced(world: World) -> None:
    """A put that is acknowledged to the last, and a claim."""
    path, claims = world.root / "new", list[ShardManifest]()

    def come(step: str) -> None:
        if step == "row" and not claims:
            claims.append(claim_epoch(ShardManifests(world.at(path).stores.objects), world.shard))

    check_done(restore(world.place, path, steps=come))
    assert claims[0].writer_epoch < world.manifest(path).writer_epoch
    check_restored(world, path)


@pytest.mark.parametrize("step", ["mark", "commit"])
def test_where_somebody_else_makes_a_table_meanwhile_it_stays_theirs(
    world: World, step: str
) -> None:
    path = world.root / "new"

    def come(now: str) -> None:
        if now == step:
            version = world.table.dataset.version + (1 if step == "mark" else 9)
            name = path / layout.VERSIONS / layout.table_manifest_names(version)[0]
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_text("theirs")

    report = restore(world.place, path, steps=come)
    assert (report.exit_code, report.outcome) == (4, "failed")
    assert (path / "data").exists() == (step == "commit")
    assert "theirs" in [file.read_text("latin1") for file in (path / layout.VERSIONS).iterdir()]


def test_what_is_gone_again_before_the_end(world: World) -> None:
    path = world.root / "new"

    def delete(step: str) -> None:
        if step == "shard":
            shutil.rmtree(path / "data", ignore_errors=True)

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
    report = restore(world.place, path)
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
    with pytest.raises(Refused, match="aside"):
        memwal.open_table(place).restore(str(world.place))
    assert read_all(world.at(world.root / "again")) == world.truth
