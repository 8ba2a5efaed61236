"""A table that is written all the time, and kept by a watch's jobs, does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwal.config import Settings
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.watch.plan import COMPACTION, FRESHENING, GARBAGE, SNAPSHOT
from tests.support import builders
from tests.support.builders import Put
from tests.support.indexed import resolved
from tests.support.progress import Quiet

ROUNDS = 96
"""A day's, of one in a quarter of an hour."""


def measure(folder: Path) -> dict[str, int]:
    """Without run records, of which a fixed number stays."""
    files = (file for file in folder.rglob("*") if file.parent.name != "runs")
    sizes = [file.stat().st_size for file in files if file.is_file()]
    versions = len(list((folder / "_versions").glob("*.manifest")))
    return {"versions": versions, "files": len(sizes), "bytes": sum(sizes)}


@pytest.mark.nightly
def test_fragments_versions_files_and_bytes_stay_level(tmp_path: Path) -> None:
    """The writer stays open. What would expire after days does so at once."""
    table = builders.make_table(tmp_path / "t", rows=range(200), indexed=True)
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
            (report,) = run_maintain(options, Quiet()).tables
            assert report.exit_code == 0, report.error
            fragments = len(table.dataset.get_fragments())
            seen.append({"fragments": fragments, **measure(Path(table.uri))})
    early, late = seen[ROUNDS // 4 : ROUNDS // 2], seen[-ROUNDS // 4 :]
    for name in seen[0]:
        assert max(s[name] for s in late) <= 1.2 * max(s[name] for s in early), name
