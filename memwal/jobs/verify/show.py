"""What people see of `memwal verify`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.verify.report import CheckReport, VerifyTableReport

_MARKS = {True: ("ok", "green"), False: ("BROKEN", "red"), None: ("not checked", "yellow")}


def show_table(report: VerifyTableReport) -> list[RenderableType]:
    """Render a line for each check."""
    return [_format_check(check) for check in report.checks]


def _format_check(check: CheckReport) -> Text:
    mark, style = _MARKS[check.ok]
    return Text.assemble("  ", (f"{mark:<6}", style), f" {check.name}: {check.detail}")
