"""Reads the documents of `memwal status --json` and `memwal runs --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.report import DONE, HELD, NOTHING_TO_DO, LeaseReport, RunRecord
from memwal_airflow.hooks.redaction import Redactor
from memwal_airflow.processes.process import Output, read_messages

SHARDS_KEPT_MAX = 5_000
NAMED_MAX = 20
WELL = (DONE, NOTHING_TO_DO)

# A run record in JSON's form, checked by RunRecord.
Run = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """Sums over shards; `partly` says that they leave out shards whose values are unknown."""

    generations: int
    bytes: int | None
    rows: int | None
    partly: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """All shards of a table, summed up once because the sums are shown often.

    `broken` and `abandoned` hold a sentence for each of the first such shards.
    """

    shards: int
    pending: Pending
    oldest_pending_at: datetime | None
    broken: tuple[str, ...]
    abandoned: tuple[str, ...] = ()
    abandoned_since: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known of one table.

    `status` and `runs` are from the last good look, whatever came later. `error` is what went wrong
    in the newest look, None if it went well; `error_since` is the time of the first failed look in
    the current row of failures. `unreadable`: memwal answered that the table can't be read.
    `unreachable_since`: its store has not answered since then. `next_try_at`: the table is left
    alone until then. `broken_since` is the time of the first look that found a broken shard.
    `freshness_seconds` is the configured freshness target.
    """

    name: str
    uri: str | None = None
    status: StatusTableReport | None = None
    status_at: datetime | None = None
    totals: Totals | None = None
    runs: tuple[Run, ...] = ()
    runs_unreadable: int = 0
    runs_error: str | None = None
    error: str | None = None
    error_at: datetime | None = None
    error_since: datetime | None = None
    broken_since: datetime | None = None
    unreadable: bool = False
    unreachable_since: datetime | None = None
    next_try_at: datetime | None = None
    looking: bool = False
    freshness_seconds: float | None = None


class Unclear(Exception):
    """The answer is not the document that was expected."""


def read_tables(stdout: bytes, job: str) -> dict[str, Mapping[str, Any]]:
    """Read the tables of a report, by name. Raises Unclear."""
    try:
        document = json.loads(stdout)
        found = {table["table"]: table for table in document["tables"]}
        if document["job"] == job and all(isinstance(name, str) for name in found):
            return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise Unclear(f"the answer is not a {job} report")


def read_answer(output: Output, job: str) -> dict[str, Mapping[str, Any]]:
    """Read the tables of an answer. Raises Unclear, which says what came instead."""
    if output.why is not None:
        raise Unclear(output.why)
    try:
        return read_tables(output.stdout, job)
    except Unclear as unclear:
        lines = read_messages(output.stderr.decode(errors="replace"))
        if output.exit_code and lines:
            raise Unclear(f"memwal {job} (exit code {output.exit_code}): {lines[-1]}") from None
        raise unclear from None


def add_status(look: Look, table: Mapping[str, Any], now: datetime, secrets: Redactor) -> Look:
    """Return the look updated with a status answer."""
    try:
        status = StatusTableReport.model_validate(table)
    except ValidationError as error:
        return add_error(look, f"status not understood: {explain(error)}", now, secrets)
    if status.version is None:
        text = status.error or f"status {status.outcome}"
        if status.unreachable:
            return add_unreachable(look, text, now, secrets)
        return replace(add_error(look, text, now, secrets), unreadable=True)
    totals = _totals(status.shards, now, secrets)
    kept = status.shards[:SHARDS_KEPT_MAX]
    cleaned = {
        "shards": tuple(s.model_copy(update={"error": secrets.clean(s.error)}) for s in kept),
        "error": secrets.clean(status.error),
        "warnings": tuple(secrets.clean(text) for text in status.warnings),
        "backup": status.backup
        and status.backup.model_copy(update={"error": secrets.clean(status.backup.error)}),
    }
    return replace(
        look,
        status=status.model_copy(update=cleaned),
        status_at=now,
        totals=totals,
        uri=secrets.clean(status.uri) or look.uri,
        error=None,
        error_at=None,
        error_since=None,
        broken_since=(look.broken_since or now) if totals.broken else None,
        unreadable=False,
        unreachable_since=None,
    )


def is_broken(shard: ShardStatusReport) -> bool:
    """Whether memwal could not make sense of the shard."""
    return shard.outcome not in WELL


def read_lease(status: StatusTableReport, now: datetime) -> LeaseReport | None:
    """Return the newest claim, marked as expired if it has run out since the look."""
    lease = status.lease
    expires = parse_time(lease.expires_at) if lease else None
    if lease is None or lease.state != HELD or expires is None or expires > now:
        return lease
    return lease.model_copy(update={"state": "expired"})


def parse_time(text: str | None) -> datetime | None:
    """Parse an ISO time with a zone; None for anything else."""
    try:
        time = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _totals(shards: Sequence[ShardStatusReport], now: datetime, secrets: Redactor) -> Totals:
    broken = [shard for shard in shards if is_broken(shard)]
    whole = [shard for shard in shards if not is_broken(shard)]
    sizes = [shard.pending_bytes for shard in whole]
    rows = [shard.pending_rows for shard in whole]
    abandoned = [shard for shard in whole if shard.abandoned]
    idle = [shard.idle_seconds for shard in abandoned if shard.idle_seconds is not None]
    times = [parse_time(shard.oldest_pending_flushed_at) for shard in whole]
    return Totals(
        shards=len(shards),
        pending=Pending(
            generations=sum(len(shard.pending_generations) for shard in whole),
            bytes=_sum(sizes),
            rows=_sum(rows),
            partly=bool(broken) or None in sizes or None in rows,
        ),
        oldest_pending_at=min((time for time in times if time is not None), default=None),
        broken=tuple(
            f"shard {shard.shard_id[:8]}: {secrets.clean(shard.error) or shard.outcome}"
            for shard in broken[:NAMED_MAX]
        ),
        abandoned=tuple(
            f"shard {shard.shard_id[:8]} looks abandoned: {shard.unflushed_wal_entries} WAL "
            "entries are in no generation, so no merge will see them"
            for shard in abandoned[:NAMED_MAX]
        ),
        abandoned_since=now - timedelta(seconds=max(idle)) if idle else None,
    )


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def add_runs(look: Look, table: Mapping[str, Any], secrets: Redactor) -> Look:
    """Return the look updated with a runs answer; unreadable records are counted, not shown."""
    runs, unreadable = read_runs(table, secrets)
    error = table.get("error")
    return replace(
        look,
        runs=runs if table.get("runs") is not None else look.runs,
        runs_unreadable=unreadable,
        runs_error=secrets.clean(str(error)) if error else None,
    )


def read_runs(table: Mapping[str, Any], secrets: Redactor) -> tuple[tuple[Run, ...], int]:
    """Return the records of a runs answer, and how many documents can't be understood."""
    runs = []
    unclear = 0
    found = table.get("runs")
    for record in found if isinstance(found, list) else []:
        try:
            run = RunRecord.model_validate(record)
        except ValidationError:
            unclear += 1
            continue
        runs.append({**run.model_dump(mode="json"), "error": secrets.clean(run.error)})
    unreadable = table.get("unreadable")
    return tuple(runs), unclear + (unreadable if isinstance(unreadable, int) else 0)


def add_error(look: Look, text: str, now: datetime, secrets: Redactor) -> Look:
    """Return the look updated after a failure; the last good data stay."""
    failed = replace(look, error=secrets.clean(text), error_at=now)
    failed = replace(failed, error_since=look.error_since or now)
    return replace(failed, unreadable=False, unreachable_since=None)


def add_unreachable(look: Look, text: str, now: datetime, secrets: Redactor) -> Look:
    """Return the look updated after the table's store gave no answer."""
    failed = add_error(look, text, now, secrets)
    return replace(failed, unreachable_since=look.unreachable_since or now)


def explain(error: ValidationError) -> str:
    """Return the first problem, with its place in the document."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
