"""What `memwal verify` reports."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from memwal.report import TableReport

_FROZEN = ConfigDict(frozen=True, defer_build=True)


class CheckReport(BaseModel):
    """One line of `verify`. `invariant` is the number of one, None for other checks.

    `ok` is None for a check that could not be made here.
    """

    model_config = _FROZEN

    invariant: int | None
    name: str
    ok: bool | None
    detail: str


class VerifyTableReport(TableReport):
    """One table of `verify`. Warnings are no broken invariants: the exit code is as without."""

    checks: tuple[CheckReport, ...] = ()
    warnings: tuple[str, ...] = ()
