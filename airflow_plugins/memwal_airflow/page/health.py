"""How a table is doing, in one word and a few sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from memwal.errors import EXIT_REFUSED, EXIT_USAGE, PASSING_EXITS
from memwal.jobs.status.report import StatusTableReport, find_late_backup
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

ABANDONED = "looks abandoned"
"""What the warnings of shards say whose rows no writer will flush."""

MARKS = ("late", "failing", "abandoned", "held")
REASONS_MAX = 8
# Nobody may ask for these again; their refusal would stay for good.
_BY_HAND = ("init", "checkpoint", "quiesce", "rescue", "restore", "repair", "erase", "schema")


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthLimits:
    """Limits for judging a table.

    `overdue` is how long work may wait before the table counts as lagging, `stale` how old data may
    get before they no longer count.
    """

    overdue: timedelta = timedelta(minutes=30)
    stale: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One reason for a state, as a sentence for people; `since` is None if unknown.

    `exit_code` is that of the run with the trouble; `mark` is one of MARKS, whatever the state.
    """

    state: str
    text: str
    since: datetime | None = None
    exit_code: int | None = None
    mark: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health of a table: `state` is one of STATES, `findings` say why, the worst first."""

    state: str
    findings: tuple[Finding, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The texts of the first few findings."""
        unique = tuple(dict.fromkeys(finding.text for finding in self.findings))
        if len(unique) <= REASONS_MAX:
            return unique
        return (*unique[: REASONS_MAX - 1], f"and {len(unique) - REASONS_MAX + 1} more")

    @property
    def marks(self) -> tuple[str, ...]:
        """All of MARKS that apply, whatever the state."""
        found = {finding.mark for finding in self.findings}
        return tuple(mark for mark in MARKS if mark in found)


def judge_health(look: Look, now: datetime, limits: HealthLimits) -> Health:
    """Judge the state of a table.

    broken   memwal can't read the table or a shard of it, or a job's newest run failed in a way
             that the next one won't put right
    unreachable
             the table's store gives no answer
    unknown  no data, or only old data
    lagging  work has been waiting for longer than `overdue` or the freshness target, a job's newest
             run failed, a shard looks abandoned, or the last backup is too old
    due      a merge is due, or an index is behind
    held     nothing is wrong and a job holds the lease right now
    ok       none of these
    """
    status = look.status
    if look.unreachable_since is not None:
        why = look.error or "the store gives no answer"
        return _find_one(UNREACHABLE, why, look.unreachable_since)
    if look.unreadable:
        why = look.error or "the table can't be read"
        return _find_one(BROKEN, why, look.error_since, "failing")
    if status is None or look.status_at is None:
        return _find_one(UNKNOWN, look.error or "not looked at yet", look.error_since)
    if now - look.status_at > limits.stale:
        why = look.error or "nobody has looked since"
        return _find_one(UNKNOWN, f"the data are old: {why}", look.status_at)
    found = [*_name_failed_runs(look.runs), *_describe_late(look, status, now, limits)]
    if status.error:
        found = [*_name(BROKEN, [status.error], look.broken_since, "failing"), *found]
    idle = [shard.idle_seconds or 0.0 for shard in status.shards if shard.abandoned]
    abandoned = [text for text in status.warnings if ABANDONED in text]
    found += _name(LAGGING, abandoned, look.find_time(max(idle, default=None)), "abandoned")
    found += _name(LAGGING, filter(None, [find_late_backup(status)]))
    found += _name(DUE, [*status.due_reasons, *_name_lags(status)])
    if status.due and not any(finding.state == DUE for finding in found):
        found += _name(DUE, ["a merge is due"])
    lease = read_lease(status, now)
    if lease and lease.state == HELD:
        text = f"{lease.job} is at work: {lease.holder.partition(' (')[0]}"
        found += _name(HELD, [text], parse_time(lease.acquired_at), "held")
    found.sort(key=lambda finding: STATES.index(finding.state))
    return Health(state=found[0].state if found else OK, findings=tuple(found))


def _find_one(state: str, text: str, since: datetime | None, mark: str | None = None) -> Health:
    return Health(state=state, findings=tuple(_name(state, [text], since, mark)))


def _name(
    state: str, texts: Iterable[str], since: datetime | None = None, mark: str | None = None
) -> list[Finding]:
    return [Finding(state=state, text=text, since=since, mark=mark) for text in texts]


def _name_failed_runs(runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield a finding for each job whose newest run failed; `runs` has the newest first.

    The trouble dates from the first run of the current row of failures.
    """
    for job in dict.fromkeys(run["job"] for run in runs):
        of_job = (run for run in runs if run["job"] == job)
        failed = list(takewhile(lambda run: run["outcome"] not in WELL, of_job))
        if failed and not _is_asked_wrong(job, failed[0].get("exit_code")):
            run, code = failed[0], failed[0].get("exit_code")
            yield Finding(
                state=LAGGING if code in PASSING_EXITS else BROKEN,
                text=f"the last {job} {run['outcome']}: {run.get('error') or 'no reason given'}",
                since=parse_time(failed[-1]["finished_at"]),
                exit_code=code,
                mark="failing",
            )


def _is_asked_wrong(job: str, exit_code: int | None) -> bool:
    """Whether a request was at fault, and not the table, which stayed as it was."""
    return (job, exit_code) == ("ingest", EXIT_USAGE) or (
        job in _BY_HAND and exit_code in (EXIT_USAGE, EXIT_REFUSED)
    )


def _describe_late(
    look: Look, status: StatusTableReport, now: datetime, limits: HealthLimits
) -> Iterator[Finding]:
    minutes = limits.overdue // timedelta(minutes=1)
    oldest = look.oldest_pending_at
    if status.due and oldest is not None and now - oldest > limits.overdue:
        text = f"a generation has been waiting for a merge for more than {minutes} min"
        yield Finding(state=LAGGING, text=text, since=oldest, mark="late")
    if late_since := find_late_since(look, now):
        target = f"the freshness target of {look.freshness_seconds:g} s"
        text = f"the oldest generation waits for longer than {target}"
        yield Finding(state=LAGGING, text=text, since=late_since, mark="late")
    merged_at = next((parse_time(r["finished_at"]) for r in look.runs if r["job"] == "merge"), None)
    if merged_at is not None and now - merged_at > limits.overdue:
        texts = (f"{t} more than {minutes} min after the last merge" for t in _name_lags(status))
        yield from _name(LAGGING, texts, merged_at, "late")


def find_late_since(look: Look, now: datetime) -> datetime | None:
    """Return when the oldest generation exceeded the freshness target; None if it has not."""
    oldest = look.oldest_pending_at
    if oldest is None or look.freshness_seconds is None:
        return None
    since = oldest + timedelta(seconds=look.freshness_seconds)
    return since if since < now else None


def _name_lags(status: StatusTableReport) -> list[str]:
    return [
        f"index {index.name} is {index.lag_generations} generations behind"
        for index in status.indexes
        if index.lag_generations
    ]
