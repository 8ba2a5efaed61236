"""A day of a table that is written all the time, and kept by the jobs of a watch."""

from __future__ import annotations

from pathlib import Path

from memwal.config import Settings
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.watch.plan import COMPACTION, FRESHENING, GARBAGE, SNAPSHOT
from memwal.run.progress import Silent
from tests.support import builders
from tests.support.builders import Put
from tests.support.indexed import resolved

ROUNDS = 96
"""One in a quarter of an hour."""


def keep_table(folder: Path) -> list[dict[str, int]]:
    """Return what there is after each round of fragments, versions, files and bytes.

    The writer stays open. What would expire after days does so at once.
    """
    table = builders.make_table(folder, rows=range(200), indexed=True)
    (shard,) = table.shards
    settings = Settings(compaction_fragments_min=8)
    options = MaintainOptions(
        tables=[resolved(table).with_settings(settings)],
        jobs=(*FRESHENING, COMPACTION, SNAPSHOT, GARBAGE),
        request=MaintainRequest(
            retention_seconds=0.0,
            grace_seconds=0.0,
            allow_short_retention=True,
            execute=True,
            wal=True,
        ),
    )
    seen = list[dict[str, int]]()
    schema, done = table.dataset.schema, dict[builders.Key, builders.Row | None]()
    with table.writer(shard, max_memtable_batches=1) as writer:  # of each put, a generation
        for number in range(ROUNDS):
            put = Put([number * 7 % 200 + n for n in range(10)], number)
            builders.apply(table, writer, schema, put, done)
            (report,) = run_maintain(options, Silent()).tables
            assert report.exit_code == 0, report.error
            fragments = len(table.dataset.get_fragments())
            seen.append({"fragments": fragments, **_measure(Path(table.uri))})
    return seen


def _measure(folder: Path) -> dict[str, int]:
    """Without run records, of which a fixed number stays."""
    files = (file for file in folder.rglob("*") if file.parent.name != "runs")
    sizes = [file.stat().st_size for file in files if file.is_file()]
    versions = len(list((folder / "_versions").glob("*.manifest")))
    return {"versions": versions, "files": len(sizes), "bytes": sum(sizes)}
