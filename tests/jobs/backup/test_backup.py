"""Backups of real tables: who reads them, what the next one copies, what goes and what is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from typer.testing import CliRunner

import memwal
from memwal.cli.app import app
from memwal.clock import SystemClock
from memwal.config import BackupSettings
from memwal.errors import Refused
from memwal.format import codec, layout
from memwal.jobs.backup import job
from memwal.jobs.backup.job import BackupOptions, run_backup, run_drop, run_list, run_verify
from memwal.jobs.backup.plan import BackupTableReport
from memwal.jobs.backup.request import BackupRequest
from memwal.model import BackupMark, ShardId
from memwal.ports import Steps, no_steps
from memwal.read import open_table
from memwal.store.objects.opening import open_objects
from memwal.store.records.backups import StoredBackups
from tests.support import builders, wal_tables
from tests.support import garbage_runs as runs
from tests.support.backups import resolve
from tests.support.builders import Delete, Put, Rows, Table
from tests.support.lancedb_process import lancedb_client
from tests.support.lsm_reads import lsm_read
from tests.support.progress import Quiet
from tests.support.s3server import S3Server
from tests.support.stopping import Stop, StopAt

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    found = runs.collectable(tmp_path_factory.mktemp("made") / "t", shards=1, generations=1)
    found.flush(found.shards[0], Put([100, 500], 1), Delete([150]))
    return found


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """A shard with a generation that waits, over a row that was merged, and rows in its WAL."""
    found = made.copied(tmp_path / "t")
    wal_tables.abandon(found, found.shards[0], Put([700, 701], 3), Delete([100]))
    return found


@pytest.fixture
def dest(tmp_path: Path) -> str:
    return str(tmp_path / "d")


def back_up(
    table: Table,
    dest: str,
    name: str | None = None,
    *,
    dry_run: bool = False,
    steps: Steps = no_steps,
    dest_options: dict[str, str] | None = None,
    **asked: Any,
) -> Any:
    options = BackupOptions(
        tables=[resolve(table.uri, table.options)],
        dest=resolve(dest, dest_options),
        request=BackupRequest(name=name, **asked),
        dry_run=dry_run,
    )
    (report,) = run_backup(options, Quiet(), steps).tables
    return report


def drop(dest: str, names: Sequence[str] = (), **how: Any) -> Any:
    (report,) = run_drop(resolve(dest), names, **how).tables
    return report


def done(report: Any) -> BackupTableReport:
    assert report.error is None, report.error
    assert isinstance(report, BackupTableReport)
    return report


def read(table: Table, dest: str, options: dict[str, str] | None = None, **asked: Any) -> Rows:
    found = open_table(dest, options or {}).read(with_wal=True, **asked)
    return table.keyed(found.read_all())


def names(dest: str) -> list[str]:
    (report,) = run_list(resolve(dest)).tables
    return [backup.name for backup in done(report).backups]


def files(folder: str) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
    }


def check_tidy(dest: str) -> None:
    """Nothing lies there that no backup needs, and nothing is missing."""
    backups = StoredBackups(open_objects(dest, {}, SystemClock()))
    assert (backups.read_mark(), list(backups.left_lists())) == (None, [])
    needed = {one.path for found in backups.list() for one in backups.objects_of(found)}
    there = {
        path
        for path in files(dest)
        if not path.startswith(layout.MAINTENANCE)
        and not path.endswith("manifest/version_hint.json")
    }
    assert there == needed
    (report,) = run_verify(resolve(dest)).tables
    assert done(report).damaged == ()


# ---- what a backup is


def test_it_is_a_table_that_all_read_and_that_verifies(table: Table, dest: str) -> None:
    truth, merged, before = table.truth(), table.base_rows(), set(files(table.uri))
    done(back_up(table, dest, "monday"))
    left = {path.split("/")[1] for path in set(files(table.uri)) - before}
    assert left <= {"runs"}, "what it leaves at the source"
    assert memwal.open_table(table.uri).checkpoints().checkpoints == ()

    found = StoredBackups(open_objects(dest, {}, SystemClock())).find()
    (shard,), manifest = found.shards, runs.manifest(table)
    assert (shard.manifest_version, shard.writer_epoch) == (manifest.version, manifest.writer_epoch)
    assert shard.wal_last > shard.replay_after_wal_entry_position > 0
    assert (shard.merged_generation, shard.current_generation) == (1, 3)
    assert (found.source, found.version) == (table.uri, int(table.dataset.version))

    shutil.move(table.uri, f"{table.uri}-away")
    builders.same_rows(read(table, dest), truth, "memwal")
    builders.same_rows(table.keyed(lance.dataset(dest).to_table()), merged, "pylance's base")
    flushed = table.expected({table.shards[0]: 2})
    builders.same_rows(table.keyed(lsm_read(dest)), flushed, "pylance's scanner")
    assert "key_idx" in {i.name for i in lance.dataset(dest).describe_indices()}
    report = memwal.open_table(dest).verify()
    assert [check.name for check in report.checks if check.ok is False] == []
    check_tidy(dest)


@pytest.mark.nightly
def test_lancedb_reads_it(tmp_path: Path, table: Table) -> None:
    dest = str(tmp_path / "db" / "copy.lance")
    done(back_up(table, dest))
    flushed = table.expected({table.shards[0]: 2})
    with lancedb_client(tmp_path / "db") as lancedb:
        lancedb("run", code=f"import lancedb; t = lancedb.connect({str(tmp_path / 'db')!r})")
        lancedb("run", code="t = t.open_table('copy')")
        assert lancedb("evaluate", code="t.count_rows()") == len(table.base_rows())
        found = lancedb("evaluate", code="t.search().use_lsm(True).limit(1000).to_list()")
        assert {one["k"] for one in found} == {key[0] for key in flushed}


def test_blobs_with_files_of_their_own_come_along(tmp_path: Path) -> None:
    marked = builders.KINDS["int64"].fields[0].with_name("k")
    schema = pa.schema([marked, blob_field("b")])
    blobs = [b"x" * 100, b"y" * 300_000, b"z" * 17_000_000]
    rows = pa.table([pa.array([1, 2, 3]), blob_array(blobs)], schema=schema)
    uri, dest = str(tmp_path / "t"), str(tmp_path / "d")
    lance.write_dataset(rows, uri, data_storage_version="2.2").initialize_mem_wal()
    assert memwal.open_table(uri).backup(dest).backups[0].objects >= 4
    shutil.rmtree(uri)
    found = dict(lance.dataset(dest).read_blobs("b", indices=[0, 1, 2]))
    assert sorted(map(len, found.values())) == [len(blob) for blob in blobs]


def test_a_dry_run_tells_and_leaves_nothing(table: Table, dest: str) -> None:
    before = files(table.uri)
    report = done(back_up(table, dest, dry_run=True))

    assert (report.backups[0].state, report.objects_copied > 10) == ("planned", True)
    assert not Path(dest).exists()
    assert files(table.uri) == before


# ---- the next one


def test_the_next_one_copies_what_changed(table: Table, dest: str) -> None:
    first = done(back_up(table, dest, "a"))
    again = done(back_up(table, dest, "b"))
    assert (again.objects_copied, again.objects_kept) == (0, first.objects_copied)

    table.flush(table.shards[0], Put([900], 9))
    for merged in table.merge_all():
        assert merged.error is None
    third = done(back_up(table, dest, "c"))

    assert 0 < third.objects_copied < first.objects_copied + 25
    assert names(dest) == ["a", "b", "c"]
    builders.same_rows(read(table, dest), table.truth(), "newest")
    check_tidy(dest)
    assert memwal.open_table(dest).verify().outcome == "done"


def test_keep_lets_older_ones_go_and_what_only_they_need(table: Table, dest: str) -> None:
    for name in ("a", "b"):
        done(back_up(table, dest, name))
    table.flush(table.shards[0], Put([900], 9))
    table.merge_all()
    table.dataset.optimize.compact_files()
    runs.collect(table, retention=0)
    report = done(back_up(table, dest, "c", keep="2"))
    assert [(b.name, b.state) for b in report.backups] == [("c", "made"), ("a", "dropped")]
    assert report.objects_deleted == 0  # b needs the same
    report = done(back_up(table, dest, "d", keep="1"))
    assert [b.name for b in report.backups if b.state == "dropped"] == ["b", "c"]
    assert report.objects_deleted > 5
    builders.same_rows(read(table, dest), table.truth(), "newest")
    check_tidy(dest)


def test_dropping_the_newest_leaves_the_one_before_as_the_table(table: Table, dest: str) -> None:
    done(back_up(table, dest, "a"))
    then = table.truth()
    table.flush(table.shards[0], Put([900, 700], 9))
    table.merge_all()
    done(back_up(table, dest, "b"))

    before = files(dest)
    assert done(drop(dest, ["b"], dry_run=True)).objects_deleted > 0
    assert files(dest) == before
    assert [b.state for b in done(drop(dest, ["b"])).backups] == ["dropped"]

    builders.same_rows(read(table, dest), then, "the one before")
    builders.same_rows(table.keyed(lsm_read(dest)), table.expected({table.shards[0]: 2}), "pylance")
    check_tidy(dest)
    assert done(drop(dest, ["a"])).objects_deleted > 0
    assert {path.split("/")[0] for path in files(dest)} == {layout.MAINTENANCE}
    assert "no backup 'a'; the place has none" in drop(dest, ["a"]).error
    before = files(table.uri)
    assert drop(table.uri, ["a"]).exit_code == 2
    assert files(table.uri) == before


# ---- killed


STEPS = (
    *(("mark", 1), ("pin", 1), ("mark what is copied", 1)),
    *(("copy data", 1), ("copy", 1), ("copy", 5), ("copy generation", 1), ("copy wal", 1)),
    *(("copy shard manifest", 1), ("copy base manifest", 1), ("hints", 1), ("document", 1)),
    *(("let go", 1), ("drop document", 1), ("delete objects", 1), ("drop list", 1)),
    ("remove mark", 1),
)
FIRST = (("pin", 1), ("copy", 5), ("copy base manifest", 1), ("document", 1), ("let go", 1))


@pytest.mark.parametrize(
    "begun", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["first", "next"]
)
def test_stopped_at_any_step_it_is_no_backup_and_the_next_run_goes_on(
    table: Table, tmp_path: Path, begun: bool
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    if begun:
        done(back_up(table, str(base), "a"))
        table.flush(table.shards[0], Put([900], 9))
        table.merge_all()
    truth, steps = table.truth(), STEPS if begun else FIRST
    for place, (step, nth) in enumerate(steps):
        dest = str(tmp_path / "d")
        shutil.copytree(base, dest)
        with pytest.raises(Stop):
            back_up(table, dest, "b", keep="1", steps=StopAt(step, nth))
        if place <= steps.index(("copy base manifest", 1)):
            version = layout.table_manifest_names(int(table.dataset.version))[0]
            assert not (Path(dest) / layout.VERSIONS / version).exists(), step
        is_made = place >= steps.index(("let go", 1))
        is_dropped = is_made and place > steps.index(("let go", 1)) + 1
        assert names(dest) == ["a"] * (begun and not is_dropped) + ["b"] * is_made, step
        again = done(back_up(table, dest, "c", keep="1"))
        assert again.moments == 1
        assert names(dest) == ["c"]
        builders.same_rows(read(table, dest), truth, step)
        check_tidy(dest)
        shutil.rmtree(dest)
    assert memwal.open_table(table.uri).checkpoints().checkpoints == ()


def test_a_drop_that_was_stopped_before_the_hints_leaves_a_place_for_the_next_backup(
    table: Table, dest: str
) -> None:
    done(back_up(table, dest, "a"))
    added = table.add_shard()
    table.flush(added, Put([901], 9))
    done(back_up(table, dest, "b"))
    with pytest.raises(Stop):
        drop(dest, ["b"], steps=StopAt("hints", 1))
    done(drop(dest, keep="9"))
    assert not (Path(dest) / layout.version_hint_path(added)).exists()
    check_tidy(dest)
    done(back_up(table, dest, "c"))


def before_claim(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody act just before the next run claims the place."""
    claim = job.claim_place

    def act_first(*claimed: Any) -> Any:
        monkeypatch.setattr(job, "claim_place", claim)
        act()
        return claim(*claimed)

    monkeypatch.setattr(job, "claim_place", act_first)


def test_a_drop_that_ends_what_another_began_while_a_backup_begins(
    table: Table, dest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(back_up(table, dest, "a"))
    with pytest.raises(Stop):
        drop(dest, ["a"], steps=StopAt("delete objects", 1))
    table.flush(table.shards[0], Put([900], 9))  # what has numbers for names is new by now
    table.merge_all()

    def drop_first() -> None:
        """Somebody ends the drop just before, and is killed before its lists are gone."""
        with pytest.raises(Stop):
            drop(dest, keep="9", steps=StopAt("drop list", 1))

    before_claim(monkeypatch, drop_first)
    done(back_up(table, dest, "b"))
    check_tidy(dest)
    builders.same_rows(read(table, dest), table.truth(), "b")


def test_the_newest_is_chosen_when_nobody_else_can_drop(
    table: Table, dest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        done(back_up(table, dest, name))
    before_claim(monkeypatch, lambda: done(drop(dest, ["c"])))
    done(drop(dest, keep="1"))
    assert names(dest) == ["b"]


def test_a_backup_is_newer_than_those_before_it_whatever_the_clocks_say(
    table: Table, dest: str
) -> None:
    done(back_up(table, dest, "a"))
    (first,) = StoredBackups(open_objects(dest, {}, SystemClock())).list()
    ahead = replace(first, made_at_nanos=first.made_at_nanos + 3600 * 10**9)
    (Path(dest) / layout.backup_path("a")).write_bytes(codec.encode_backup(ahead))
    done(back_up(table, dest, "b", keep="1"))
    assert names(dest) == ["b"]


def test_a_mark_that_names_somebody_s_checkpoint_deletes_none(table: Table, dest: str) -> None:
    api = memwal.open_table(table.uri)
    api.checkpoint("monday")
    Path(dest, layout.BACKUPS).mkdir(parents=True)
    mark = BackupMark(source=table.uri, name="x", begun_at_nanos=1, pin="monday", paths=())
    Path(dest, layout.BACKUP_MARK).write_bytes(codec.encode_backup_mark(mark))
    assert code_of(back_up(table, dest, "a")) == "MW-A01"
    assert [c.name for c in api.checkpoints().checkpoints] == ["monday"]


@pytest.mark.parametrize(
    "what", ["data/*.lance", "_indices/*/*.lance", "_mem_wal/*/*_gen_*/data/*.lance"]
)
def test_a_table_that_has_lost_files_of_its_base_an_index_or_a_generation_is_no_backup(
    table: Table, dest: str, what: str
) -> None:
    table.flush(table.shards[0], Put([910], 9))
    there = sorted(Path(table.uri).glob(what), key=lambda path: path.stat().st_mtime)
    there[-1].unlink()
    assert code_of(back_up(table, dest, "a")) == "MW-A09"


# ---- live


def test_what_is_collected_while_it_is_copied_makes_it_look_again(table: Table, dest: str) -> None:
    struck: list[str] = []

    def collect_all(step: str) -> None:
        if step == "copy wal" and not struck:
            struck.append(step)
            table.flush(table.shards[0], Put([900], 9))
            table.merge_all()
            runs.catch_up(table)
            runs.collect(table, retention=0, wal=True)
            for path in Path(table.uri).glob("_mem_wal/*/wal/*.arrow"):
                path.unlink()  # those of the moment are gone for good

    report = done(back_up(table, dest, steps=collect_all))

    assert (struck, report.moments) == (["copy wal"], 2)
    builders.same_rows(read(table, dest), table.truth(), "copy")
    check_tidy(dest)


def test_a_manifest_that_garbage_replaces_while_it_is_copied(table: Table, dest: str) -> None:
    """Its name stays taken, by a stopper: that is no manifest of any moment."""
    shard, struck = table.shards[0], []

    def collect(step: str) -> None:
        if step == "copy shard manifest" and not struck:
            latest = table.stores.shard_manifests.latest(shard)
            assert latest is not None
            struck.append(layout.shard_manifest_path(shard, latest.version))
            table.flush(shard, Put([900], 9))
            Path(table.uri, struck[0]).write_bytes(layout.encode_stopper(1))

    report = done(back_up(table, dest, steps=collect))

    assert report.moments == 2
    builders.same_rows(read(table, dest), table.truth(), "copy")
    assert struck[0] not in files(dest)
    check_tidy(dest)


def test_merges_and_garbage_beside_it_take_nothing_that_it_needs(table: Table, dest: str) -> None:
    then = table.truth()

    def upkeep(step: str) -> None:
        if step == "copy data":
            table.flush(table.shards[0], Put([700, 900], 9))
            table.merge_all()
            runs.catch_up(table)
            table.dataset.optimize.compact_files()
            runs.collect(table, retention=0)

    report = done(back_up(table, dest, steps=upkeep))

    assert report.moments == 1
    builders.same_rows(read(table, dest), then, "the moment it began")
    check_tidy(dest)


# ---- refused


def code_of(report: Any) -> str:
    assert report.error is not None
    return str(report.error)[-7:-1]


def test_what_is_refused(table: Table, dest: str, tmp_path: Path) -> None:
    inside = [f"{table.uri}{inner}" for inner in ("", "/_maintenance/backups", "/backup", "/..")]
    assert [back_up(table, place).exit_code for place in inside] == [2, 2, 2, 2]
    with pytest.raises(Refused, match="MW-L01"):
        run_backup(
            BackupOptions(tables=[resolve(table.uri)], dest=resolve(dest), lease=False), Quiet()
        )
    table.dataset.shallow_clone(str(tmp_path / "clone"), table.dataset.version)
    report = back_up(Table(uri=str(tmp_path / "clone"), kind=table.kind), f"{dest}-clone")
    assert (report.exit_code, code_of(report)) == (7, "MW-A08")
    done(back_up(table, dest, "a"))
    assert code_of(back_up(table, dest, "a")) == "MW-A02"
    lance.dataset(dest).delete("n = 1")
    before = files(dest)
    report = back_up(table, dest)
    assert (report.exit_code, code_of(report)) == (5, "MW-A06")
    assert files(dest) == before


def test_another_entry_under_a_position_is_refused(table: Table, dest: str) -> None:
    done(back_up(table, dest))
    (newest,) = StoredBackups(open_objects(dest, {}, SystemClock())).find().shards
    path = Path(table.uri) / layout.wal_entry_path(ShardId(newest.shard_id), newest.wal_last)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    report = back_up(table, dest)
    assert (report.exit_code, code_of(report)) == (5, "MW-A03")


# ---- damage


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_verify_finds_an_object_that_is_damaged(table: Table, dest: str, how: str) -> None:
    done(back_up(table, dest, "a"))
    path = sorted((Path(dest) / "data").glob("*.lance"))[0]
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    else:
        data[10] ^= 1
        path.write_bytes(data)

    (report,) = run_verify(resolve(dest)).tables

    assert (report.exit_code, code_of(report)) == (8, "MW-A07")
    assert [d.path for d in report.damaged] == [f"data/{path.name}"]
    assert [(b.name, b.state) for b in report.backups] == [("a", "damaged")]
    if how == "gone":  # the next one copies it again
        assert done(back_up(table, dest, "b")).objects_copied == 1
        check_tidy(dest)


def test_one_that_is_read_again_drops_nothing_if_it_is_damaged(table: Table, dest: str) -> None:
    done(back_up(table, dest, "a"))
    path = sorted((Path(dest) / "data").glob("*.lance"))[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    report = back_up(table, dest, "b", keep="1", verify=True)
    assert (report.exit_code, code_of(report)) == (8, "MW-A07")
    assert names(dest) == ["a", "b"]


def test_the_place_and_what_stays_are_as_configured(table: Table, dest: str) -> None:
    resolved = resolve(table.uri).model_copy(update={"backup": BackupSettings(uri=dest, keep="1")})
    for name in ("a", "b"):
        options = BackupOptions(tables=[resolved], request=BackupRequest(name=name, verify=True))
        (report,) = run_backup(options, Quiet()).tables
        assert done(report).objects_read == report.objects_copied + report.objects_kept
    assert names(dest) == ["b"]

    (nowhere,) = run_backup(BackupOptions(tables=[resolve(table.uri)]), Quiet()).tables
    assert nowhere.exit_code == 2
    assert "no place for its backups" in str(nowhere.error)


def test_where_a_list_can_t_be_read_nothing_is_dropped(table: Table, dest: str) -> None:
    done(back_up(table, dest, "a"))
    done(back_up(table, dest, "b"))
    (Path(dest) / layout.BACKUPS / "a.objects").write_bytes(b"\xff\xff")
    before = {p for p in files(dest) if "lease" not in p}

    report = drop(dest, ["b"])
    assert (report.exit_code, code_of(report)) == (8, "MW-A01")
    assert {p for p in files(dest) if "lease" not in p} == before


def test_garbage_is_refused_where_backups_are(table: Table, dest: str) -> None:
    done(back_up(table, dest, "a"))
    table.flush(table.shards[0], Put([900], 9))
    table.merge_all()
    done(back_up(table, dest, "b"))
    place = Table(uri=dest, kind=table.kind)
    before = {p for p in files(dest) if not p.startswith("_maintenance/")}

    (report,) = runs.run(place, retention=0).tables

    assert (report.exit_code, code_of(report)) == (5, "MW-A10")
    assert {p for p in files(dest) if not p.startswith("_maintenance/")} == before
    assert {one.action for one in runs.garbage(place, execute=False).items} <= {"keep", "delete"}


# ---- how it is asked for


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    found = CliRunner().invoke(app, ["backup", *arguments, "--json"], catch_exceptions=False)
    return found.exit_code, json.loads(found.stdout)


def test_from_the_command_line(table: Table, dest: str) -> None:
    code, document = command(table.uri, dest, "--name", "a")
    assert (code, document["job"], document["outcome"]) == (0, "backup", "done")
    (told,) = document["tables"]
    assert told["objects_copied"] == told["backups"][0]["objects"] > 10
    assert document["requests"]["put"] > told["objects_copied"]
    code, document = command("create", table.uri, dest, "--keep", "1")
    states = [backup["state"] for backup in document["tables"][0]["backups"]]
    assert (code, states) == (0, ["made", "dropped"])
    code, document = command("list", dest)
    (listed,) = document["tables"][0]["backups"]
    assert (code, listed["state"], listed["source"]) == (0, "kept", table.uri)
    assert command("verify", dest)[0] == 0
    code, document = command("drop", dest, listed["name"])
    assert (code, document["tables"][0]["objects_deleted"]) == (0, listed["objects"])
    assert command("list", dest)[1]["outcome"] == "nothing_to_do"
    assert command("drop", dest)[0] == 2
    assert command("drop", dest, listed["name"])[0] == 2
    assert command(table.uri, dest, "--keep", "0")[0] == 2


# ---- other stores


@pytest.mark.nightly
def test_from_a_folder_to_a_bucket_and_back(
    make_s3_uri: Callable[[], str], s3_server: S3Server, table: Table, tmp_path: Path
) -> None:
    place = resolve(make_s3_uri(), s3_server.storage_options)
    done(back_up(table, place.uri, "a", dest_options=place.storage_options))
    builders.same_rows(read(table, place.uri, place.storage_options), table.truth(), "bucket")

    remote = Table(uri=place.uri, kind=table.kind, options=place.storage_options)
    remote.shards, remote.effects = table.shards, table.effects
    dest = str(tmp_path / "back")
    done(back_up(remote, dest, "a"))
    builders.same_rows(read(table, dest), table.truth(), "and back")
    again = done(back_up(table, place.uri, "b", keep="1", dest_options=place.storage_options))
    assert again.objects_copied == 0
