"""Chains several jobs on one table: when the chain must stop, and its combined report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwal.report import (
    DONE,
    FAILED,
    HELD,
    NOTHING_TO_DO,
    REFUSED,
    JobOnTable,
    sum_up,
)
from memwal.store.objects.local import tells_of_it


def must_stop(jobs: Sequence[JobOnTable]) -> bool:
    """Whether a job left the table in a state that needs a look before later jobs run on it."""
    return any(_is_in_the_way(job) for job in jobs)


def had_no_room(jobs: Sequence[JobOnTable]) -> bool:
    """Whether a job hit a full disk; garbage can still run then, and makes room."""
    return any(tells_of_it(job.report.error) for job in jobs)


def _is_in_the_way(job: JobOnTable) -> bool:
    # One sealed or broken shard must not keep the others from being collected, whether or not
    # those had anything to merge this time. A snapshot that was refused because of such a shard
    # does not stop the chain either: garbage checks each shard itself.
    outcome = job.report.outcome
    if outcome not in (FAILED, REFUSED):
        return outcome == HELD
    if job.job == "snapshot" and outcome == REFUSED:
        return False
    shards = getattr(job.report, "shards", ())  # of a merge, or of its dry run
    return not any(shard.outcome in (DONE, NOTHING_TO_DO) for shard in shards)


def sum_up_jobs(jobs: Sequence[JobOnTable]) -> dict[str, Any]:
    """The fields of one table's `MaintainTableReport`, derived from its jobs' reports."""
    outcome, code = sum_up(job.report for job in jobs)
    before = (job.report.version_before for job in jobs)
    after = (job.report.version_after for job in reversed(jobs))
    return {
        "outcome": outcome,
        "exit_code": code,
        "error": "; ".join(f"{j.job}: {j.report.error}" for j in jobs if j.report.error) or None,
        "version_before": next((v for v in before if v is not None), None),
        "version_after": next((v for v in after if v is not None), None),
        "jobs": tuple(jobs),
    }
