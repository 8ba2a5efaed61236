"""What people see of `memwal maintain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import outcome_text
from memwal.report import MaintainTableReport


def show_table(report: MaintainTableReport) -> list[RenderableType]:
    """A line for each job, what it leaves to be asked for, and its warnings."""
    return [line for job in report.jobs for line in _job_lines(job)]


def _job_lines(job: Mapping[str, Any]) -> Iterator[Text]:
    line = Text.assemble(f"  {job['job']:<14} ", outcome_text(job["outcome"]))
    waiting = sum(
        item["action"] in ("drop", "delete") and not item["done"] for item in job.get("items", ())
    )
    if waiting:
        line.append(f"  {waiting} items could go: --execute does it", style="yellow")
    yield line
    for text in job.get("warnings", ()):
        yield Text(f"    warning: {text}", style="yellow")
