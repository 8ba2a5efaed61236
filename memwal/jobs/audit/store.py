"""Reads trails: what they say, and whether they are whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from memwal.errors import Corruption
from memwal.jobs.audit.plan import Chain, Finding, Line, Wanted, is_wanted
from memwal.jobs.audit.report import (
    AuditDocumentReport,
    AuditTableReport,
    AuditVerifyReport,
    FindingReport,
    UnfinishedReport,
)
from memwal.report import DONE, AuditEntry
from memwal.store.records.audit import FoundDocument, StoredTrail
from memwal.store.records.process import is_gone

_ERRORS_NAMED_MAX = 3


# ---- what a trail says


@dataclass(kw_only=True, slots=True)
class _Found:
    """What was found so far, from the newest document on; `closed` intents have their outcome."""

    documents: list[AuditDocumentReport] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    searched: int = 0


def search_trail(
    name: str, trail: StoredTrail, wanted: Wanted, others: Set[str] | None, limit: int
) -> AuditTableReport:
    """What the trail of a table says, newest first. `others` are shards left out for a key."""
    found = _Found()
    for document in trail.read(trail.numbers()[::-1]):
        found.searched += 1
        _take(document, wanted, found)
        if len(found.documents) >= limit:
            break
    return AuditTableReport(
        table=name,
        outcome=DONE,
        trail=trail.uri,
        searched=found.searched,
        documents=tuple(found.documents),
        unreadable=tuple(found.unreadable),
        shards_left_out=None if others is None else tuple(sorted(others)),
    )


def _take(document: FoundDocument, wanted: Wanted, found: _Found) -> None:
    entry = document.entry
    if entry is None:
        found.unreadable.append(document.number)
        return
    # An outcome without items is of a run that failed as a whole: its intents tell more.
    (found.closed if document.items else found.failed).update(entry.intents)
    if entry.number in found.closed or wanted.run_id not in (None, entry.run_id):
        return
    items = [
        item
        for item in document.items
        if is_wanted(
            Line(
                action=item.action,
                path=item.path,
                shard_id=item.shard_id,
                generations=item.generations,
                version=item.version,
            ),
            wanted,
        )
    ]
    if not items and wanted.is_narrow:
        return
    is_intent = entry.phase == "intent"
    state = "failed" if entry.number in found.failed else "unfinished"
    fields = set(AuditDocumentReport.model_fields) & set(AuditEntry.model_fields)
    found.documents.append(
        AuditDocumentReport(
            **entry.model_dump(include=fields),
            state=state if is_intent else "outcome",
            items=tuple(items),
            items_in_all=len(document.items),
        )
    )


# ---- whether it is whole


def verify_trail(
    name: str, trail: StoredTrail, recorded: Mapping[int, str] | None
) -> AuditVerifyReport:
    """Check a trail. `recorded` has the digests that run records in its table name, by number."""
    chain = Chain(recorded=recorded or {})
    findings: list[Finding] = []
    intents: dict[int, UnfinishedReport] = {}
    newest = None
    for document in trail.read(trail.numbers()):
        entry, newest = document.entry, document.link
        findings += chain.follow(
            document.number,
            digest=None if document.link is None else document.link.sha256,
            previous=None if entry is None else entry.previous,
            problem=document.problem,
        )
        if entry is None:
            continue
        if entry.phase == "intent":
            intents[entry.number] = _describe_intent(entry, len(document.items))
        for closed in entry.intents:
            intents.pop(closed, None)
    findings += chain.end()
    error = _name_findings(trail, findings)
    return AuditVerifyReport(
        table=name,
        outcome=DONE if error is None else error.outcome,
        exit_code=0 if error is None else error.exit_code,
        error=None if error is None else str(error),
        trail=trail.uri,
        documents=chain.documents,
        newest=newest,
        recorded=None if recorded is None else len(recorded),
        findings=tuple(
            FindingReport(code=f.error.code, number=f.number, detail=f.error.text) for f in findings
        ),
        unfinished=tuple(intents.values()),
    )


def _describe_intent(entry: AuditEntry, items: int) -> UnfinishedReport:
    return UnfinishedReport(
        number=entry.number,
        at=entry.at,
        run_id=entry.run_id,
        job=entry.job,
        holder=entry.holder,
        items=items,
        ended=is_gone(entry.holder),
    )


def _name_findings(trail: StoredTrail, findings: Sequence[Finding]) -> Corruption | None:
    if not findings:
        return None
    texts: Iterable[str] = (finding.error.text for finding in findings[:_ERRORS_NAMED_MAX])
    more = len(findings) - _ERRORS_NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return findings[0].error.say(f"{trail.uri}: {'; '.join(texts)}{rest}")
