"""What `memwal doctor` reports."""

from __future__ import annotations

from memwal.report import JobReport, Section


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
