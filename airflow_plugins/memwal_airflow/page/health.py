"""How a table is doing, in one word and a few sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from memwal.errors import PASSING_EXITS
from memwal.jobs.status.report import StatusTableReport
from memwal_airflow.page.answers import WELL, Look, Run, parse_time, read_lease

OK = "ok"
HELD = "held"
DUE = "due"
LAGGING = "lagging"
UNKNOWN = "unknown"
BROKEN = "broken"
UNREACHABLE = "unreachable"
# Worst first: the order in which an operator wants to see them.
STATES = (BROKEN, UNREACHABLE, UNKNOWN, LAGGING, DUE, HELD, OK)

REASONS_MAX = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthLimits:
    """`overdue`: how long work may wait before the table counts as lagging. `stale`: how old data
    may get before they no longer count.
    """

    overdue: timedelta = timedelta(minutes=30)
    stale: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """`state` is one of STATES; `reasons` are sentences for people, the worst first.
    `marks` are all that apply of late, failing, abandoned and held, whatever the state.
    """

    state: str
    reasons: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


def judge_health(look: Look, now: datetime, limits: HealthLimits) -> Health:
    """The state of a table.

    broken   memwal can't read the table or a shard of it, or a job's newest run failed in a way
             that the next one won't put right
    unreachable
             the table's store gives no answer
    unknown  no data, or only old data
    lagging  work has been waiting for longer than `overdue`, a job's newest run failed, or a shard
             looks abandoned
    due      a merge is due, or an index is behind
    held     nothing is wrong and a job holds the lease right now
    ok       none of these
    """
    status = look.status
    if look.unreachable_since is not None:
        return Health(state=UNREACHABLE, reasons=(look.error or "the store gives no answer",))
    if look.unreadable:
        why = look.error or "the table can't be read"
        return Health(state=BROKEN, reasons=(why,), marks=("failing",))
    if status is None or look.status_at is None:
        return Health(state=UNKNOWN, reasons=(look.error or "not looked at yet",))
    if now - look.status_at > limits.stale:
        why = look.error or "nobody has looked since"
        return Health(state=UNKNOWN, reasons=(f"the data are old: {why}",))
    totals, lease = look.totals, read_lease(status, now)
    late = _describe_overdue(look, status, now, limits)
    failing = _name_failed_runs(look.runs, transient=True)
    abandoned = totals.abandoned if totals else ()
    found = {
        BROKEN: [
            *(totals.broken if totals else ()),
            *_name_failed_runs(look.runs, transient=False),
        ],
        LAGGING: [*late, *failing, *abandoned],
        DUE: [*status.due_reasons, *_name_lags(status)],
        HELD: [f"{lease.job} is at work: {lease.holder}"] if lease and lease.state == HELD else [],
    }
    if status.due and not found[DUE]:
        found[DUE] = ["a merge is due"]
    state = next((s for s in STATES if found.get(s)), OK)
    reasons = [reason for s in STATES for reason in found.get(s, ())]
    marks = {
        "late": late,
        "failing": [*found[BROKEN], *failing],
        "abandoned": abandoned,
        "held": found[HELD],
    }
    return Health(
        state=state,
        reasons=_limit(reasons),
        marks=tuple(mark for mark, applies in marks.items() if applies),
    )


def _limit(reasons: Sequence[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(reasons))
    if len(unique) <= REASONS_MAX:
        return unique
    return (*unique[: REASONS_MAX - 1], f"and {len(unique) - REASONS_MAX + 1} more")


def _name_failed_runs(runs: Sequence[Run], *, transient: bool) -> list[str]:
    """A sentence for each job whose newest run went wrong; `runs` has the newest first."""
    newest = {run["job"]: run for run in reversed(runs)}
    return [
        f"the last {job} {run['outcome']}: {run.get('error') or 'no reason given'}"
        for job, run in newest.items()
        if run["outcome"] not in WELL and (run.get("exit_code") in PASSING_EXITS) == transient
    ]


def _describe_overdue(
    look: Look, status: StatusTableReport, now: datetime, limits: HealthLimits
) -> list[str]:
    minutes = limits.overdue // timedelta(minutes=1)
    late = []
    oldest = look.totals.oldest_pending_at if look.totals else None
    if status.due and oldest is not None and now - oldest > limits.overdue:
        late.append(f"a generation has been waiting for a merge for more than {minutes} min")
    merged_at = next((parse_time(r["finished_at"]) for r in look.runs if r["job"] == "merge"), None)
    if merged_at is not None and now - merged_at > limits.overdue:
        late += [
            f"{text} more than {minutes} min after the last merge" for text in _name_lags(status)
        ]
    return late


def _name_lags(status: StatusTableReport) -> list[str]:
    return [
        f"index {index.name} is {index.lag_generations} generations behind"
        for index in status.indexes
        if index.lag_generations
    ]
