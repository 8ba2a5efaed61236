"""Reads the documents of `memwal status --json` and `memwal runs --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.report import DONE, HELD, NOTHING_TO_DO, LeaseReport, RunRecord
from memwal_airflow.hooks.redaction import Redactor
from memwal_airflow.processes.process import Output, read_messages

SHARDS_KEPT_MAX = 5_000
WELL = (DONE, NOTHING_TO_DO)

# A run record in JSON's form, checked by RunRecord.
Run = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known of one table.

    `status` and `runs` are from the last good look, whatever came later. `error` is what went wrong
    in the newest look, None if it went well; `error_since` is the time of the first failed look in
    the current row of failures. `unreadable`: memwal answered that the table can't be read.
    `unreachable_since`: its store has not answered since then. `next_try_at`: the table is left
    alone until then. `broken_since` is the time of the first look that found a broken shard.
    `num_shards` counts those that `status` leaves out, too.
    `freshness_seconds` is the configured freshness target.
    """

    name: str
    uri: str | None = None
    status: StatusTableReport | None = None
    status_at: datetime | None = None
    num_shards: int | None = None
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

    @property
    def oldest_pending_at(self) -> datetime | None:
        """When the oldest pending generation was flushed; None if there is none, or if unknown."""
        return None if self.status is None else self.find_time(self.status.oldest_pending_seconds)

    def find_time(self, seconds: float | None) -> datetime | None:
        """When it was that many seconds before the last good look; None for nothing."""
        return self.status_at - timedelta(seconds=seconds) if seconds and self.status_at else None


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
        num_shards=len(status.shards),
        uri=secrets.clean(status.uri) or look.uri,
        error=None,
        error_at=None,
        error_since=None,
        broken_since=(look.broken_since or now) if status.error else None,
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
