"""`memwal demo`: a table is made, every job runs on it, and before and after are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from memwal.cli.console import show_report
from memwal.config import ResolvedTable, Settings
from memwal.format import layout
from memwal.grid import count_text, size_text
from memwal.jobs.demo import table as demo
from memwal.jobs.garbage.job import run_garbage
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.run import GarbageOptions
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.snapshot.job import run_snapshot
from memwal.jobs.status.job import run_status
from memwal.report import FAILED, JobReport, StatusTableReport, sum_up
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.stores import Stores, open_stores

_BAR_CELLS = 30


@dataclass(frozen=True, kw_only=True)
class _State:
    """What the demo compares: bytes by kind, and how far behind things are."""

    base: int
    generations: int
    wal: int
    pending: int
    unindexed: int
    differences: int


def run_demo(
    folder: Path | None, console: Console, progress: Progress, *, engine: str, master: str | None
) -> JobReport:
    """Make a table in `folder` (None: a new temporary one) and run the jobs on it."""
    place = folder or Path(tempfile.mkdtemp(prefix="memwal-demo-")) / "table"
    resolved = ResolvedTable(
        name=str(place), uri=str(place), settings=Settings(), storage_options={}
    )
    _heading(console, f"1. A table with a live MemWAL, written by pylance: {place}")
    table = demo.make_table(place)
    _story(
        console,
        f"{demo.BASE_ROWS:,} base rows. {demo.SHARDS} writers put, updated and deleted rows in "
        f"{demo.GENERATIONS} sessions each;",
        "each session left a flushed generation under _mem_wal/. None of that is in the base "
        "table yet.",
    )
    before = _state(resolved, table)
    show_report(run_status(RunOptions(tables=[resolved])), console)
    reports = _run_jobs(resolved, console, progress, engine, master)
    after = _state(resolved, table)
    _heading(console, "6. Before and after")
    console.print(_comparison(before, after))
    _story(
        console,
        "",
        f"Look around: memwal status {place} | memwal verify {place} | "
        f"memwal inspect shard {place}",
    )
    outcome, code = sum_up(reports)
    error = f"{after.differences} keys differ" if after.differences else None
    return JobReport(
        job="demo",
        outcome=FAILED if error else outcome,
        exit_code=1 if error else code,
        error=error,
        seconds=round(sum(r.seconds for r in reports), 3),
        tables=tuple(t for r in reports for t in r.tables),
    )


def _run_jobs(
    table: ResolvedTable, console: Console, progress: Progress, engine: str, master: str | None
) -> list[JobReport]:
    reports: list[JobReport] = []

    def show(report: JobReport) -> None:
        reports.append(report)
        show_report(report, console)

    _heading(console, "2. memwal merge: generations are folded into the base, oldest first")
    _story(
        console,
        "The newest row of a key wins and tombstones delete; the watermark of each shard moves in",
        "the same commit as its rows, so a crash can't lose or double any.",
        "",
    )
    show(run_merge(MergeOptions(tables=[table], engine=engine, master=master), progress))
    _heading(console, "3. memwal index-catchup: the indexes cover what merging added")
    show(run_index_catchup(IndexCatchupOptions(tables=[table], engine="local"), progress))
    _heading(console, "4. memwal snapshot: readers find all shards in one place")
    show(run_snapshot(RunOptions(tables=[table]), progress))
    _heading(console, "5. memwal garbage: what is merged, indexed and out of time travel goes")
    _story(
        console,
        "First the generations are dropped from the shard manifests, and after a grace time their",
        "files are deleted. Here old versions are expired and the grace is cut to nothing; a real",
        "table keeps both guards (7 days and 1 hour are usual).",
        "",
    )
    options = GarbageOptions(
        tables=[table],
        engine="local",
        execute=True,
        retention_seconds=0.0,
        short_allowed=True,
        limits=GarbageLimits(grace_seconds=0.0, wal=True),
    )
    passes = ("drops from the manifests", "deletes what they dropped, and its WAL entries")
    for number, what in enumerate(passes, start=1):
        report = run_garbage(options, progress)
        reports.append(report)
        for found in report.tables:
            dropped, deleted = getattr(found, "dropped", 0), getattr(found, "deleted", 0)
            freed = size_text(getattr(found, "bytes_freed", 0))
            console.print(
                f"pass {number} {what}: {dropped} dropped, {deleted} deleted, {freed} freed"
            )
    return reports


def _state(table: ResolvedTable, made: demo.DemoTable) -> _State:
    sizes = _sizes(open_stores(table.uri, {}))
    (status,) = run_status(RunOptions(tables=[table])).tables
    shards = status.shards if isinstance(status, StatusTableReport) else ()
    indexes = status.indexes if isinstance(status, StatusTableReport) else ()
    return _State(
        base=sizes["base"],
        generations=sizes["generations"],
        wal=sizes["wal"],
        pending=sum(len(s.pending_generations) for s in shards),
        unindexed=sum(i.unindexed_rows or 0 for i in indexes),
        differences=demo.count_differences(made),
    )


def _sizes(stores: Stores) -> Mapping[str, int]:
    sizes = {"base": 0, "generations": 0, "wal": 0}
    for info in stores.objects.list(""):
        parts = info.path.split("/")
        kind = "base"
        if parts[0] == layout.MAINTENANCE:
            continue
        if parts[0] == layout.MEM_WAL:
            kind = "wal" if "wal" in parts[2:3] else "generations"
        sizes[kind] += info.size_bytes
    return sizes


def _comparison(before: _State, after: _State) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold dim")
    for column in ("", "before", "", "after", ""):
        grid.add_column(column, justify="left" if not column else "right", no_wrap=True)
    rows = (
        ("keys that differ from what was written", "differences", count_text),
        ("pending generations", "pending", count_text),
        ("generations, bytes", "generations", size_text),
        ("WAL, bytes", "wal", size_text),
        ("base table, bytes", "base", size_text),
    )
    for label, name, text in rows:
        was, now = getattr(before, name), getattr(after, name)
        most = max(was, now, 1)
        grid.add_row(
            label,
            text(was),
            Bar(most, 0, was, width=_BAR_CELLS, color="yellow"),
            text(now),
            Bar(most, 0, now, width=_BAR_CELLS, color="green"),
        )
    return grid


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(f"== {text}", style="bold cyan")


def _story(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line)
