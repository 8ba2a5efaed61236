"""What people see of `memwal quiesce`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.maintain.show import show_table as show_jobs
from memwal.jobs.quiesce.report import QuiesceTableReport
from memwal.text import name_some

_NAMED_MAX = 20


def show_table(report: QuiesceTableReport) -> list[RenderableType]:
    """A line for each job, and whether the write spec may be changed, or what is in the way."""
    parts = show_jobs(report)
    if report.safe:
        return [*parts, Text("  safe to change the write spec", style="green")]
    lines = name_some([o.detail for o in report.in_the_way], _NAMED_MAX, "reasons")
    parts.append(Text("  not safe to change the write spec:", style="yellow"))
    parts += [Text(f"    {line}") for line in lines]
    if any(o.kind == "listed" and o.stays for o in report.in_the_way):
        parts.append(
            Text(
                "  a generation is dropped once every retained version has it merged: --retention "
                "expires older versions, a tag or checkpoint keeps its own",
                style="dim",
            )
        )
    return parts
