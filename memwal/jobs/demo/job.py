"""`memwal demo`: a table is made, every job runs on it, and before and after are compared."""

from __future__ import annotations

import tempfile
from pathlib import Path

from memwal.config import ResolvedTable, Settings
from memwal.errors import EXIT_FAILED
from memwal.format import layout
from memwal.grid import format_size
from memwal.jobs.demo import table as demo
from memwal.jobs.demo.show import DemoState, Story
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.snapshot.job import run_snapshot
from memwal.jobs.status.job import run_status
from memwal.report import FAILED, JobReport, sum_up
from memwal.run.engines.pool import check_spark, has_spark
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.stores import Stores, open_stores


def run_demo(
    folder: Path | None, story: Story, progress: Progress, *, engine: str | None, master: str | None
) -> JobReport:
    """Make a table in `folder` (None: a new temporary one) and run the jobs on it.

    `engine` is Spark by default, if that is installed. Raises Unsupported, before anything is made,
    if Spark is asked for and is not installed.
    """
    if engine == "spark":
        check_spark()
    engine = engine or ("spark" if has_spark() else "auto")
    place = folder or Path(tempfile.mkdtemp(prefix="memwal-demo-")) / "table"
    resolved = ResolvedTable(
        name=str(place), uri=str(place), settings=Settings(), storage_options={}
    )
    story.begin(f"1. A table with a live MemWAL, written by pylance: {place}")
    table = demo.make_table(place)
    story.say(
        f"{demo.BASE_ROWS:,} base rows. {demo.SHARDS} writers put, updated and deleted rows in "
        f"{demo.GENERATIONS} sessions each;",
        "each session left a flushed generation under _mem_wal/. None of that is in the base "
        "table yet.",
    )
    before = _read_state(resolved, table)
    story.report(run_status(RunOptions(tables=[resolved])))
    reports = _run_jobs(resolved, story, progress, engine, master)
    after = _read_state(resolved, table)
    story.begin("6. Before and after")
    story.compare(before, after)
    story.say(
        "",
        f"Look around: memwal status {place} | memwal verify {place} | "
        f"memwal inspect shard {place}",
    )
    outcome, code = sum_up(reports)
    error = f"{after.differences} keys differ" if after.differences else None
    return JobReport(
        job="demo",
        outcome=FAILED if error else outcome,
        exit_code=EXIT_FAILED if error else code,
        error=error,
        seconds=round(sum(r.seconds for r in reports), 3),
        tables=tuple(t for r in reports for t in r.tables),
    )


def _run_jobs(
    table: ResolvedTable, story: Story, progress: Progress, engine: str, master: str | None
) -> list[JobReport]:
    story.begin(
        "2. memwal merge: generations are folded into the base, oldest first",
        "The newest row of a key wins and tombstones delete; the watermark of each shard moves in",
        "the same commit as its rows, so a crash can't lose or double any.",
        "",
    )
    merged = run_merge(MergeOptions(tables=[table], engine=engine, master=master), progress)
    reports = [story.report(merged)]
    story.begin("3. memwal index-catchup: the indexes cover what merging added")
    indexed = run_index_catchup(IndexCatchupOptions(tables=[table], engine="local"), progress)
    reports.append(story.report(indexed))
    story.begin("4. memwal snapshot: readers find all shards in one place")
    reports.append(story.report(run_snapshot(RunOptions(tables=[table]), progress)))
    story.begin(
        "5. memwal garbage: what is merged, indexed and out of time travel goes",
        "First the generations are dropped from the shard manifests, and after a grace time their",
        "files are deleted. Here old versions are expired and the grace is cut to nothing; a real",
        "table keeps both guards (7 days and 1 hour are usual).",
        "",
    )
    options = GarbageOptions(
        tables=[table],
        engine="local",
        request=GarbageRequest(
            execute=True,
            retention_seconds=0.0,
            grace_seconds=0.0,
            wal=True,
            allow_short_retention=True,
        ),
    )
    passes = ("drops from the manifests", "deletes what they dropped, and its WAL entries")
    for number, what in enumerate(passes, start=1):
        report = run_garbage(options, progress)
        reports.append(report)
        for found in report.tables:
            dropped, deleted = getattr(found, "dropped", 0), getattr(found, "deleted", 0)
            freed = format_size(getattr(found, "bytes_freed", 0))
            story.say(f"pass {number} {what}: {dropped} dropped, {deleted} deleted, {freed} freed")
    return reports


def _read_state(table: ResolvedTable, made: demo.DemoTable) -> DemoState:
    (status,) = run_status(RunOptions(tables=[table])).tables
    return DemoState(
        **_read_sizes(open_stores(table.uri, {})),
        pending=sum(len(s.pending_generations) for s in getattr(status, "shards", ())),
        differences=demo.count_differences(made),
    )


def _read_sizes(stores: Stores) -> dict[str, int]:
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
