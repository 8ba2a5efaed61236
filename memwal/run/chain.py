"""Several jobs on one table, one after the other: when to stop, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwal.report import DONE, FAILED, HELD, NOTHING_TO_DO, REFUSED, TableReport, sum_up


def stops(name: str, report: TableReport) -> bool:
    """Whether the table's later jobs would work on a state that somebody has to look at first.

    One shard that is sealed or broken must not keep the others from being collected, whether these
    had anything to merge this time or not. A snapshot that was refused for it needs no one to wait:
    garbage looks at each shard itself.
    """
    if report.outcome not in (FAILED, REFUSED):
        return report.outcome == HELD
    if name == "snapshot" and report.outcome == REFUSED:
        return False
    shards = getattr(report, "shards", ())  # of a merge, or of its dry run
    return not any(shard.outcome in (DONE, NOTHING_TO_DO) for shard in shards)


def summed_fields(reports: Sequence[tuple[str, TableReport]]) -> dict[str, Any]:
    """The fields of one table's report (`MaintainTableReport`) out of its jobs' own reports."""
    outcome, code = sum_up(report for _, report in reports)
    versions = [r.version_before for _, r in reports if r.version_before is not None]
    after = [r.version_after for _, r in reports if r.version_after is not None]
    return {
        "outcome": outcome,
        "exit_code": code,
        "error": "; ".join(f"{name}: {r.error}" for name, r in reports if r.error) or None,
        "version_before": versions[0] if versions else None,
        "version_after": after[-1] if after else None,
        "jobs": tuple({"job": name, **r.model_dump(mode="json")} for name, r in reports),
    }
