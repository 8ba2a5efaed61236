"""What is wrong with a table, since when, what to do, and whether it meets its freshness target."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from memwal_airflow.page.advice import find_advice
from memwal_airflow.page.answers import WELL, Look, Run, parse_time
from memwal_airflow.page.health import DUE, HELD, LAGGING, Finding, Health, find_late_since
from memwal_airflow.page.plots import iso

ALERTS_MAX = 40
Json = dict[str, Any]


def list_alerts(look: Look, health: Health) -> list[Json]:
    """List the findings that are trouble, the worst first, then memwal's other warnings."""
    found = [f for f in health.findings if f.state not in (DUE, HELD)]
    if look.status is None and look.error is None:
        return []
    known = " ".join(finding.text for finding in found)
    if look.error is not None and look.error not in known:
        text = f"the last look failed: {look.error}"
        found.append(Finding(state=LAGGING, text=text, since=look.error_since))
    for text in look.status.warnings if look.status and not look.unreadable else ():
        # Abandoned shards are among the findings already.
        if "looks abandoned" not in text:
            found.append(Finding(state="warning", text=text))
    compaction = look.status.compaction if look.status and not look.unreadable else None
    if compaction and (advice := compaction.describe("memwal compaction TABLE")):
        found.append(Finding(state="warning", text=advice))
    return [
        {
            "state": finding.state,
            "text": finding.text,
            "since": iso(finding.since),
            "do": find_advice(f"{finding.state}: {finding.text}", finding.exit_code, look.name),
        }
        for finding in dict.fromkeys(found[:ALERTS_MAX])
    ]


def show_target(look: Look, now: datetime) -> Json | None:
    """Return the freshness target and how it is met; None if none is configured.

    `kept` counts those of the `merges` that provably left nothing waiting for longer than the
    target. For any other merge, nothing records how old the generations were that it found.
    """
    if look.freshness_seconds is None:
        return None
    target = timedelta(seconds=look.freshness_seconds)
    merges = [run for run in look.runs if run["job"] == "merge" and run["outcome"] in WELL]
    pairs = list(pairwise(merges))
    return {
        "target_seconds": look.freshness_seconds,
        "late_since": iso(find_late_since(look, now)),
        "merges": len(pairs),
        "kept": sum(_was_kept(newer, older, target) for newer, older in pairs),
        "since": pairs[-1][1]["finished_at"] if pairs else None,
    }


def _was_kept(newer: Run, older: Run, target: timedelta) -> bool:
    """Whether all that a merge found was flushed after the previous merge began, and in time."""
    began, ended = parse_time(older["started_at"]), parse_time(newer["finished_at"])
    left = (older.get("backlog") or {}).get("generations_after")
    return left == 0 and began is not None and ended is not None and ended - began <= target
