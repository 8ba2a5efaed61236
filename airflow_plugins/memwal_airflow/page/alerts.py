"""What is wrong with a table, since when, what to do, and whether it meets its freshness target.

What to do is taken from the page about messages that comes with memwal.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from memwal.errors import MemWalError
from memwal.trouble import read_page
from memwal_airflow.page.answers import WELL, Look, Run, parse_time
from memwal_airflow.page.health import (
    ABANDONED,
    DUE,
    HELD,
    LAGGING,
    Finding,
    Health,
    find_late_since,
)
from memwal_airflow.page.plots import iso

ALERTS_MAX = 40
Json = dict[str, Any]

# Maps what a message without a code says, after the state of its table, to the beginning of the
# heading of its entry; the first match counts.
HEADINGS = (
    (r"^unreachable: |no answer within", "page: unreachable"),
    (r"the disk is full", "No space left on device"),
    (r"access refused|Permission denied", "access refused"),
    (r"clock skew: the lease of", "clock skew"),
    (r"the lease is held by", "exit 4, the lease is held by"),
    (r"the lease could not be given back", "the lease could not be given back"),
    (r"the table was restored from a backup", "our writer … was fenced: the table was restored"),
    (r"was fenced: a writer|another writer claimed", "our writer … was fenced; another writer"),
    (r"waits in two shards", "a warning that a key waits in two shards"),
    (r"can't be written; the first:", "exit 2, ingest: a value"),
    (r"looks abandoned", "status: shard"),
    (r"the worker process died in every", "the worker process died"),
    (r"was ended by", "the worker process N was ended"),
    (
        r"waiting for a merge for more than|the freshness target of",
        "page: a generation has been waiting",
    ),
    (r"no backup yet|the last backup is|its backups can't be read", "page: no backup"),
    (r"min after the last merge", "page: an index is generations behind"),
)
EXITS = "When something fails"
_CODE = re.compile(r"\((MW-[A-Z]\d\d)\)")
_ENTRY = re.compile(r"^### ([^\n]+)\n.*?^- \*\*Do\*\*: (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_SHELL_SAFE = re.compile(r"[\w.][\w.-]*")


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
        if ABANDONED not in text:
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


def find_advice(text: str, exit_code: int | None, table: str) -> str | None:
    """Return what to do about a message, by its code, its text, or the run's exit code.

    None if nothing is known. A message that quotes another one ends with its own code.
    """
    codes, entries = _CODE.findall(text), read_entries()
    begins = next((begins for pattern, begins in HEADINGS if re.search(pattern, text)), None)
    if codes:
        found = entries.get(codes[-1])
    elif begins is None:
        found = read_exits().get(str(exit_code or ""))
    else:
        found = next((do for heading, do in entries.items() if heading.startswith(begins)), None)
    return name_table(found, table) if found else None


def name_table(advice: str, table: str) -> str:
    """Put the table's name into the commands, if a shell takes the name unquoted."""
    return advice.replace("TABLE", table) if _SHELL_SAFE.fullmatch(table) else advice


@cache
def read_entries() -> dict[str, str]:
    """Read what to do, by the heading of each entry: a code, or what a message says."""
    found = _ENTRY.findall(_read_page())
    return {heading: _strip(" ".join(do.split())) for heading, do in found}


@cache
def read_exits() -> dict[str, str]:
    """Read what to do about each exit code; links become their texts."""
    section = _read_page().partition(f"\n## {EXITS}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return {_strip(row[0]): _strip(row[-1]) for row in cells}


def _read_page() -> str:
    # Without it there is no advice; what is wrong is shown nevertheless.
    try:
        return read_page()
    except MemWalError:
        return ""


def _strip(cell: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip()
