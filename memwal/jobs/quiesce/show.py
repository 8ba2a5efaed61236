"""What people see of `memwal quiesce`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.maintain.show import show_table as show_jobs
from memwal.jobs.quiesce.report import QuiesceTableReport
from memwal.text import name_some

_NAMED_MAX = 20


def show_table(report: QuiesceTableReport) -> list[RenderableType]:
    """Render a line for each job, and whether the write spec may be changed.

    Obstacles that stay are in the report's error instead.
    """
    parts = show_jobs(report)
    if report.safe:
        return [*parts, Text("  safe to change the write spec", style="green")]
    if report.error is None:
        lines = name_some([o.detail for o in report.in_the_way], _NAMED_MAX, "reasons")
        parts.append(Text("  not safe to change the write spec:", style="yellow"))
        parts += [Text(f"    {line}") for line in lines]
    if any(o.kind == "listed" and o.stays for o in report.in_the_way):
        parts.append(
            Text(
                "  a generation is dropped once every retained version has it merged; a tag or "
                "checkpoint keeps its own. --retention 1d expires versions that are older; within "
                "a day of the merge, with writers stopped, --retention 0s --allow-short-retention",
                style="dim",
            )
        )
    return parts
