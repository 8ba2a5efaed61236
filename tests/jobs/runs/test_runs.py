"""Run records on real tables: who leaves one, who leaves none, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import StoreUnavailable
from memwal.format import layout
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.report import MergeTableReport
from memwal.jobs.snapshot.job import run_snapshot
from memwal.report import RunRecord
from memwal.run.options import RunOptions
from memwal.store.objects.local import LocalObjects
from memwal.store.records.lease import StoredLeases
from memwal.store.records.runs import StoredRunRecords
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.command import read_document, run_here
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration

SHORT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention")


def records(table: Table) -> list[RunRecord]:
    """Newest first."""
    found = table.stores.run_records.newest(4000)
    assert found.unreadable == 0
    return list(found.records)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(
        tmp_path / "t", rows=range(20), shards=2, indexed=True, max_rows_per_file=5
    )
    for shard, first in zip(table.shards, (0, 10), strict=True):
        table.flush(shard, Put([first + 1, first + 30], 1))
        table.flush(shard, Put([first + 31], 1), Delete([first + 2]))
    return table


def options(table: Table, kind: Callable[..., Any] = RunOptions, **more: Any) -> Any:
    settings = more.pop("settings", Settings())
    resolved = ResolvedTable(
        name=table.uri, uri=table.uri, settings=settings, storage_options=table.options
    )
    return kind(tables=[resolved], engine="local", **more)


# ---- who leaves one


def test_every_job_leaves_one_and_says_what_it_did(table: Table) -> None:
    report = read_document("maintain", table.uri, *SHORT)
    assert report["outcome"] == "done"
    jobs = {job["job"]: job for job in report["tables"][0]["jobs"]}
    (jobs["compaction"],) = read_document("compaction", table.uri)["tables"]
    found = records(table)
    assert [r.job for r in reversed(found)] == [
        "merge", "index-catchup", "snapshot", "garbage", "compaction",
    ]  # fmt: skip
    leases = (Path(table.uri) / "_maintenance/lease").glob("0*.json")
    claimed = {json.loads(file.read_text())["holder"] for file in leases}
    assert len(claimed) == 1
    for record in found:
        assert (record.outcome, record.exit_code, record.error) == ("done", 0, None)
        assert record.version_before == jobs[record.job]["version_before"]
        assert record.version_after == jobs[record.job]["version_after"]
        began, ended = map(datetime.fromisoformat, (record.started_at, record.finished_at))
        assert abs((ended - began).total_seconds() - record.seconds) < 0.05
        assert record.requests["get"] > 0
        assert record.holder in claimed, "a run is matched with its lease by this"
    merge, catchup, snapshot, collected, compaction = reversed(found)
    shards = jobs["merge"]["shards"]
    assert merge.engine == "local"
    wanted = {name: sum(s[name] for s in shards) for name in merge.summary}
    wanted["commits"] -= sum(s["commits_shared"] for s in shards)
    assert merge.summary == wanted and merge.summary.keys() == {
        "generations", "commits", "rows_inserted", "rows_updated", "rows_deleted", "bytes_read",
    }  # fmt: skip
    assert merge.summary["generations"] == 4
    assert (merge.backlog.generations_before, merge.backlog.generations_after) == (4, 0)
    assert (merge.backlog.bytes_before or 0) > merge.backlog.bytes_after == 0
    assert catchup.summary == {"indexes": 1, "rows_indexed": 6}
    assert compaction.summary["fragments_after"] == jobs["compaction"]["fragments_after"]
    assert compaction.summary.keys() == {"fragments_before", "fragments_after", "bytes_rewritten"}
    assert snapshot.summary == {"num_shards": 2, "repairs": 0}
    assert collected.summary["dropped"] == jobs["garbage"]["dropped"] > 0
    assert collected.summary.keys() == {"dropped", "deleted", "bytes_freed", "versions_expired"}


def test_what_is_refused_or_failed_is_recorded_with_why(table: Table) -> None:
    shard = table.shards[0]
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    torn = Path(table.uri, layout.shard_manifest_path(shard, manifest.version))
    data = torn.read_bytes()
    torn.write_bytes(data[:-3])
    assert run_here("merge", table.uri).returncode == 6
    torn.write_bytes(data)
    assert run_here("merge", table.uri, "--shard", table.shards[1]).returncode == 0  # nothing to do
    (record,) = records(table)
    assert (record.outcome, record.exit_code) == ("partial", 6)
    assert shard in str(record.error)
    assert record.summary["generations"] == 2


def test_a_run_that_ends_in_an_error_is_recorded_once_it_had_begun(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_engine(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memwal.jobs.merge.job.Fanout.run", no_engine)
    with pytest.raises(KeyboardInterrupt):
        run_merge(options(table, MergeOptions), Quiet())
    (record,) = records(table)
    assert (record.outcome, record.exit_code) == ("failed", 130)
    assert "cancelled" in str(record.error)
    lease = table.stores.leases.current()
    assert lease is not None and lease.released
    monkeypatch.setattr("memwal.jobs.merge.job.choose_shards", no_engine)
    with pytest.raises(KeyboardInterrupt):
        run_merge(options(table, MergeOptions), Quiet())
    assert len(records(table)) == 1


# ---- who leaves none


def test_dry_runs_and_those_that_get_no_lease_leave_none(table: Table) -> None:
    assert (
        run_here("maintain", table.uri, "--dry-run", "--compaction", "always", *SHORT).returncode
        == 0
    )
    assert not (Path(table.uri) / layout.RUNS).exists()
    StoredLeases(table.stores.objects, table.stores.clock, holder="ann@one:1").acquire("merge")
    assert run_here("merge", table.uri).returncode == 4
    assert records(table) == []


def test_idle_passes_leave_none_and_ask_for_nothing_more(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_here("maintain", table.uri, "--execute").returncode == 0
    asked: list[str] = []

    def asking(self: Any, *_: Any, **__: Any) -> None:
        asked.append("asked")

    for name in ("add", "newest", "prune"):
        monkeypatch.setattr(StoredRunRecords, name, asking)
    assert read_document("maintain", table.uri, "--execute")["outcome"] == "nothing_to_do"
    assert asked == []


def test_a_record_that_can_t_be_written_is_a_warning(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalObjects.put_if_absent

    def refusing(self: LocalObjects, path: str, data: bytes) -> None:
        if path.startswith(layout.RUNS):
            raise StoreUnavailable("the disk is full")
        put(self, path, data)

    monkeypatch.setattr(LocalObjects, "put_if_absent", refusing)
    report = run_merge(options(table, MergeOptions), Quiet())
    assert (report.outcome, report.exit_code) == ("done", 0)
    (found,) = report.tables
    assert isinstance(found, MergeTableReport)
    assert found.warnings == ("run records could not be written: the disk is full",)
    builders.check_merged(table)


# ---- bounded, and left alone by everyone else


def fill(table: Table, count: int) -> None:
    store = table.stores.run_records
    run_snapshot(options(table), Quiet())
    (record,) = records(table)
    at = datetime.fromisoformat(record.finished_at)
    for number in range(1, count):
        older = (at - timedelta(minutes=number)).isoformat(timespec="milliseconds")
        changes = {"run_id": f"{number:032x}", "finished_at": older}
        store.add(record.model_copy(update=changes))


def test_writing_prunes_once_it_is_clearly_over_the_bound(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(table, 29)
    kept = options(table, MergeOptions, settings=Settings(runs_kept_max=20))
    run_merge(kept, Quiet())
    assert len(records(table)) == 30  # 20 and a slack of 10
    for key, chance in ((70, 0.99), (71, 0.0)):  # a run looks for old records by chance
        monkeypatch.setattr(SystemClock, "random", lambda self, chance=chance: chance)
        assert len(records(table)) >= 30
        table.flush(table.shards[0], Put([key], 1))
        run_merge(kept, Quiet())
    found = records(table)
    assert len(found) == 20
    assert [r.job for r in found[:3]] == ["merge", "merge", "merge"]


# ---- the command


def test_runs_shows_them_newest_first(table: Table) -> None:
    run_here("maintain", table.uri)
    shown = run_here("runs", table.uri)
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    jobs = [line.split()[2] for line in lines[2:5]]
    assert jobs == ["snapshot", "index-catchup", "merge"]
    assert "4 -> 0" in lines[4]
    assert "generations 4" in lines[4]
    report = read_document("runs", table.uri, "--limit", "2")
    assert (report["job"], report["outcome"]) == ("runs", "done")
    assert (report["requests"]["list"], report["requests"]["get"]) == (1, 2)
    (found,) = report["tables"]
    assert found["unreadable"] == 0
    assert [r["job"] for r in found["runs"]] == ["snapshot", "index-catchup"]
    assert RunRecord.model_validate(found["runs"][0]) == records(table)[0]
    assert found["runs"][0].keys() == {
        "format", "run_id", "airflow", "job", "started_at", "finished_at", "seconds", "outcome",
        "exit_code", "error", "engine", "holder", "version_before", "version_after", "summary",
        "backlog", "stuck", "requests", "audit",
    }  # fmt: skip


def test_runs_of_a_table_on_which_nothing_ran_and_of_none(table: Table, tmp_path: Path) -> None:
    quiet = run_here("runs", table.uri, str(tmp_path / "nothing"))
    assert (quiet.returncode, "no runs recorded" in quiet.stdout) == (6, True)


def test_a_bad_document_is_counted_and_can_t_write_to_the_terminal(table: Table) -> None:
    run_here("merge", table.uri)
    (record,) = records(table)
    objects = table.stores.objects
    objects.put(layout.run_record_path(1, "0" * 32), b"\x1b[2Jtorn")
    spoilt = record.model_copy(
        update={"run_id": "1" * 32, "outcome": "failed", "error": "\x1b[2J\x07gone\naway"}
    )
    table.stores.run_records.add(spoilt)
    shown = run_here("runs", table.uri)
    assert shown.returncode == 0
    assert "1 run records can't be read" in shown.stdout
    assert r"\x1b[2J\x07gone\naway" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\x07" not in shown.stdout
