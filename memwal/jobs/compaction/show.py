"""What people see of a compaction."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import build_table, format_size, numbers, words
from memwal.jobs.compaction.report import CompactionTableReport
from memwal.jobs.index_catchup.show import INDEXES
from memwal.text import count_of

COUNTED = ("fragments", "files", "rows", "deleted_rows")


def show_table(report: CompactionTableReport) -> list[RenderableType]:
    """Render what was rewritten, the counts before and after, and the indexes caught up."""
    if report.fragments_before is None:
        return []
    size = format_size(report.bytes_rewritten)
    counts = build_table(
        COUNTED,
        (
            words("", lambda name: name.replace("_", " ")),
            numbers("before", lambda name: getattr(report, f"{name}_before")),
            numbers("after", lambda name: getattr(report, f"{name}_after")),
        ),
    )
    indexes = [build_table(report.indexes, INDEXES)] if report.indexes else []
    done = f"{count_of(report.tasks, 'task')}, {size}, {count_of(report.commits, 'commit')}"
    text = f"  {done}: {report.reason}"
    aged = []
    if report.expired_rows is not None:
        rows = count_of(report.expired_rows, "row")
        aged = [Text(f"  {rows} older than {report.expired_before}; {report.purged_rows} purged")]
    return [Text(text), *aged, counts, *indexes]
