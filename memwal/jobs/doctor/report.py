"""What `memwal doctor` reports."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, prose, words
from memwal.jobs.doctor.plan import CHECKS as KINDS
from memwal.report import JobReport, Section

_WORDS = {
    True: Text("ok", style="green"),
    False: Text("FAILED", style="red"),
    None: Text("-", style="yellow"),
}
CHECKS: tuple[Column[CheckReport], ...] = (
    words("check", lambda check: check.name),
    words("", lambda check: _WORDS[check.ok]),
    prose("proves", lambda check: KINDS[check.name].proves),
    prose("found", lambda check: check.detail),
)


class CheckReport(Section):
    """One check. `ok` is None where it was not tried, or showed nothing either way."""

    name: str
    ok: bool | None
    detail: str


class DoctorReport(JobReport):
    """The document. `scratch` is where it tried; `left` objects there could not be deleted."""

    uri: str
    checks: tuple[CheckReport, ...]
    scratch: str | None = None
    left: int = 0


def show_job(report: DoctorReport) -> list[RenderableType]:
    """Render each check and what it proves, advice for failed ones, and what was not deleted."""
    advice = [
        Text(f"{check.name}: {KINDS[check.name].advice}", style="yellow")
        for check in report.checks
        if check.ok is False
    ]
    left = []
    if report.left:
        text = f"{report.left} small objects could not be deleted and stay below {report.scratch}"
        left = [Text(f"{text}; a later doctor that may delete removes them", style="yellow")]
    return [Text(report.uri, style="bold"), build_table(report.checks, CHECKS), *advice, *left]
