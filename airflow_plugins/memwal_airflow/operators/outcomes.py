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

_VERSIONS = ("version_before", "version_after")
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
    """Summarize the report for XCom, bounded whatever the number of shards, without secrets.

    For a backfill or `maintain`, a table has each job's share of it as well.
    """
    if report is None:
        return {"outcome": None, "tables": []}
    tables = []
    for table in report.get("tables", ()):
        jobs = [{"job": job["job"], **_summarize(job)} for job in table.get("jobs", ())]
        tables.append({**_summarize(table), **({"jobs": jobs} if jobs else {})})
    found = {
        **{name: report.get(name) for name in ("job", "outcome", "seconds", "error")},
        "dry_run": report.get("dry_run") is True,
        "tables": tables,
    }
    cleaned: dict[str, Any] = change_texts(found, lambda text: clean_line(text, secrets))
    return cleaned


def _summarize(table: Mapping[str, Any]) -> dict[str, Any]:
    marks = read_watermark(table)
    outcome, before, after = (table.get(name) for name in ("outcome", *_VERSIONS))
    return {
        **{name: table.get(name) for name in ("table", "outcome", "error", *_VERSIONS)},
        **{name: table[name] for name in _COUNTS if name in table},
        "counts": count_work(table),
        # A table may have been changed even if the job failed on it.
        "progress": outcome in (DONE, PARTIAL) or (None not in (before, after) and before != after),
        "watermark": dict(sorted(marks.items())[:WATERMARK_SHARDS_MAX]),
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
        return {shard: to for job in table["jobs"] for shard, to in read_watermark(job).items()}
    shards = [shard for shard in table.get("shards", ()) if shard.get("to_generation") is not None]
    if shards:
        return {shard["shard_id"]: shard["to_generation"] for shard in shards}
    covered = [index.get("caught_up", {}) for index in table.get("indexes", ())]
    return {shard: min(marks.get(shard, 0) for marks in covered) for shard in set().union(*covered)}


def count_work(table: Mapping[str, Any]) -> dict[str, int]:
    """Count what was done on a table, under the report's names; a merge reports it by shard."""
    shards = table.get("shards", ())
    found = {
        name: sum(part.get(name) or 0 for part in ([table] if name in table else shards))
        for name in _MEASURES
    }
    found["commits"] -= sum(shard.get("commits_shared") or 0 for shard in shards)
    return {name: count for name, count in found.items() if count > 0}


def _is_held(exit_code: int, report: Mapping[str, Any] | None) -> bool:
    """Whether the only obstacle is somebody else at work, with nothing wrong with the tables.

    Never so for an ingest: other writers took its shards, and a new try would take them back.
    """
    if report is None or report.get("job") == "ingest":
        return False
    if exit_code == EXIT_HELD:
        return True
    parts = [part for table in report["tables"] for part in table.get("jobs") or [table]]
    outcomes = {part.get("outcome") for part in parts}
    return HELD in outcomes and outcomes <= {DONE, NOTHING_TO_DO, HELD}


def _error(report: Mapping[str, Any] | None) -> str | None:
    """Say what is wrong, naming each table once."""
    if report is None or report.get("error"):
        return None if report is None else str(report["error"])
    found = [(t["table"], t["error"]) for t in report.get("tables", ()) if t.get("error")]
    return "; ".join(e if e.startswith(f"{table}: ") else f"{table}: {e}" for table, e in found)
