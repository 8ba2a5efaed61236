"""`memwal repair` on real tables: what can come back does, and what can't is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memwal
from memwal.cli.app import app
from memwal.config import ResolvedTable, Settings
from memwal.errors import Corruption, LostRace, MemWalError, StoreUnavailable
from memwal.format import layout
from memwal.jobs.repair.apply import TableRepair
from memwal.jobs.repair.job import RepairOptions, run_repair
from memwal.jobs.repair.model import Damage, PutManifest
from memwal.jobs.repair.report import RepairTableReport, report_repair
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.repair.store import StoredRepair
from memwal.jobs.verify.job import run_verify
from memwal.jobs.verify.plan import Check
from memwal.model import ShardManifest
from memwal.ports import Steps, no_steps
from memwal.run.options import RunOptions
from memwal.store.shards.writers import ShardWriters
from tests.jobs.repair.damages import (
    LEFT,
    WHOLE,
    folder_of,
    make_damaged_ground,
    manifest_files,
    put_tail,
    tear,
)
from tests.support.builders import Put, Rows, Table, apply
from tests.support.indexed import resolved
from tests.support.progress import Quiet
from tests.support.sampling import many

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = make_damaged_ground(tmp_path_factory.mktemp("ground") / "t")
    put_tail(table, table.shards[0])
    return table


@pytest.fixture
def table(ground: Table, tmp_path: Path) -> Table:
    return ground.copied(tmp_path / "t")


def find_place(uri: str) -> ResolvedTable:
    return ResolvedTable(name=uri, uri=uri, settings=Settings(), storage_options={})


def run(
    table: Table,
    *,
    confirm: Callable[..., bool] = lambda name, damages: True,
    steps: Steps = no_steps,
    **asked: Any,
) -> Any:
    request = RepairRequest(**{"execute": True, **asked})
    options = RepairOptions(
        tables=[resolved(table)], request=request, confirm=confirm, find_place=find_place
    )
    (report,) = run_repair(options, Quiet(), steps).tables
    return report


def repair(table: Table, **asked: Any) -> RepairTableReport:
    report = run(table, **asked)
    assert isinstance(report, RepairTableReport), report
    return report


def broken(table: Table) -> list[str]:
    (report,) = run_verify(RunOptions(tables=[resolved(table)]), Quiet()).tables
    return [check.name for check in report.checks if check.ok is False]


def read(table: Table) -> Rows:
    return table.keyed(memwal.open_table(table.uri).read(with_wal=True).read_all())


def snap(table: Table) -> dict[str, bytes]:
    files = (p for p in Path(table.uri).rglob("*") if p.is_file())
    return {str(p.relative_to(table.uri)): p.read_bytes() for p in files}


def check_whole(table: Table, report: RepairTableReport) -> None:
    assert (report.exit_code, report.left, report.lost) == (0, 0, ()), report
    assert broken(table) == [] and read(table) == table.truth()


def test_a_sound_table_is_left_alone(table: Table) -> None:
    before = snap(table)
    report = repair(table)
    assert (report.exit_code, report.items, report.outcome) == (0, (), "nothing_to_do")
    assert snap(table) == before


SOME = {"manifest cut", "progress lowered"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME else pytest.mark.nightly) for name in WHOLE],
)
def test_what_comes_back_whole(table: Table, name: str) -> None:
    shard = table.shards[0]
    WHOLE[name](table, shard)
    assert broken(table)
    before = snap(table)

    listed = repair(table, execute=False)
    assert listed.exit_code == 8 and "(MW-J02)" in str(listed.error)
    assert listed.items and all(item.action == "mend" for item in listed.items)
    assert snap(table) == before

    report = repair(table)
    check_whole(table, report)
    check_kept(table, before, report)
    with table.writer(table.shards[0]):
        pass  # another writer opens, and flushes what was in the WAL only
    table.merge_all()
    assert table.base_rows() == table.truth()


def check_kept(table: Table, before: dict[str, bytes], report: RepairTableReport) -> None:
    """Nothing is gone: what is there no more, or is other, is in quarantine as it was."""
    after = snap(table)
    hints = {name for name in before if name.endswith("hint.json")}
    for name, data in before.items():
        if after.get(name) != data and name not in hints:
            assert after[f"{report.quarantine}/{name}"] == data, name


SOME_LEFT = {"WAL entry and manifest", "data of a pending generation gone", "base file gone"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME_LEFT else pytest.mark.nightly) for name in LEFT],
)
def test_what_is_left_is_told_with_what_is_lost(table: Table, name: str) -> None:
    damage, lost = LEFT[name]
    damage(table, table.shards[0])
    faults, before = broken(table), snap(table)
    report = repair(table)
    assert report.exit_code == 8 and "(MW-J02)" in str(report.error)
    assert {(item.action, item.done) for item in report.items} == {("leave", False)}
    assert lost in "; ".join(report.lost) and bool(report.lost) is bool(lost)
    assert broken(table) == faults
    now = snap(table)
    assert {name: now.get(name) for name in before} == before


def test_a_shard_without_a_manifest_is_not_opened(table: Table) -> None:
    """Nothing else says to which spec it belongs; no writer of ours makes another first one."""
    shard = table.shards[0]
    for path in manifest_files(table, shard):
        path.unlink()
    for merged in ({}, table.progress()):
        writers = ShardWriters(table.stores.objects, table.stores.tables, merged=merged)
        with pytest.raises(Corruption, match=r"memwal verify.*MW-M06"):
            writers.open(shard)


def test_the_table_version_that_a_hint_remembers(table: Table) -> None:
    """The newest version is deleted: the hint alone says so, and it is not made to agree."""
    newest = table.dataset.version
    names = layout.table_manifest_names(newest)
    Path(table.uri, layout.VERSIONS, names[0]).unlink()
    hint = Path(table.uri, layout.TABLE_HINT).read_bytes()
    report = repair(table)
    assert report.exit_code == 8
    assert [i.kind for i in report.items if i.action == "leave"] == ["hint"]
    assert f"what was committed after version {newest - 1}" in report.lost
    assert Path(table.uri, layout.TABLE_HINT).read_bytes() == hint


def test_an_older_version_that_cannot_be_read(table: Table, tmp_path: Path) -> None:
    backed_up(table, tmp_path / "vault")
    version = table.dataset.version
    table.merge_all()
    name = layout.table_manifest_names(version)[0]
    path = Path(table.uri, layout.VERSIONS, name)
    tear(path, 40)
    torn = path.read_bytes()
    report = repair(table)
    assert report.exit_code == 8 and report.lost == (f"version {version} can't be read",)
    assert path.read_bytes() == torn
    check_whole(table, report := repair_from(table, tmp_path / "vault"))
    kept = Path(table.uri, str(report.quarantine), layout.VERSIONS, name)
    assert kept.read_bytes() == torn


def test_the_snapshot_follows_a_shard_that_was_set_back(table: Table) -> None:
    memwal.open_table(table.uri).snapshot()
    WHOLE["three manifests gone"](table, table.shards[0])
    assert repair(table).exit_code == 0
    lately = memwal.open_table(table.uri, consistency="snapshot")
    assert table.keyed(lately.read().read_all()) == table.truth()


@pytest.mark.nightly
def test_manifests_far_below_what_a_checkpoint_was_made_of(table: Table) -> None:
    """One manifest above it is enough, and pylance finds it from below, too."""
    shard = table.shards[0]
    files = manifest_files(table, shard)
    latest = table.stores.shard_manifests.latest(shard)
    assert latest is not None
    for version in range(latest.version + 1, 131):
        path = Path(table.uri, layout.shard_manifest_path(shard, version))
        path.write_bytes(layout.encode_stopper(1))
    repair_of(table).apply(PutManifest(manifest=replace(latest, version=131)))
    memwal.open_table(table.uri).checkpoint("one")
    for path in manifest_files(table, shard):
        if path not in files[len(files) - 3 :]:
            path.unlink()
    report = repair(table)
    assert (report.exit_code, report.left, report.lost) == (0, 0, ()), report
    assert report.mended == len(report.items) == len({i.path for i in report.items})
    manifests = table.stores.shard_manifests
    assert sorted(manifests.versions(shard))[:132] == list(range(1, 133))
    assert broken(table) == [] and read(table) == table.truth()
    newest = manifests.latest(shard)
    Path(table.uri, layout.version_hint_path(shard)).write_text('{"version":1}')
    with table.writer(shard):
        pass
    after = manifests.latest(shard)
    assert newest is not None and after is not None and after.version > newest.version > 132
    assert after.writer_epoch > newest.writer_epoch
    assert broken(table) == [] and read(table) == table.truth()


def test_records_and_a_lease_that_cannot_be_read(table: Table) -> None:
    memwal.open_table(table.uri).compaction()
    folder = Path(table.uri, layout.MAINTENANCE)
    files = sorted(folder.rglob("*.json"))
    assert {f.parent.name for f in files} >= {"lease", "runs"}
    for file in files:
        file.write_bytes(b'{"a')
    assert "records" in broken(table)
    left = [item.evidence for item in repair(table, execute=False).items]
    assert "whoever holds the lease may be at work" in str(left)
    for claim in Path(table.uri, layout.LEASE).glob("*.json"):
        if claim.read_bytes() == b'{"a':
            os.utime(claim, (claim.stat().st_mtime - 700,) * 2)
    assert repair(table).exit_code == 0
    assert broken(table) == []
    assert table.stores.leases.acquire("merge").unfenced  # it may have been a refresh's


@pytest.mark.parametrize("name", [layout.checkpoint_path("x.0123abcd"), layout.lease_claim_path(1)])
def test_a_record_of_a_newer_memwal_is_left_alone(table: Table, name: str) -> None:
    path = Path(table.uri, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"format": 2}')
    report = repair(table)
    (item,) = report.items
    assert item.action == "leave" and "newer memwal" in item.evidence
    assert path.read_text() == '{"format": 2}'


def test_a_writer_that_is_open_is_fenced_and_loses_nothing(tmp_path: Path) -> None:
    table = make_damaged_ground(tmp_path / "t")
    shard = table.shards[0]
    writer = put_tail(table, shard)
    manifest_files(table, shard)[0].unlink()
    assert repair(table).exit_code == 0
    with pytest.raises(Exception, match="fenced"):
        apply(table, writer, table.dataset.schema, Put([300], 1), {})
    assert read(table) == table.truth()
    table.flush(shard, Put([301], 2))
    assert table.lsm_rows() == table.truth()


def backed_up(table: Table, folder: Path) -> Table:
    """The table, once a backup of it is in `folder`."""
    memwal.open_table(table.uri).backup(str(folder))
    return table


def repair_from(table: Table, place: Path) -> RepairTableReport:
    return repair(table, from_backup=str(place))


def test_a_backup_has_what_nothing_else_has(table: Table, tmp_path: Path) -> None:
    """Data of the base, and a generation."""
    place, shard = tmp_path / "vault", table.shards[0]
    backed_up(table, place)
    first, second = list(Path(table.uri, "data").iterdir())[:2]
    first.unlink()
    tear(second, 30)
    torn = second.read_bytes()
    shutil.rmtree(folder_of(table, shard, 2) / "data")
    assert repair(table.copied(tmp_path / "without")).exit_code == 8
    report = repair_from(table, place)
    check_whole(table, report)
    kept = Path(table.uri, str(report.quarantine), "data", second.name)
    assert kept.read_bytes() == torn
    assert any("has it" in item.evidence for item in report.items)


def test_a_version_that_a_backup_brings_back_is_not_lost(table: Table, tmp_path: Path) -> None:
    """A checkpoint names it, so it is fetched; then the hint, which is not mended, is right."""
    memwal.open_table(table.uri).checkpoint("one")
    backed_up(table, tmp_path / "vault")
    newest = table.dataset.version
    Path(table.uri, layout.VERSIONS, layout.table_manifest_names(newest)[0]).unlink()
    lost = f"what was committed after version {newest - 1}"
    assert lost in repair(table.copied(tmp_path / "without")).lost
    report = repair_from(table, tmp_path / "vault")
    assert (report.exit_code, report.left, report.lost) == (0, 0, ()), report
    assert {i.done for i in report.items} == {True}
    assert table.dataset.version == newest
    assert broken(table) == [] and read(table) == table.truth()


def test_a_base_file_that_is_garbled_at_its_length(table: Table, tmp_path: Path) -> None:
    backed_up(table, tmp_path / "vault")
    file = max(Path(table.uri, "data").iterdir(), key=lambda path: path.stat().st_size)
    sound = file.read_bytes()
    garbled = bytes(255 - byte for byte in sound[:64]) + sound[64:]
    file.write_bytes(garbled)
    assert repair(table, execute=False).items == ()  # only a reading finds it
    report = repair_from(table, tmp_path / "vault")
    assert (report.exit_code, report.left, report.lost) == (0, 0, ()), report
    assert [(item.kind, item.done) for item in report.items] == [("file", True)]
    assert file.read_bytes() == sound and read(table) == table.truth()
    assert Path(table.uri, str(report.quarantine), "data", file.name).read_bytes() == garbled
    again = repair_from(table, tmp_path / "vault")
    assert (again.exit_code, again.items) == (0, ())


def test_a_version_of_a_copy_that_diverged_is_not_taken(tmp_path: Path) -> None:
    """Each has another one of that number, and of those beside it."""
    table = make_damaged_ground(tmp_path / "t")
    copy, first = table.copied(tmp_path / "copy"), table.dataset.version
    for number, one in enumerate((table, copy)):
        for _ in range(3):
            one.flush(table.shards[0], Put([300 + number], 1))
            one.merge_all()
    name = layout.table_manifest_names(first + 2)[0]
    memwal.open_table(copy.uri).checkpoint("one")
    copy.at(first + 2).tags.create("kept", first + 2)
    backed_up(copy, tmp_path / "vault")
    for version in (first + 1, first + 2, first + 3):
        path = layout.table_manifest_names(version)[0]
        shutil.copy(Path(copy.uri, layout.VERSIONS, path), tmp_path / "vault" / layout.VERSIONS)
    mine = Path(table.uri, layout.VERSIONS, name)
    tear(mine, 40)
    torn = mine.read_bytes()
    report = repair_from(table, tmp_path / "vault")
    assert (report.exit_code, report.mended) == (8, 0), report
    assert mine.read_bytes() == torn


def test_what_a_copy_wrote_last_is_not_taken(tmp_path: Path) -> None:
    """They part just at the end: nothing follows that would differ."""
    table = make_damaged_ground(tmp_path / "t")
    shard, copy = table.shards[0], table.copied(tmp_path / "copy")
    table.flush(shard, Put([210], 1))
    copy.flush(shard, Put([777], 2))
    for one in (table, copy):
        one.merge_all()
    name = layout.table_manifest_names(table.dataset.version)[0]
    mine, other = (Path(one.uri, layout.VERSIONS, name) for one in (table, copy))
    backed_up(copy, tmp_path / "vault")
    tear(mine, 40)
    torn = mine.read_bytes()
    report = repair_from(table, tmp_path / "vault")
    assert report.exit_code == 8 and mine.read_bytes() == torn != other.read_bytes()


def test_a_merged_generation_that_a_checkpoint_needs_comes_back(
    table: Table, tmp_path: Path
) -> None:
    """The table has its rows: a backup has it for the checkpoint."""
    opened = memwal.open_table(table.uri)
    opened.checkpoint("one")
    then = table.keyed(opened.read(checkpoint="one").read_all())
    folder = folder_of(table, table.shards[0], 2)
    table.merge_all()
    backed_up(table, tmp_path / "vault")
    shutil.rmtree(folder)
    report = repair_from(table, tmp_path / "vault")
    assert (report.exit_code, report.left, report.lost) == (0, 0, ()), report
    assert table.keyed(opened.read(checkpoint="one").read_all()) == then


def test_what_is_damaged_in_the_backup_is_not_taken(table: Table, tmp_path: Path) -> None:
    place = tmp_path / "vault"
    backed_up(table, place)
    file = next(Path(table.uri, "data").iterdir())
    file.unlink()
    copy = Path(place, "data", file.name)
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    report = repair_from(table, place)
    assert report.exit_code == 8 and report.left == 1
    assert "(MW-A07)" in str(report.items[0].error)
    assert not file.exists()


def test_a_place_of_backups_is_not_repaired(table: Table, tmp_path: Path) -> None:
    place = tmp_path / "vault"
    backed_up(table, place)
    Path(place, layout.TABLE_HINT).write_text("x")
    report = run(replace(table, uri=str(place)))
    assert report.exit_code == 5 and "(MW-A10)" in str(report.error)


def test_no_shard_is_claimed_unasked(table: Table) -> None:
    manifest_files(table, table.shards[0])[0].unlink()
    before = snap(table)
    asked: list[Sequence[object]] = []

    def refuse(name: str, damages: Sequence[object]) -> bool:
        asked.append(damages)
        return False

    report = run(table, confirm=refuse)
    assert report.exit_code == 5 and "(MW-R01)" in str(report.error)
    assert len(asked) == 1
    after = snap(table)
    assert {name: after.get(name) for name in before} == before


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["repair", *words])


def test_the_command(table: Table) -> None:
    tear(manifest_files(table, table.shards[0])[0], 9)
    listed = command(table.uri)
    assert listed.exit_code == 8
    assert "how: from manifest version" in listed.stdout
    assert "fences the shard's writer" in listed.stdout
    off_terminal = command(table.uri, "--execute")
    assert off_terminal.exit_code == 2 and "pass --yes" in off_terminal.output
    done = command(table.uri, "--execute", "--yes", "--json")
    (report,) = json.loads(done.stdout)["tables"]
    assert (done.exit_code, report["mended"], report["left"]) == (0, 1, 0)
    assert [item["done"] for item in report["items"]] == [True]


@pytest.mark.nightly
def test_a_place_of_backups_by_its_name(table: Table, tmp_path: Path) -> None:
    place, config = tmp_path / "vault", tmp_path / "memwal.toml"
    backed_up(table, place)
    config.write_text(f'[tables.t]\nuri = "{table.uri}"\n[tables.vault]\nuri = "{place}"\n')
    file = next(Path(table.uri, "data").iterdir())
    file.unlink()
    words = ("--execute", "--yes", "--from", "vault", "--config", str(config), "--json")
    reports = {r["table"]: r for r in json.loads(command("--all", *words).stdout)["tables"]}
    assert (reports["t"]["mended"], reports["t"]["left"]) == (1, 0)
    assert file.exists()
    assert "is the table itself" in reports["vault"]["error"]
    unknown = command(table.uri, "--from", "volt", "--config", str(config))
    assert unknown.exit_code == 2 and "volt" in unknown.output


# ---- stopped, and raced


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Killed(BaseException):
    """Ends a run as a kill does: nothing catches it."""


@pytest.mark.parametrize(
    "name",
    ["manifest cut", pytest.param("three manifests gone", marks=pytest.mark.nightly)],
)
def test_stopped_at_every_step(ground: Table, tmp_path: Path, name: str) -> None:
    damage = WHOLE[name]
    whole = ground.copied(tmp_path / "whole")
    damage(whole, whole.shards[0])
    taken: list[str] = []

    def mend(table: Table, steps: Steps) -> None:
        repair(table, steps=steps)

    mend(whole, taken.append)
    assert taken
    for stop in range(len(taken))[:: many(1, 5)]:
        table = ground.copied(tmp_path / f"stopped at {stop}")
        damage(table, table.shards[0])
        left = iter(range(stop, -1, -1))

        def kill(step: str, left: object = left) -> None:
            if next(left) == 0:  # type: ignore[call-overload]
                raise Killed

        with pytest.raises(Killed):
            mend(table, kill)
        mend(table, no_steps)
        assert broken(table) == [], taken[stop]
        assert read(table) == table.truth(), taken[stop]


def repair_of(table: Table) -> StoredRepair:
    return StoredRepair(
        stores=table.stores, progress=Quiet(), run_id="a" * 32, refresh=lambda: None
    )


def test_what_changed_since_it_was_judged_is_left(table: Table) -> None:
    path = layout.TABLE_HINT
    before = Path(table.uri, path).read_bytes()
    with pytest.raises(LostRace, match="was written meanwhile"):
        repair_of(table).quarantine(path, digest_of(b"other"))
    with pytest.raises(LostRace, match="is gone meanwhile"):
        repair_of(table).quarantine("data/nothing", digest_of(b""))
    repair_of(table).quarantine(path, digest_of(before))
    repair_of(table).quarantine(path, digest_of(before))
    kept = Path(table.uri, layout.quarantine_path("a" * 32, path))
    assert kept.read_bytes() == before


def test_a_manifest_that_somebody_else_wrote_first(table: Table) -> None:
    newest = table.stores.shard_manifests.latest(table.shards[0])
    assert newest is not None
    repair_of(table).apply(PutManifest(manifest=newest))  # our own, whose reply was lost
    other = ShardManifest(
        shard_id=newest.shard_id, version=newest.version, writer_epoch=9, current_generation=9
    )
    with pytest.raises(LostRace, match="was written by someone else"):
        repair_of(table).apply(PutManifest(manifest=other))


def test_what_was_not_looked_for_is_not_done(ground: Table) -> None:
    """A check that would report a damage could not be made again, so nobody knows."""
    run = TableRepair(
        uri=ground.uri,
        store=repair_of(ground),
        take_lease=lambda: None,
        before_commit=lambda: None,
        confirm=lambda damages: True,
        first=[
            Damage(
                kind="other",
                path="x",
                finding="broken",
                evidence="y",
                lost=("rows",),
                checks=("hints",),
            )
        ],
    )
    for checks, done in (
        ([make_check("hints", ok=True)], True),
        ([make_check("hints", ok=None)], True),
        ([make_check("WAL", ok=None, error=StoreUnavailable("away"))], False),
        ([make_check("hints", ok=None, error=StoreUnavailable("away"))], False),
    ):
        run.checks = checks
        report = report_repair("t", run, (1, 1), "a" * 32, acted=True)
        assert (report.items[0].done, report.mended, report.left) == (done, done, not done)
        assert report.lost == (() if done else ("rows",)), "what came back is not lost"
        assert bool(report.warnings) is (checks[0].ok is None)


def make_check(name: str, *, ok: bool | None, error: MemWalError | None = None) -> Check:
    return Check(invariant=None, name=name, ok=ok, detail="", error=error)
