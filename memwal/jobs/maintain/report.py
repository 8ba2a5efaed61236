"""What `memwal maintain` reports."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import style_outcome
from memwal.report import JobOnTable, TableReport
from memwal.text import count_of


class MaintainTableReport(TableReport):
    """One table of `maintain`: each job's own report of it, in the order they ran."""

    jobs: tuple[JobOnTable, ...] = ()


def show_table(report: MaintainTableReport) -> list[RenderableType]:
    """Render a line for each job, what it leaves for further options to do, and its warnings."""
    compacted = any(job.job == "compaction" for job in report.jobs)
    return [line for job in report.jobs for line in _list_lines(job, compacted=compacted)]


def _list_lines(job: JobOnTable, *, compacted: bool) -> Iterator[Text]:
    report = job.report
    line = Text.assemble(f"  {job.job:<14} ", style_outcome(report.outcome))
    waiting = sum(
        item.action in ("drop", "delete") and not item.done for item in getattr(report, "items", ())
    )
    if waiting:
        line.append(f"  {count_of(waiting, 'item')} could go: --execute does it", style="yellow")
    yield line
    advice = getattr(report, "compaction", None)
    if advice and not compacted and (text := advice.describe("--compaction always")):
        yield Text(f"    {text}", style="yellow")
    for text in getattr(report, "warnings", ()):
        yield Text(f"    warning: {text}", style="yellow")
