"""What `memwal audit` reports."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, prose, words
from memwal.report import AuditEntry, AuditItem, AuditLink, Section, TableReport
from memwal.text import count_of, name_some

_ITEMS_SHOWN_MAX = 20
_FINDINGS_SHOWN_MAX = 20


class AuditDocumentReport(AuditEntry):
    """A document of the trail. `items` are those asked for; `items_in_all` counts all it has.

    `state` is outcome; of an intent, unfinished (no outcome closes it: the run was killed, or goes
    on) or failed (its outcome does not say what of it was done).
    """

    state: str
    items: tuple[AuditItem, ...]
    items_in_all: int


class AuditTableReport(TableReport):
    """One table of `audit`, newest first. `searched` counts the documents that were read.

    `unreadable` are the numbers of those that could not be.
    """

    trail: str
    searched: int = 0
    documents: tuple[AuditDocumentReport, ...] = ()
    unreadable: tuple[int, ...] = ()


class Finding(Section):
    """Something that is wrong with a trail, at a document."""

    code: str
    number: int
    detail: str
    error: Any = Field(exclude=True, repr=False)


class UnfinishedReport(AuditEntry):
    """An intent that no outcome closes. `ended`: its process ran on this host, and is gone."""

    items: int
    ended: bool


class AuditVerifyReport(TableReport):
    """One trail of `audit verify`. `newest` is for keeping elsewhere: nobody can alter what comes
    before it unnoticed. `recorded` counts the run records in the table that name a document.
    """

    trail: str
    documents: int = 0
    newest: AuditLink | None = None
    recorded: int | None = None
    findings: tuple[Finding, ...] = ()
    unfinished: tuple[UnfinishedReport, ...] = ()


ITEMS: tuple[Column[AuditItem], ...] = (
    words("  ", lambda item: "  "),
    words("action", lambda item: item.action),
    words("kind", lambda item: item.kind),
    words("done", lambda item: {True: "yes", False: "no", None: "?"}[item.done]),
    numbers("size", lambda item: "-" if item.bytes is None else format_size(item.bytes)),
    prose("path", lambda item: item.path),
    prose("evidence", lambda item: _describe(item)),
)


def show_table(report: AuditTableReport | AuditVerifyReport) -> list[RenderableType]:
    """Render the documents that were found, or what is wrong with the trail."""
    if isinstance(report, AuditVerifyReport):
        return _show_verified(report)
    parts: list[RenderableType] = []
    for document in report.documents:
        parts += _show_document(document)
    if not report.documents:
        there = count_of(report.searched, "document")
        parts.append(Text(f"  nothing in {there} of {report.trail}", style="dim"))
    if report.unreadable:
        numbers_ = ", ".join(map(str, report.unreadable[:_FINDINGS_SHOWN_MAX]))
        text = f"  documents that can't be read: {numbers_} (memwal audit verify)"
        parts.append(Text(text, style="yellow"))
    return parts


def _show_document(document: AuditDocumentReport) -> list[RenderableType]:
    ended = f"{document.outcome}" if document.state == "outcome" else document.state
    style = "red" if document.state != "outcome" else "bold"
    versions = ""
    if document.version_before is not None:
        versions = f", version {document.version_before} -> {document.version_after}"
    counted = Counter((item.action, item.kind) for item in document.items)
    counts = ", ".join(f"{action} {kind}: {count}" for (action, kind), count in counted.items())
    lines: list[RenderableType] = [
        Text(f"  {document.number}  {document.at}  {document.job}  {ended}{versions}", style=style),
        Text(f"    run {document.run_id} by {document.holder}"),
    ]
    if document.airflow is not None:
        lines.append(Text(f"    Airflow: {document.airflow.describe()}"))
    if document.asked:
        asked = ", ".join(f"{name}={value}" for name, value in document.asked.items())
        lines.append(Text(f"    asked: {asked}"))
    if document.items_in_all > len(document.items):
        counts = f"{counts or 'none'} (of {count_of(document.items_in_all, 'item')})"
    lines.append(Text(f"    {counts}"))
    lines.append(build_table(document.items[:_ITEMS_SHOWN_MAX], ITEMS))
    if len(document.items) > _ITEMS_SHOWN_MAX:
        more = len(document.items) - _ITEMS_SHOWN_MAX
        lines.append(Text(f"    and {more} more (--json has all)", style="dim"))
    return lines


def _describe(item: AuditItem) -> str:
    first, last = item.generations or (None, None)
    facts = (
        f"version {item.version}" if item.version is not None else "",
        f"generations {first} to {last}" if first is not None else "",
        count_of(len(item.fragments), "fragment") if item.fragments else "",
        item.reason or "",
        f"failed: {item.error}" if item.error else "",
    )
    return "; ".join(filter(None, facts))


def _show_verified(report: AuditVerifyReport) -> list[RenderableType]:
    if report.newest is None and not report.findings:
        return [Text(f"  no documents in {report.trail}", style="dim")]
    parts = [Text(f"  {count_of(report.documents, 'document')} in {report.trail}")]
    if report.newest is not None:
        parts.append(Text(f"  newest: {report.newest.number} {report.newest.sha256}"))
    if report.recorded is not None:
        parts.append(Text(f"  compared with {count_of(report.recorded, 'run record')}"))
    lines = [f"{found.detail} ({found.code})" for found in report.findings]
    shown = name_some(lines, _FINDINGS_SHOWN_MAX, "findings")
    parts += [Text(f"  {line}", style="red") for line in shown]
    for left in report.unfinished:
        ended = "its process is gone" if left.ended else "it was killed, or goes on elsewhere"
        text = (
            f"  {left.number}: {left.job} of {left.at}, run {left.run_id}, has no outcome: {ended}"
        )
        parts.append(Text(text, style="yellow"))
    return list(parts)
