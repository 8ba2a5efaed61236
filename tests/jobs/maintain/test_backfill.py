"""`memwal backfill`: each table has a chain of its own, some side by side; again after a kill."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memwal.cli import main
from memwal.config import ResolvedTable, Settings
from memwal.jobs.maintain import job as chains
from memwal.jobs.maintain.job import BackfillOptions, run_backfill
from memwal.jobs.maintain.request import BackfillRequest
from memwal.jobs.merge.store import LanceFold
from memwal.model import ShardStatus
from memwal.report import JobReport, TableReport
from memwal.run.options import RunOptions
from memwal.run.progress import Silent
from memwal.run.reports import job_report
from memwal.run.workers import cancel
from memwal.store.records.lease import StoredLeases
from memwal.testing import ManualClock
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.command import run_here
from tests.support.nursery import Started, start

WAIT_SECONDS = 120

# ---- jobs that do nothing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(chains, "SystemClock", lambda: clock)
    return clock


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Callable[..., JobReport]:
    """Runs a backfill of tables with a letter each, some of them more important."""

    def run(
        names: str,
        work: Callable[[str, str], object],
        priorities: str = "",
        **request: Any,
    ) -> JobReport:
        def stand_in(job: str) -> Callable[[RunOptions, object], JobReport]:
            def run_job(options: RunOptions, progress: object) -> JobReport:
                (table,) = options.tables
                work(job, table.name)
                return job_report(job, [TableReport(table=table.name, outcome="done")])

            return run_job

        for job in ("merge", "index_catchup"):
            monkeypatch.setattr(chains, f"run_{job}", stand_in(job.replace("_", "-")))
        tables = [
            ResolvedTable(
                name=name,
                uri=f"/{name}",
                settings=Settings(priority=int(priority)),
                storage_options={},
            )
            for name, priority in zip(names, priorities or "5" * len(names), strict=True)
        ]
        asked = BackfillRequest(**request)
        return run_backfill(BackfillOptions(tables=tables, request=asked), Silent())

    return run


def outcomes(report: JobReport) -> list[list[str]]:
    """Those of each table's jobs."""
    return [[job.report.outcome for job in table.jobs] for table in report.tables]  # type: ignore[attr-defined]


def test_important_tables_are_first(run: Callable[..., JobReport]) -> None:
    begun: list[str] = []
    report = run("abc", lambda job, table: begun.append(table), "494", concurrency=1)
    assert "".join(begun) == "bbaacc"
    assert [table.table for table in report.tables] == ["a", "b", "c"]


def test_a_deadline_between_two_jobs_of_a_table(
    run: Callable[..., JobReport], clock: ManualClock
) -> None:
    """The first table's merge is finished, its indexes have to wait, and so have the others."""
    report = run("ab", lambda job, table: clock.advance(2), concurrency=1, deadline_seconds=2)
    assert (report.job, report.outcome, report.exit_code) == ("backfill", "partial", 6)
    assert outcomes(report) == [["done", "partial"], ["partial", "partial"]]
    assert "merge: not begun: 2 s have passed; run again to go on" in str(report.tables[1].error)


def test_no_more_tables_at_once_than_asked_for(run: Callable[..., JobReport]) -> None:
    """Two are always at work together, never three: each waits until a second one has come."""
    inside = most = 0
    changed = threading.Condition()

    def work(job: str, table: str) -> None:
        nonlocal inside, most
        with changed:
            inside += 1
            most = max(most, inside)
            changed.notify_all()
            assert changed.wait_for(lambda: most >= 2, timeout=60)
        with changed:
            inside -= 1

    assert run("abcd", work, concurrency=2).outcome == "done"
    assert most == 2


def test_an_error_nobody_expected_stays_with_its_table(run: Callable[..., JobReport]) -> None:
    class PanicError(BaseException):
        """As pyo3's, which is no Exception."""

    def work(job: str, table: str) -> None:
        if (job, table) == ("merge", "b"):
            raise PanicError("index out of bounds")

    report = run("abc", work, jobs=["merge"])
    assert (report.outcome, report.exit_code) == ("partial", 6)
    assert report.tables[1].error == "merge: unexpected PanicError: index out of bounds"
    assert outcomes(report) == [["done"], ["failed"], ["done"]]


# ---- real tables


def make(folder: Path, name: str, generations: int, *, shards: int = 1) -> Table:
    """A table with an index, and so many generations in each shard."""
    table = builders.make_table(folder / name, rows=range(20), shards=shards, indexed=True)
    for number in range(generations):
        for shard in table.shards:
            table.flush(shard, Put([number, 100 + number], number))
    return table


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_here("backfill", *arguments, "--engine", "local", "--json")
    return done.returncode, json.loads(done.stdout)


def jobs_of(table: dict[str, Any]) -> dict[str, str]:
    return {job["job"]: job["outcome"] for job in table["jobs"]}


def check_caught_up(table: Table) -> None:
    builders.check_merged(table)
    state = table.stores.views.table().mem_wal
    assert state.index_catchup and set(map(frozenset, state.index_catchup.values())) == {
        frozenset(state.merged)
    }


@pytest.mark.integration
def test_others_go_on_beside_refused_held_and_missing_tables(tmp_path: Path) -> None:
    sealed, held, good = (make(tmp_path, name, 2) for name in ("sealed", "held", "good"))
    builders.set_status(sealed, sealed.shards[0], ShardStatus.SEALED)
    StoredLeases(held.stores.objects, held.stores.clock, holder="ann@one:1").acquire("merge")
    missing = str(tmp_path / "no-such-table")
    code, found = command(sealed.uri, missing, held.uri, good.uri)
    by_name = {t["table"]: t for t in found["tables"]}
    assert (code, found["outcome"]) == (6, "partial")
    assert {name: t["outcome"] for name, t in by_name.items()} == {
        sealed.uri: "refused", held.uri: "held", missing: "failed", good.uri: "done",
    }  # fmt: skip
    assert jobs_of(by_name[sealed.uri]) == {"merge": "refused"}, "what follows a refusal waits"
    assert "ann@one:1" in by_name[held.uri]["error"]
    assert jobs_of(by_name[good.uri]) == {"merge": "done", "index-catchup": "done"}
    check_caught_up(good)
    assert command(good.uri)[1]["outcome"] == "nothing_to_do"
    code, alone = command(held.uri)
    assert (code, alone["outcome"]) == (4, "held")


@pytest.mark.integration
def test_shards_and_generations_bound_the_merges(tmp_path: Path) -> None:
    table = make(tmp_path, "t", 3, shards=2)
    bounds = ("--jobs", "merge", "--shard", table.shards[0], "--until-generation", "2")
    before = {str(p): p.stat().st_mtime_ns for p in Path(table.uri).rglob("*")}
    _, dry = command(table.uri, *bounds, "--dry-run")
    assert before == {str(p): p.stat().st_mtime_ns for p in Path(table.uri).rglob("*")}
    _, found = command(table.uri, *bounds)
    assert table.progress() == {table.shards[0]: 2}
    assert jobs_of(found["tables"][0]) == jobs_of(dry["tables"][0]) == {"merge": "done"}
    assert command(table.uri, "--shard", "0" * 32)[0] == 2


@pytest.mark.parametrize("arguments", [("--jobs", "garbage"), ("--deadline", "1")])
def test_a_wrong_request_is_refused(tmp_path: Path, arguments: tuple[str, str]) -> None:
    code, found = command(str(tmp_path), *arguments)
    assert (code, arguments[0] in found["error"]) == (2, True)


# ---- ended on the way

MANY = 6
STALLS_AT = 3


def stall(arguments: list[str], stalled_file: str) -> None:
    """Runs in a process of its own: the command, whose third commit on a shard makes the file, and
    waits for the run to be cancelled.
    """
    commit = LanceFold.commit

    def stalled(self: LanceFold, deletes: object, mark: int) -> object:
        if mark == STALLS_AT:
            Path(stalled_file).touch()
            cancel._cancelled.wait()
        return commit(self, deletes, mark)  # type: ignore[arg-type]

    LanceFold.commit = stalled  # type: ignore[method-assign,assignment]
    main(["backfill", *arguments])


@contextmanager
def at_work(tables: tuple[Table, Table], folder: Path) -> Iterator[Started]:
    """A run that has finished the first table and stalls in the second; killed at the end."""
    arguments = [
        *(t.uri for t in tables), "--engine", "local", "--json", "--concurrency", "1",
        "--generations-per-commit-max", "1",
    ]  # fmt: skip
    stalled_file = folder / "stalled"
    process = start(stall, arguments, str(stalled_file))
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not stalled_file.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Table, Table]:
    """The second takes many commits."""
    one, many = (builders.make_table(tmp_path / n, rows=range(5), indexed=True) for n in "ab")
    one.flush(one.shards[0], Put(range(3000), 1))
    for number in range(MANY):
        many.flush(many.shards[0], Put([number], number))
    return one, many


@pytest.mark.nightly
def test_the_run_after_a_killed_one_goes_on(tmp_path: Path, tables: tuple[Table, Table]) -> None:
    one, many = tables
    before = int(many.dataset.version)
    with at_work(tables, tmp_path) as process:
        process.kill()
        process.wait()
    builders.check_versions(many, before)
    many.stores.leases.break_("the holder was killed")
    code, again = command(one.uri, many.uri)
    assert code == 0
    had_nothing, went_on = again["tables"]
    assert went_on["jobs"][0]["shards"][0]["from_generation"] == STALLS_AT - 1
    assert set(jobs_of(had_nothing).values()) == {"nothing_to_do"}
    for table in tables:
        check_caught_up(table)


@pytest.mark.nightly
def test_a_cancelled_run_ends_after_its_commit(tmp_path: Path, tables: tuple[Table, Table]) -> None:
    _, many = tables
    before = int(many.dataset.version)
    with at_work(tables, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "cancelled" in json.loads(out)["error"]
    assert many.progress() == {many.shards[0]: STALLS_AT}, "the commit it was in, and none after"
    lease = many.stores.leases.current()
    assert lease is not None
    assert lease.released
    builders.check_versions(many, before)
