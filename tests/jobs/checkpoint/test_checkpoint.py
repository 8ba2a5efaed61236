"""Checkpoints of real tables: what they keep, how they end, and whose tags stay."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.config import ResolvedTable, Settings
from memwal.errors import Corruption, Refused, Usage
from memwal.format import layout
from memwal.jobs.checkpoint.job import CreateOptions, make_request, run_create, run_list
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.ports import Steps, no_steps
from memwal.read import open_table
from memwal.read.spark import MemWalDataSource
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import Delete, Put, Rows, Table
from tests.support.progress import Quiet
from tests.support.stopping import Stop, Stopper

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    found = runs.collectable(tmp_path_factory.mktemp("made") / "t", shards=2, generations=2)
    found.flush(found.shards[0], Put([100, 500], 1), Delete([150]))
    return found


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """Two shards; the first has a generation that waits, over a row that was merged."""
    return made.copied(tmp_path / "t")


def create(table: Table, name: str = "monday", *, steps: Steps = no_steps, **asked: Any) -> Any:
    options = CreateOptions(
        tables=[ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})],
        request=make_request(name, **{"expires_seconds": None, "holder": "ann", **asked}),
    )
    (report,) = run_create(options, Quiet(), steps).tables
    return report


def read(table: Table, name: str = "monday", **asked: Any) -> Rows:
    return table.keyed(open_table(table.uri).read(checkpoint=name, **asked).read_all())


def names(table: Table) -> list[str]:
    return [c.name for c in memwal.open_table(table.uri).checkpoints().checkpoints]


def tags(table: Table) -> list[str]:
    return sorted(path.stem for path in (Path(table.uri) / "_refs/tags").glob("*"))


def collect(table: Table, **options: Any) -> GarbageTableReport:
    return runs.collect(table, retention=0, **options)[0]


# ---- what a checkpoint is


def test_it_is_the_table_of_its_moment_whatever_happens_since(table: Table) -> None:
    then = table.truth()
    made = create(table).checkpoints[0]
    assert (made.state, made.generations, made.holder) == ("kept", 1, "ann")
    assert made.cut == {table.shards[0]: 3, table.shards[1]: 2}
    assert read(table) == then

    table.flush(table.shards[0], Put([1, 100, 500, 501], 7), Delete([101]))
    table.flush(table.add_shard(), Put([900], 7))
    builders.same_rows(read(table), then, "after flushes")
    for done in table.merge_all():
        assert done.error is None
    runs.catch_up(table)
    builders.same_rows(read(table), then, "after merge and catch-up")
    now = table.truth()

    report = collect(table)
    assert [i.generation for i in _generations(report, "keep", table)] == [3]
    assert "checkpoint 'monday' of ann needs it until it is dropped" in runs.reasons(report)
    assert (runs.listed(table), runs.folders(table)) == ([3], [3])
    builders.same_rows(read(table), then, "after garbage")
    with pytest.raises(Refused, match="neither merged nor listed"):
        open_table(table.uri).read(version=made.version)
    table.dataset.optimize.compact_files()
    collect(table)
    builders.same_rows(read(table), then, "after compaction")
    key = {"k": table.kind.key(100)[0]}
    (row,) = open_table(table.uri).read(checkpoint="monday", key=key).read_all().to_pylist()
    assert row["n"] == 1

    memwal.open_table(table.uri).drop_checkpoint("monday")
    runs.catch_up(table)
    collect(table)
    assert (names(table), tags(table), runs.folders(table)) == ([], [], [])
    builders.same_rows(table.base_rows(), now, "at the end")


def _generations(report: GarbageTableReport, action: str, table: Table) -> list[Any]:
    listed = runs.manifest(table).flushed_generations
    paths = {f"{layout.shard_folder(table.shards[0])}/{g.path}": g for g in listed}
    return [paths[i.path] for i in report.items if i.action == action and i.path in paths]


def test_spark_reads_it(table: Table) -> None:
    create(table)
    table.flush(table.shards[0], Put([1, 100], 7))
    source = MemWalDataSource({"path": table.uri, "columns": "k,n", "checkpoint": "monday"})
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    wanted = table.keyed(
        open_table(table.uri).read(columns=["k", "n"], checkpoint="monday").read_all()
    )
    assert table.keyed(pa.Table.from_batches(batches)) == wanted
    assert len(wanted) == len(read(table))


def test_it_is_shown(table: Table) -> None:
    create(table, expires_seconds=3600.0)
    (kept,) = memwal.open_table(table.uri).status().checkpoints
    assert (kept.name, kept.state, kept.version) == ("monday", "kept", table.dataset.version)
    (item,) = [i for i in runs.garbage(table, execute=False).items if i.kind == "checkpoint"]
    assert item.action == "keep"
    assert f"kept until {kept.expires_at} for ann" in item.reason


def test_a_dry_run_keeps_nothing(table: Table) -> None:
    report = memwal.open_table(table.uri).checkpoint("monday", dry_run=True)
    assert (report.checkpoints[0].generations, report.checkpoints[0].state) == (1, "planned")
    assert (names(table), tags(table)) == ([], [])


def test_rows_that_are_missing_are_not_kept(table: Table) -> None:
    table.flush(table.shards[0], Put([1], 7))
    builders.unlist_generation(table, table.shards[0], 3)
    report = create(table)
    assert report.outcome == "refused"
    assert "no checkpoint of rows that are missing" in report.error
    assert names(table) == []


def test_it_needs_the_lease(table: Table) -> None:
    with pytest.raises(Refused, match="without lease=False"):
        memwal.open_table(table.uri, lease=False).checkpoint("monday")
    table.stores.leases.acquire("merge")
    assert create(table).outcome == "held"
    assert names(table) == []


# ---- how it ends


def test_it_expires_and_is_collected_and_no_tag_of_others_is_touched(table: Table) -> None:
    create(table, expires_seconds=0.05)
    create(table, "for-good")
    table.dataset.tags.create("monday", table.dataset.version)
    table.dataset.tags.create("memwal", table.dataset.version)
    time.sleep(0.1)
    with pytest.raises(Refused, match="expired"):
        read(table)
    dry = runs.garbage(table, execute=False)
    (item,) = [i for i in dry.items if i.kind == "checkpoint" and i.action == "delete"]
    assert "expired" in item.reason
    assert len(tags(table)) == 4
    done = runs.garbage(table)
    assert [i.path for i in done.items if i.done and i.kind == "checkpoint"] == [item.path]
    assert names(table) == ["for-good"]
    assert [t for t in tags(table) if "for-good" not in t] == ["memwal", "monday"]
    assert read(table, "for-good") == table.truth()


def test_a_name_is_free_again_once_it_has_ended(table: Table) -> None:
    create(table, expires_seconds=0.05)
    time.sleep(0.1)
    table.flush(table.shards[0], Put([1], 7))
    assert create(table).outcome == "done"
    taken = create(table)
    assert (taken.outcome, "choose another name" in taken.error) == ("refused", True)
    assert read(table) == table.truth()
    dropped = memwal.open_table(table.uri).drop_checkpoint("monday")
    assert {c.state for c in dropped.checkpoints} == {"dropped"}
    assert (names(table), tags(table)) == ([], [])
    with pytest.raises(Usage, match="there is no checkpoint 'monday'; the table has none"):
        memwal.open_table(table.uri).drop_checkpoint("monday")


def test_a_tag_is_no_checkpoint(table: Table) -> None:
    table.dataset.tags.create("monday", table.dataset.version)
    with pytest.raises(Usage, match="there is no checkpoint"):
        memwal.open_table(table.uri).drop_checkpoint("monday")
    with pytest.raises(Usage, match="there is no checkpoint"):
        read(table)
    assert create(table).outcome == "done"
    memwal.open_table(table.uri).drop_checkpoint("monday")
    assert tags(table) == ["monday"]


STEPS = ("record", "tag", "tagged", "ready", "made")


@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_the_next_one_of_its_name_is_made(table: Table, step: str) -> None:
    with pytest.raises(Stop):
        create(table, steps=Stopper(STEPS.index(step) + 1))
    if step in ("tag", "tagged", "ready"):
        with pytest.raises(Refused, match="was never finished"):
            read(table)
    again = create(table)
    assert again.outcome == ("refused" if step == "made" else "done")
    assert (names(table), len(tags(table))) == (["monday"], 1)
    assert read(table) == table.truth()


def test_one_that_was_never_finished_is_kept_for_a_day(table: Table) -> None:
    with pytest.raises(Stop):
        create(table, steps=Stopper(STEPS.index("ready") + 1))
    collect(table)
    assert (len(names(table)), len(tags(table))) == (1, 1)
    report = runs.garbage(table, leftover_age_seconds=0)
    assert any("never finished" in reason for reason in runs.reasons(report))
    assert (names(table), tags(table)) == ([], [])


# ---- what others do


def _merged(table: Table) -> None:
    """With all generations merged and indexed, and a version after the checkpoint's."""
    for done in table.merge_all():
        assert done.error is None
    runs.catch_up(table)


def test_wal_entries_go_that_nothing_but_its_version_needs(table: Table) -> None:
    create(table)
    late = table.add_shard()
    table.flush(late, *(Put([900 + number], 7) for number in range(6)))
    _merged(table)
    items = [i for report in runs.collect(table, retention=0, wal=True) for i in report.items]
    gone = [i for i in items if i.kind == "wal_entry" and i.shard_id == late and i.done]
    assert len(gone) >= 4


def test_a_tag_of_a_users_on_its_version_holds_what_that_needs(table: Table) -> None:
    made = create(table).checkpoints[0]
    table.dataset.tags.create("mine", made.version)
    table.flush(table.shards[0], Put([1], 7))
    now = table.truth()
    _merged(table)
    collect(table)
    assert runs.listed(table) == [3, 4]
    then = open_table(table.uri).read(version=made.version, merged_only=False)
    assert table.keyed(then.read_all()) == now


def test_a_reference_that_cant_be_read_may_be_to_its_version(table: Table) -> None:
    made = create(table).checkpoints[0]
    evidence = runs.evidence_of(table)
    assert evidence.claimed_versions() == frozenset()
    assert evidence.referenced_versions() == {made.version}
    (Path(table.uri) / "_refs/tags/odd.json").write_text("{}")
    assert evidence.claimed_versions() is None


def test_a_tag_that_somebody_deleted_expires_nothing(table: Table) -> None:
    made = create(table).checkpoints[0]
    then = table.truth()
    table.dataset.tags.delete(made.tag)
    _merged(table)
    report = runs.garbage(table, retention=0)
    assert any("somebody deleted the tag of checkpoint 'monday'" in w for w in report.warnings)
    assert made.version in table.versions()
    assert memwal.open_table(table.uri).checkpoints().checkpoints[0].state == "untagged"
    assert read(table) == then
    runs.expire(table)
    with pytest.raises(Refused, match="deleted its tag"):
        read(table)


def test_a_generation_that_somebody_deleted_is_missed(table: Table) -> None:
    create(table)
    _merged(table)
    (folder,) = (Path(table.uri) / "_mem_wal").glob("*/*_gen_3")
    shutil.rmtree(folder)
    with pytest.raises(Corruption, match="whoever deleted it was not memwal"):
        read(table)


def test_an_overwritten_table_keeps_and_drops_it(table: Table) -> None:
    create(table)
    then = table.truth()
    lance.write_dataset(pa.table({"k": [1]}), table.uri, mode="overwrite")
    assert read(table) == then
    runs.garbage(table, adopt_orphans=True)
    assert read(table) == then
    memwal.open_table(table.uri).drop_checkpoint("monday")
    assert (names(table), tags(table)) == ([], [])


def test_a_version_of_another_table_is_not_taken_for_its_own(table: Table) -> None:
    create(table)
    record = _record(table)
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "version_at_nanos": 1}))
    with pytest.raises(Corruption, match="not the one that checkpoint 'monday' was made of"):
        read(table)


def _record(table: Table) -> Path:
    (record,) = (Path(table.uri) / layout.CHECKPOINTS).iterdir()
    return record


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"version": "6"},
        {"key": "monday.00000000"},
        {"expires_at_nanos": -1},
    ],
)
def test_a_record_that_cant_be_read_holds_everything(table: Table, change: Any) -> None:
    create(table)
    record = _record(table)
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    _merged(table)
    (report,) = runs.run(table, retention=0).tables
    assert (report.exit_code, "can't be read as a checkpoint" in (report.error or "")) == (8, True)
    assert runs.listed(table) == [1, 2, 3]
    assert "can't be read as a checkpoint" in memwal.open_table(table.uri).status().warnings[-1]


@pytest.mark.parametrize("forged", ["path", "shard"])
def test_a_record_that_leads_elsewhere_is_refused(table: Table, forged: str) -> None:
    create(table)
    record = _record(table)
    (path,) = [g.path for g in runs.manifest(table).flushed_generations if g.generation == 3]
    before, after = {"path": (path, "../x_gen_3"), "shard": (table.shards[0], "../x")}[forged]
    record.write_text(record.read_text().replace(before, after))
    with pytest.raises(Corruption, match="can't be read as a checkpoint"):
        read(table)


def test_what_a_newer_build_adds_is_passed_over(table: Table) -> None:
    create(table)
    record = _record(table)
    record.write_text(json.dumps({**json.loads(record.read_text()), "colour": "red"}))
    assert read(table) == table.truth()


# ---- an older version


def test_an_older_version_is_read_with_what_is_listed_and_warns(table: Table) -> None:
    version, reader = table.dataset.version, open_table(table.uri)
    with pytest.warns(UserWarning, match=rf"version {version} is read with 1 generation listed"):
        assert table.keyed(reader.read(version=version).read_all()) == table.truth()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meant = reader.read(version=version, merged_only=False).read_all()
        alone = reader.read(version=version, merged_only=True).read_all()
        latest = reader.read(merged_only=True).read_all()
        reader.read().read_all()
    assert table.keyed(meant) == table.truth()
    builders.same_rows(table.keyed(alone), table.base_rows(), "merged only")
    assert latest.num_rows == alone.num_rows


@pytest.mark.parametrize(
    "asked",
    [
        {"checkpoint": "monday", "version": 3},
        {"checkpoint": "monday", "merged_only": True},
        {"checkpoint": "monday", "with_wal": True},
        {"merged_only": True, "with_wal": True},
    ],
)
def test_two_moments_at_a_time_are_refused(table: Table, asked: Any) -> None:
    with pytest.raises(Usage, match=r"a checkpoint is a whole moment|rows of the WAL"):
        open_table(table.uri).read(**asked)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf"), 1e18])
def test_an_expiry_that_no_record_can_have_is_refused(table: Table, seconds: float) -> None:
    with pytest.raises(Usage, match="expires"):
        memwal.open_table(table.uri).checkpoint("monday", expires_seconds=seconds)
    assert memwal.open_table(table.uri).checkpoints().checkpoints == ()


def test_a_drop_says_so_and_a_dry_run_of_one_that_it_is_kept(table: Table) -> None:
    create(table)
    opened = memwal.open_table(table.uri)
    for dry_run, state in ((True, "kept"), (False, "dropped")):
        (found,) = opened.drop_checkpoint("monday", dry_run=dry_run).checkpoints
        assert found.state == state


def test_the_requests_of_a_list_are_counted(table: Table) -> None:
    resolved = ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})
    assert run_list(resolved).requests["list"] >= 1
