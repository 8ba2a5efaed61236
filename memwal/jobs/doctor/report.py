"""What `memwal doctor` reports."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, prose, words
from memwal.report import JobReport, Section

# What each check proves, and what to do if it fails.
MEANINGS = {
    "put_if_absent": (
        "a WAL entry, manifest or commit never replaces another's",
        "let no MemWAL writer near it: upgrade or reconfigure the store, or use one that keeps "
        "If-None-Match",
    ),
    "put_race": (
        "of writers that meet, one wins",
        "as put_if_absent: the store looks and then stores, which two can do at once",
    ),
    "read_after_put": (
        "who reads after a commit sees it",
        "look for a cache or a mirror before the store; go to the store itself",
    ),
    "list_after_put": (
        "shards and versions are found at once",
        "use a store, or a gateway of it, whose lists are consistent",
    ),
    "range_read": (
        "parts of files are the right parts",
        "memwal asks by offsets instead where it can; prove your other readers, or upgrade",
    ),
    "delete": ("garbage goes, and only that", "look for a lock or a retention rule on the bucket"),
    "clock": (
        "ages of files are what they seem",
        "set the clocks of this host and the store (NTP): grace and retention go by them",
    ),
    "permissions": (
        "what a merge needs, and garbage",
        "allow these credentials what is refused, below the table's folder; without delete, merge "
        "here and run garbage with others",
    ),
    "lance": ("Lance works with these options", "see what it says; its options are memwal's"),
}
_WORDS = {
    True: Text("ok", style="green"),
    False: Text("FAILED", style="red"),
    None: Text("-", style="yellow"),
}
CHECKS: tuple[Column[CheckReport], ...] = (
    words("check", lambda check: check.name),
    words("", lambda check: _WORDS[check.ok]),
    prose("proves", lambda check: MEANINGS[check.name][0]),
    prose("found", lambda check: check.detail),
)


class CheckReport(Section):
    """One check. `ok` is None where it was not tried, or showed nothing either way."""

    name: str
    ok: bool | None
    detail: str


class DoctorReport(JobReport):
    """The document. `scratch` is where it tried; `left` objects there could not be deleted."""

    uri: str
    checks: tuple[CheckReport, ...]
    scratch: str | None = None
    left: int = 0


def show_job(report: DoctorReport) -> list[RenderableType]:
    """Render each check and what it proves, advice for failed ones, and what was not deleted."""
    advice = [
        Text(f"{check.name}: {MEANINGS[check.name][1]}", style="yellow")
        for check in report.checks
        if check.ok is False
    ]
    left = []
    if report.left:
        text = f"{report.left} small objects could not be deleted and stay below {report.scratch}"
        left = [Text(f"{text}; a later doctor that may delete removes them", style="yellow")]
    return [Text(report.uri, style="bold"), build_table(report.checks, CHECKS), *advice, *left]
