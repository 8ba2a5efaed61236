"""What the page shows of a table: what `memwal status` and `memwal runs` reported, and when."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from memwal.errors import MemWalError, find_code
from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.trouble import read_entries
from memwal_airflow.operators.task_runs import build_task_paths

Json = dict[str, Any]

# Worst first.
STATES = BROKEN, UNREACHABLE, UNKNOWN, ATTENTION, OK = (
    *("broken", "unreachable", "unknown", "attention", "ok"),
)

SHARDS_SHOWN_MAX = 1_000
_TREND_RUNS_MAX = 12
_NOTHING = StatusTableReport(table="", outcome="")
_BULKY = {"shards", "indexes", "checkpoints", "cursors", "attention", "warnings", "due_reasons"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known of one table.

    `status` and `runs` are of the last look that was answered, at `status_at`. `error` is why the
    newest look was not, `error_since` the time of the first in the current row of these;
    `unreachable`: memwal answered that the table's store does not.
    """

    name: str
    uri: str | None = None
    status: StatusTableReport | None = None
    status_at: datetime | None = None
    runs: tuple[Json, ...] = ()
    runs_error: str | None = None
    runs_unreadable: int = 0
    error: str | None = None
    error_since: datetime | None = None
    unreachable: bool = False
    looking: bool = False


def add_status(look: Look, table: Mapping[str, Any], now: datetime) -> Look:
    """Return the look updated with a status answer."""
    try:
        status = StatusTableReport.model_validate(table)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        return add_error(look, f"status not understood: {place}: {problem['msg']}", now)
    if status.unreachable:
        text = status.error or "the store gives no answer"
        return replace(add_error(look, text, now), unreachable=True)
    known: dict[str, Any] = {"uri": status.uri or look.uri, "status": status, "status_at": now}
    return replace(look, **known, error=None, error_since=None, unreachable=False)


def add_runs(look: Look, table: Mapping[str, Any]) -> Look:
    """Return the look updated with a runs answer; without records, those known before stay."""
    found = table.get("runs")
    return replace(
        look,
        runs=tuple(found) if isinstance(found, list) else look.runs,
        runs_error=table.get("error"),
        runs_unreadable=table.get("unreadable") or 0,
    )


def add_error(look: Look, text: str, now: datetime) -> Look:
    """Return the look updated after one without an answer; the last good data stay."""
    since = look.error_since or now
    return replace(look, error=text, error_since=since, unreachable=False)


def find_state(look: Look) -> str:
    """The table's state in one word, as `memwal status` tells it."""
    if look.unreachable:
        return UNREACHABLE
    if look.error is not None or look.status is None:
        return UNKNOWN
    if look.status.error is not None:
        return BROKEN
    return ATTENTION if look.status.attention else OK


def list_alerts(look: Look) -> list[Json]:
    """List what is wrong, the worst first, each with what to do about it, as far as known."""
    status, name = look.status or _NOTHING, look.name
    found: list[Json] = []

    def add(state: str, text: str, do: str | None, since: datetime | None = None) -> None:
        found.append({"state": state, "text": text, "do": do, "since": iso(since)})

    if look.error is not None:
        add(find_state(look), look.error, find_advice(look.error, name), look.error_since)
    if status.error is not None:
        add(BROKEN, status.error, find_advice(status.error, name))
    for needed in status.attention:
        # Without a command it only counts the warnings, which follow.
        if needed.command is not None:
            add(ATTENTION, needed.what, f"`{needed.command}`")
    for text in status.warnings:
        add("warning", text, find_advice(text, name))
    return found


def find_advice(text: str, table: str) -> str | None:
    """What to do about a message, by its code, with the table's name in the commands."""
    try:
        return read_entries()[find_code(text)].do.replace("TABLE", shlex.quote(table))
    except (KeyError, MemWalError):  # it has no code, or this installation no page about codes
        return None


def show_line(look: Look) -> Json:
    """Show one table as a line of the list."""
    status = look.status or _NOTHING
    alerts = list_alerts(look)
    backlogs = [run.get("backlog") or {} for run in reversed(look.runs[:_TREND_RUNS_MAX])]
    trend = [b.get(f"generations_{when}") for b in backlogs for when in ("before", "after")]
    return {
        **status.model_dump(mode="json", exclude=_BULKY),
        "name": look.name,
        "uri": look.uri,
        "state": find_state(look),
        "why": [alert["text"] for alert in alerts[:3]],
        "looked_at": iso(look.status_at),
        "looking": look.looking,
        "problem": look.error,
        "problem_since": iso(look.error_since),
        "last_run": look.runs[0] if look.runs else None,
        "trend": [generations for generations in trend if generations is not None],
    }


def show_table(look: Look) -> Json:
    """Show everything about one table; of very many shards, those that matter most."""
    status = look.status or _NOTHING
    shards = sorted(status.shards, key=_rank)[:SHARDS_SHOWN_MAX]
    lists = {"indexes", "checkpoints", "cursors"}
    return {
        **show_line(look),
        **status.model_dump(mode="json", include=lists),
        "alerts": list_alerts(look),
        "num_shards": len(status.shards),
        "shards": [shard.model_dump(mode="json") for shard in shards],
        "runs": [_show_run(run) for run in look.runs],
        "runs_error": look.runs_error,
        "runs_unreadable": look.runs_unreadable,
    }


def _rank(shard: ShardStatusReport) -> tuple[bool, bool, int, str]:
    is_well = shard.error is None and not shard.stuck and not shard.holes
    return is_well, not shard.abandoned, -len(shard.pending_generations), shard.shard_id


def _show_run(run: Json) -> Json:
    """Show a run record, with the addresses of the task that started it, below Airflow's root."""
    task = run.get("airflow")
    return {**run, "airflow": {**task, **build_task_paths(task, "")} if task else None}


def iso(time: datetime | None) -> str | None:
    """Format a time as ISO text, to the millisecond; None for None."""
    return None if time is None else time.isoformat(timespec="milliseconds")
