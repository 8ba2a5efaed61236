"""What `memwal verify` reports."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import Corruption, Refused
from memwal.jobs.verify.plan import Check
from memwal.report import DONE, FAILED, REFUSED, Section, TableReport


class CheckReport(Section):
    """One line of `verify`. `invariant` is the number of one, None for other checks.

    `ok` is None for a check that could not be made here.
    """

    invariant: int | None
    name: str
    ok: bool | None
    detail: str


class VerifyTableReport(TableReport):
    """One table of `verify`. Warnings are no broken invariants: the exit code is as without."""

    checks: tuple[CheckReport, ...] = ()
    warnings: tuple[str, ...] = ()


def report_checks(
    name: str, version: int, checks: Sequence[Check], warnings: Sequence[str]
) -> VerifyTableReport:
    """A table's verdicts; what is broken weighs more than what a limit forbade to look at."""
    outcome, code = DONE, 0
    wrong = [check for check in checks if check.ok is False]
    if wrong:
        outcome, code = FAILED, Corruption.exit_code
    elif wrong := [check for check in checks if check.refused]:
        outcome, code = REFUSED, Refused.exit_code
    return VerifyTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(f"{_name(check)}: {check.detail}" for check in wrong) or None,
        version_before=version,
        version_after=version,
        checks=tuple(
            CheckReport(
                invariant=check.invariant, name=check.name, ok=check.ok, detail=check.detail
            )
            for check in checks
        ),
        warnings=tuple(warnings),
    )


def _name(check: Check) -> str:
    return check.name if check.invariant is None else f"invariant {check.invariant}, {check.name}"
