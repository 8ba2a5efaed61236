"""What people see of `memwal init`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.init.report import InitTableReport


def show_table(report: InitTableReport) -> list[RenderableType]:
    """Render the table's setup, the commits that were made, and code that writes to the table.

    The code is not indented, so that it can be copied.
    """
    indexes = report.maintained_indexes
    kept = "every index" if indexes is None else ", ".join(indexes) or "none"
    key = ", ".join(report.primary_key) or "none"
    parts: list[RenderableType] = [
        Text(f"  primary key {key}; spec {report.spec}; indexes that writers maintain: {kept}"),
        Text(f"  commits: {', '.join(report.steps) or 'none; it was as asked'}"),
    ]
    if report.let_go:
        parts.append(Text(f"  progress that is not theirs: of {', '.join(report.let_go)}"))
    if report.write:
        parts += [Text("  to write to it:", style="dim"), Text("")]
        parts += [Text(line) for line in (*report.write, "")]
    return parts
