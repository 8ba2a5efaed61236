"""The verdict that `memwal status` ends with: what needs somebody, and the command for it."""

from __future__ import annotations

import io
from pathlib import Path

import lance
import pytest
from rich.console import Console

from memwal.jobs.status.plan import DueLimits
from memwal.jobs.status.report import (
    FailedConditionReport,
    ShardStatusReport,
    StatusTableReport,
    UntilReport,
    find_attention,
)
from memwal.jobs.status.show import show_verdicts
from memwal.report import CompactionAdvice, TableReport
from tests.jobs.status.told import status
from tests.support import builders
from tests.support.builders import Put
from tests.support.command import run_here
from tests.support.garbage_runs import age
from tests.support.wal_tables import abandon

_SHARD = "28457e05-96ea-4404-be39-739b8185fbd8"


def shown(*reports: TableReport) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    for part in show_verdicts(reports):
        console.print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def judged(name: str = "orders", **facts: object) -> StatusTableReport:
    report = StatusTableReport(table=name, outcome="done", version=1, **facts)
    return report.model_copy(update={"attention": find_attention(report, DueLimits())})


def shard(**facts: object) -> ShardStatusReport:
    return ShardStatusReport(outcome="done", shard_id=_SHARD, **facts)


def test_each_need_names_its_command() -> None:
    for says, facts in {
        "1 shard unreadable -> memwal verify orders": {"shards": (shard(error="torn"),)},
        "1 shard of a clone, not adopted -> memwal init orders --adopt-clone": {
            "shards": (shard(error="the table is a clone (MW-H06)"),)
        },
        "1 shard stuck, and 1 more -> memwal verify orders": {
            "shards": (shard(stuck="torn", due_reasons=("old",)),), "warnings": ("stuck",),
        },
        "2 shards with missing generations -> memwal verify orders": {
            "shards": (shard(holes=({},)),) * 2, "warnings": ("a", "b"),
        },
        "1 shard with a damaged WAL -> memwal rescue orders --dry-run": {
            "shards": (shard(wal_problem="torn"),), "warnings": ("torn",),
        },
        "1 shard with unflushed rows, silent for 10.0 m -> memwal rescue orders --dry-run": {
            "shards": (shard(unflushed_wal_entries=1, idle_seconds=600.0),),
        },
        "rows in the WAL only, of 1 shard, for 1.0 m: close or reopen the writer": {
            "shards": (shard(unflushed_wal_entries=1, unflushed_seconds=60.1),),
        },
        "--fail-if 'pending_bytes > 1KB' -> memwal merge orders": {
            "failed_conditions": (FailedConditionReport(condition="pending_bytes > 1KB", value=9),),
        },
        "indexes 4 generations behind -> memwal index-catchup orders": {"index_lag_generations": 4},
        "32 small fragments -> memwal compaction orders": {
            "compaction": CompactionAdvice(
                small_fragments=32, deleted_rows=0, reason="32 small fragments"
            ),
        },
        "not merged in time": {
            "until": UntilReport(step="merged", reached=False, target={}, missing={}),
        },
        "1 warning": {"warnings": ("skew",)},
        "OK": {
            "shards": (shard(unflushed_wal_entries=1, unflushed_seconds=60, idle_seconds=599.0),),
            "index_lag_generations": 3,
        },
    }.items():  # fmt: skip
        text = " ".join(line.strip() for line in shown(judged(**facts)))
        assert text == f"orders: {says}"


def test_a_long_line_goes_on_in_a_second_one_and_names_are_quoted() -> None:
    name = "./a table/" + "x" * 40
    lines = shown(judged(name, shards=(shard(due_reasons=("old",)),) * 2))
    assert lines == [f"{name}: 2 shards due for a merge", f"  -> memwal merge '{name}'"]
    gone = TableReport(table="gone", outcome="failed", error="gone: no such table")
    assert shown(gone) == ["gone: failed, see its error"]


@pytest.mark.integration
def test_rows_of_a_writer_that_died_are_shown_long_before_an_hour(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    table.flush(table.shards[0], Put([1], 10))
    at_rest = "unflushed_seconds > 0"
    age(table, 700)
    report, _ = status(table, at_rest)
    assert (report.unflushed_seconds, report.failed_conditions) == (0.0, ())
    abandon(table, table.shards[0], Put([2], 20))
    assert not status(table, "unflushed_seconds > 5m")[0].failed_conditions
    age(table, 700)
    report, _ = status(table, "unflushed_seconds > 11m")
    assert report.exit_code == 3
    assert report.unflushed_seconds is not None and 700 <= report.unflushed_seconds < 1000
    assert not report.shards[0].abandoned
    assert report.attention[0].what.startswith("1 shard with unflushed rows, silent for 1")
    assert report.attention[0].command == "memwal rescue t --dry-run"


@pytest.mark.integration
def test_what_a_terminal_shows_fits_into_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each error is there once, where stdout and stderr are one."""
    sound = builders.make_table(tmp_path / "sound", rows=[1, 2], shards=2)
    for number in range(5):
        sound.flush(sound.shards[0], Put([number], number))
    over = builders.make_table(tmp_path / "over", rows=[1])
    over.flush(over.shards[0], Put([1], 10))
    lance.write_dataset(lance.dataset(over.uri).to_table(), over.uri, mode="overwrite")

    monkeypatch.chdir(tmp_path)
    text = run_here("status", "./sound").stdout
    assert max(map(len, map(str.rstrip, text.splitlines()))) <= 80
    assert text.splitlines()[-2] == "./sound: 1 shard due for a merge -> memwal merge ./sound"
    text = run_here("status", "./sound", "./over", one_place=True).stdout
    assert text.count("no MemWAL index, but _mem_wal/ has 1 shard: the table was overwritten") == 1
    assert "Rows that wait there are in no read" in text
