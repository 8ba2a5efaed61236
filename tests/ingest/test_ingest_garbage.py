"""Rows that ingests staged and left behind: garbage on real tables, and what a rerun does then."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest

import memwal.ingest.track
from memwal.clock import SystemClock
from memwal.ingest.plan import make_id
from memwal.ingest.request import IngestRequest
from memwal.ingest.track import Track, TrackLimits
from memwal.jobs.garbage.model import Item
from memwal.store.records.ingests import PlanRecord, Round
from tests.support import garbage_runs as runs
from tests.support.ingest_tables import MemWalTable, make, wal_rows
from tests.support.staged_ingests import (
    SPEC,
    ingest,
    source_of,
    staged,
    staged_files,
    told,
    wanted,
)
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration

HOUR, DAY = 3600, 86_400
INGESTS = "_maintenance/ingest"


def table_in(folder: Path) -> tuple[MemWalTable, str]:
    return make(folder / "t", **SPEC), source_of(folder)


def garbage(table: MemWalTable, *, execute: bool = True) -> list[Item]:
    """What `memwal garbage` says of ingests; its grace is an hour here, as it is by default."""
    report = runs.garbage(table, execute=execute, grace=HOUR)
    assert report.error is None
    found = [item for item in report.items if item.kind == "ingest"]
    assert all(item.done == (execute and item.action == "delete") for item in found)
    return found


def stopped_half_way(table: MemWalTable, source: str, monkeypatch) -> IngestRequest:
    """Rows are staged, some of them are written, and the run dies."""
    request = staged(table, source, monkeypatch)
    limits = TrackLimits(progress_seconds=0.0)
    dying = partial(Track, steps=Stopper(12), limits=limits)
    with monkeypatch.context() as patch:
        patch.setattr(memwal.ingest.track, "Track", dying)
        assert ingest(table, source)["exit_code"] != 0
    written = sum(len(rows) for rows in wal_rows(table).values())
    assert 0 < written < 200
    return request


def test_rows_of_a_run_that_died_before_its_plan_was_stored(tmp_path, monkeypatch) -> None:
    table, source = table_in(tmp_path)
    staged(table, source, monkeypatch, planned=False)
    size = sum(runs.files(table, INGESTS).values())
    runs.age(table, 13 * DAY, INGESTS)
    [held] = garbage(table)
    assert held.action == "keep" and "may be staged by a run that goes on" in held.reason

    runs.age(table, 2 * DAY, INGESTS)
    [listed] = garbage(table, execute=False)
    assert (listed.action, listed.bytes) == ("delete", size)
    assert listed.path.endswith("/staged/test-run")
    assert "stored no plan; untouched for 15.0 days" in listed.reason
    assert staged_files(table)
    [gone] = garbage(table)
    assert gone.done and runs.files(table, INGESTS) == {}
    assert garbage(table) == []

    done = ingest(table, source)
    assert (done["exit_code"], done["rows_written"]) == (0, 200)
    assert told(wal_rows(table)) == wanted()


def test_rows_of_a_forerunner_go_when_another_run_has_stored_the_plan(
    tmp_path, monkeypatch
) -> None:
    table, source = table_in(tmp_path)
    staged(table, source, monkeypatch, run_id="dead", planned=False)
    runs.age(table, 2 * HOUR, INGESTS)
    staged(table, source, monkeypatch)
    of = {item.path.rpartition("/")[2]: item for item in garbage(table)}
    assert (of["dead"].action, of["test-run"].action) == ("delete", "keep")
    assert all("/staged/test-run/" in path for path in staged_files(table))
    assert ingest(table, source)["exit_code"] == 0
    assert told(wal_rows(table)) == wanted()


def test_an_ingest_that_may_be_resumed_is_kept_and_is_finished(
    tmp_path, monkeypatch, stalled
) -> None:
    table, source = table_in(tmp_path)
    stopped_half_way(table, source, monkeypatch)
    runs.age(table, 13 * DAY, INGESTS)
    before = runs.files(table, INGESTS)
    [held] = garbage(table)
    assert held.action == "keep"
    assert "needed to finish its ingest, by the same command" in held.reason
    assert runs.files(table, INGESTS) == before
    done = ingest(table, source)
    assert (done["exit_code"], done["rows"], done["resumed"]) == (0, 200, True)
    assert told(wal_rows(table)) == wanted()


def test_an_ingest_that_was_given_up_is_not_written_twice(tmp_path, monkeypatch, stalled) -> None:
    table, source = table_in(tmp_path)
    request = stopped_half_way(table, source, monkeypatch)
    written = wal_rows(table)
    runs.age(table, 15 * DAY, INGESTS)
    [gone] = garbage(table)
    assert gone.done and "nobody resumed it for 15.0 days" in gone.reason
    assert staged_files(table) == []
    stored = Round(table.stores.objects, make_id(request), 1, "")
    assert isinstance(stored.read_plan(), PlanRecord)

    for again in ((), ("--again",)):
        refused = ingest(table, source, *again)
        assert refused["exit_code"] == 5
        assert "can't be finished" in refused["error"] and "for 14 days" in refused["error"]
    assert wal_rows(table) == written
    assert garbage(table) == []
    # Under another id it is another ingest: every row again, over those that are there.
    assert ingest(table, source, "--id", "once-more")["exit_code"] == 0
    last = {key: values[-1] for key, values in wanted().items()}
    assert {key: row[0] for key, row in table.read().items()} == {
        key: n for key, n in last.items() if n != "gone"
    }


def test_what_a_finished_ingest_left_goes_and_a_rerun_has_nothing_to_do(
    tmp_path, monkeypatch
) -> None:
    table, source = table_in(tmp_path)
    request = staged(table, source, monkeypatch)
    rows = {path: table.stores.objects.get(path) for path in staged_files(table)}
    assert ingest(table, source)["exit_code"] == 0
    # As if it had died before it removed them.
    for path, data in rows.items():
        table.stores.objects.put(path, data)
    [young] = garbage(table)
    assert young.action == "keep" and "younger than the grace" in young.reason
    runs.age(table, 2 * HOUR, INGESTS)
    [gone] = garbage(table)
    assert gone.done and "its ingest is finished" in gone.reason
    assert staged_files(table) == []
    assert Round(table.stores.objects, make_id(request), 1, "").read_plan() is not None
    assert ingest(table, source)["outcome"] == "nothing_to_do"
    assert told(wal_rows(table)) == wanted()


def test_a_round_that_was_followed_goes_whole(tmp_path, monkeypatch) -> None:
    table, source = table_in(tmp_path)
    assert ingest(table, source)["exit_code"] == 0
    first = {path: table.stores.objects.get(path) for path in runs.files(table, INGESTS)}
    assert ingest(table, source, "--again")["exit_code"] == 0
    latest = runs.files(table, INGESTS)
    assert latest and latest.keys().isdisjoint(first)
    # As if the second round had begun and died before it removed the first.
    for path, data in first.items():
        table.stores.objects.put(path, data)
    runs.age(table, 2 * HOUR, INGESTS)
    [gone] = garbage(table)
    assert gone.done and gone.path.endswith("/000001")
    assert runs.files(table, INGESTS) == latest
    assert ingest(table, source)["outcome"] == "nothing_to_do"


def test_a_host_whose_clock_is_fast_gives_nothing_up(tmp_path, monkeypatch) -> None:
    """The idle time goes by the store's clock, as the grace does."""
    table, source = table_in(tmp_path)
    staged(table, source, monkeypatch)
    ahead = 15 * DAY * 10**9
    monkeypatch.setattr(SystemClock, "now_nanos", lambda clock: time.time_ns() + ahead)
    assert [item.action for item in garbage(table, execute=False)] == ["delete"]
    assert [item.action for item in garbage(table)] == ["keep"]
    assert staged_files(table)


@pytest.mark.nightly
def test_on_s3(make_s3_uri, s3_server, tmp_path, monkeypatch) -> None:
    options = s3_server.storage_options
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", json.dumps(options))
    table, source = make(make_s3_uri(), options, **SPEC), source_of(tmp_path)
    staged(table, source, monkeypatch)
    [held] = garbage(table)
    assert held.action == "keep" and "needed to finish its ingest" in held.reason
    assert ingest(table, source)["exit_code"] == 0
    staged(table, source, monkeypatch, run_id="late", planned=False)
    report = runs.garbage(table, grace=0, ingest_idle_seconds=0)
    assert [(i.kind, i.done) for i in report.items if i.kind == "ingest"] == [("ingest", True)]
    assert staged_files(table) == []
    assert told(wal_rows(table)) == wanted()
