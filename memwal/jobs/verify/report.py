"""What `memwal verify` reports."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import Corruption, MemWalError, Refused
from memwal.jobs.verify.plan import Check
from memwal.report import TableReport, describe_error

_MARKS = {True: ("ok", "green"), False: ("BROKEN", "red"), None: ("not checked", "yellow")}


class VerifyTableReport(TableReport):
    """One table of `verify`. Warnings are no broken invariants: the exit code is as without.

    `read_bytes` is the size of what a deep look read.
    """

    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()
    read_bytes: int = 0


def report_checks(
    name: str, version: int, checks: Sequence[Check], warnings: Sequence[str], read_bytes: int = 0
) -> VerifyTableReport:
    """A table's verdicts; what is broken weighs more than what could not be looked at."""
    error: MemWalError | None = None
    if wrong := [check for check in checks if check.ok is False]:
        error = Corruption("MW-V01", _tell(wrong))
    elif wrong := [check for check in checks if check.refused]:
        error = Refused("MW-V02", _tell(wrong))
    else:
        error = next((check.error for check in checks if check.error is not None), None)
    return VerifyTableReport(
        table=name,
        **describe_error(error),
        version_before=version,
        version_after=version,
        checks=tuple(checks),
        warnings=tuple(warnings),
        read_bytes=read_bytes,
    )


def _tell(wrong: Sequence[Check]) -> str:
    return "; ".join(f"{_name(check)}: {check.detail}" for check in wrong)


def _name(check: Check) -> str:
    return check.name if check.invariant is None else f"invariant {check.invariant}, {check.name}"


def show_table(report: VerifyTableReport) -> list[RenderableType]:
    """Render a line for each check."""
    return [_format_check(check) for check in report.checks]


def _format_check(check: Check) -> Text:
    mark, style = _MARKS[check.ok]
    return Text.assemble("  ", (f"{mark:<6}", style), f" {check.name}: {check.detail}")
