"""Maps a job's exit code and report to what Airflow does about it; nothing else decides this.

| exit code | Airflow |
|---|---|
| 0 done | success |
| 0 nothing to do | skipped |
| 4 lease held or race lost, 6 if nothing else is wrong | looked at later, in the same try |
| 1 unexpected or store unreachable, 4 of an ingest, killed, ended | retry |
| 3 a condition of `status --fail-if` holds: not one of our jobs, and may pass with time | retry |
| 2 usage, 5 guard, 6 partly failed, 7 unsupported, 8 corruption | failed, no retry |

A partly failed job is not retried at once: what could be done is done, and the next scheduled run
tries the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from memwal.errors import EXIT_HELD, EXIT_PARTIAL, LASTING_EXITS
from memwal.report import DONE, HELD, NOTHING_TO_DO, PARTIAL
from memwal_airflow.assets.lineage import KEY, outline
from memwal_airflow.hooks.redaction import change_texts, clean_line
from memwal_airflow.processes.process import Output

WATERMARK_SHARDS_MAX = 200
NAME_CHARACTERS_MAX = 200

_COUNTS = ("rows_written", "rows_rejected", "merges")
"""What an ingest did, for the tasks that follow it."""
_MEASURES = ("generations", "commits", "rows_inserted", "rows_updated", "rows_deleted",
             "rows_written", "rows_rejected", "bytes_read", "bytes_written", "bytes_rewritten",
             "bytes_freed", "dropped", "deleted")  # fmt: skip
_NO_RETRY = LASTING_EXITS | {EXIT_PARTIAL}


class Verdict(StrEnum):
    """What Airflow does about a job's end."""

    SUCCESS = "success"
    SKIP = "skip"
    HELD = "held"
    RETRY = "retry"
    FAIL = "fail"


def judge(
    ended: Output,
    report: Mapping[str, Any] | None,
    last_line: str = "",
    secrets: Sequence[str] = (),
) -> tuple[Verdict, str]:
    """Return what to do, and one line without secrets that says why.

    The `last_line` of the log stands in for a missing report.
    """
    decision, text = _decide(ended, report, last_line)
    return decision, clean_line(text, secrets)


def _decide(ended: Output, report: Mapping[str, Any] | None, last_line: str) -> tuple[Verdict, str]:
    code = ended.exit_code
    if code is None:
        return Verdict.RETRY, f"the job {ended.why}" if ended.started else str(ended.why)
    if code == 0 and report is not None:
        if report.get("outcome") == NOTHING_TO_DO:
            return Verdict.SKIP, "nothing to do"
        return Verdict.SUCCESS, str(report.get("outcome"))
    if code == 0:
        # It may have run or not; if it did, a second run finds nothing to do.
        return Verdict.RETRY, "the job ended well but left no report that can be read"
    text = f"exit code {code}: {_error(report) or last_line or 'it left neither report nor log'}"
    if code in (EXIT_HELD, EXIT_PARTIAL) and _is_held(code, report):
        return Verdict.HELD, text
    return (Verdict.FAIL if code in _NO_RETRY else Verdict.RETRY), text


def summarize(report: Mapping[str, Any] | None, secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Summarize the report for XCom, bounded whatever the number of shards, without secrets."""
    if report is None:
        return {"outcome": None, "tables": []}
    found = {
        **_pick(report, "job", "outcome", "seconds", "error"),
        "dry_run": report.get("dry_run") is True,
        "tables": [_table_and_jobs(table) for table in _list(report.get("tables"))],
    }
    cleaned: dict[str, Any] = change_texts(found, lambda text: clean_line(text, secrets))
    return cleaned


def _table_and_jobs(table: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize a table, and for a backfill or `maintain` each job's share of it as well."""
    jobs = [{**_pick(job, "job"), **_table(job)} for job in _list(table.get("jobs"))]
    return {**_table(table), **({"jobs": jobs} if jobs else {})}


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    marks = read_watermark(table)
    shown = dict(sorted(marks.items())[:WATERMARK_SHARDS_MAX])
    return {
        **_pick(table, "table", "outcome", "error", "version_before", "version_after"),
        **{name: _plain(table[name]) for name in _COUNTS if name in table},
        "counts": count_work(table),
        "progress": _has_progress(table),
        "watermark": shown,
        "watermark_shards": len(marks),
        KEY: outline(table),
    }


def assume_moved(found: Mapping[str, Any]) -> None:
    """Count each table of a later try as moved that could be looked at.

    An earlier try may have moved it before its worker was lost, so the version before is unknown.
    At worst, whoever acts on the event finds nothing to do.
    """
    for table in found["tables"]:
        for part in (table, *table.get("jobs", ())):
            if part["outcome"] == NOTHING_TO_DO or part["version_after"] is not None:
                part.update(progress=True, version_before=None)


def read_watermark(table: Mapping[str, Any]) -> dict[str, int]:
    """Return the generation of each shard that the job brought the table to.

    A merge reports what is merged, an index catch-up what each of its indexes covers, and
    `maintain` what its jobs report.
    """
    if "jobs" in table:
        marks: dict[str, int] = {}
        for job in _list(table["jobs"]):
            marks.update(read_watermark(job))
        return marks
    merged = {
        str(shard.get("shard_id"))[:NAME_CHARACTERS_MAX]: to
        for shard in _list(table.get("shards"))
        if (to := _generation(shard.get("to_generation"))) is not None
    }
    if merged:
        return merged
    found = [index.get("caught_up") for index in _list(table.get("indexes"))]
    covered = [marks if isinstance(marks, Mapping) else {} for marks in found]
    shards = set().union(*covered) if covered else set()
    return {
        shard[:NAME_CHARACTERS_MAX]: min(_generation(marks.get(shard)) or 0 for marks in covered)
        for shard in shards
    }


def count_work(table: Mapping[str, Any]) -> dict[str, int]:
    """Count what was done on a table, under the report's names; a merge reports it by shard."""
    shards = _list(table.get("shards"))
    found = {
        name: sum(
            _generation(part.get(name)) or 0 for part in ([table] if name in table else shards)
        )
        for name in _MEASURES
    }
    found["commits"] -= sum(_generation(shard.get("commits_shared")) or 0 for shard in shards)
    return {name: count for name, count in found.items() if count > 0}


def _generation(value: Any) -> int | None:
    """Return a generation's number or a count; None for anything else."""
    return value if type(value) is int and 0 <= value < 2**64 else None


def _has_progress(table: Mapping[str, Any]) -> bool:
    """Whether the table was changed, which may be even if the job failed on it."""
    if table.get("outcome") in (DONE, PARTIAL):
        return True
    before, after = table.get("version_before"), table.get("version_after")
    return before is not None and after is not None and before != after


def _is_held(exit_code: int, report: Mapping[str, Any] | None) -> bool:
    """Whether the only obstacle is somebody else at work, with nothing wrong with the tables.

    Never so for an ingest: other writers took its shards, and a new try would take them back.
    """
    if report is None or report.get("job") == "ingest":
        return False
    if exit_code == EXIT_HELD:
        return True
    tables = _list(report.get("tables"))
    parts = [part for table in tables for part in _list(table.get("jobs")) or [table]]
    outcomes = {part.get("outcome") for part in parts}
    return HELD in outcomes and outcomes <= {DONE, NOTHING_TO_DO, HELD}


def _error(report: Mapping[str, Any] | None) -> str | None:
    if report is None:
        return None
    if report.get("error"):
        return str(report["error"])
    found = [
        _name(str(table.get("table")), str(table["error"]))
        for table in _list(report.get("tables"))
        if table.get("error")
    ]
    return "; ".join(found) or None


def _name(table: str, error: str) -> str:
    """Say what is wrong, naming its table once."""
    return error if error.startswith(f"{table}: ") else f"{table}: {error}"


def _pick(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: _plain(part.get(name)) for name in names}


def _plain(value: Any) -> Any:
    """Return a plain JSON value as it is, and anything else as text, which can be cut."""
    is_number = type(value) is int and abs(value) < 2**64
    return value if is_number or value is None or isinstance(value, bool | float) else str(value)


def _list(value: Any) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
