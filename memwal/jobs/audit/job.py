"""`memwal audit`: what a trail says, and whether it is whole. Opens no table, imports no Lance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Corruption, MemWalError, Usage
from memwal.format import layout
from memwal.jobs.audit.plan import Chain, Finding, Line, Wanted, clean_path, is_wanted
from memwal.jobs.audit.report import (
    AuditDocumentReport,
    AuditTableReport,
    AuditVerifyReport,
    FindingReport,
    UnfinishedReport,
)
from memwal.jobs.audit.request import AuditRequest
from memwal.ports import Clock, Objects
from memwal.report import DONE, AuditEntry, JobReport, TableReport, failed_report
from memwal.run.records import RUNS_KEPT_MAX
from memwal.run.reports import job_report
from memwal.run.trail import open_trail
from memwal.store.objects.opening import find_address, normalise_uri, open_objects
from memwal.store.records.audit import FoundDocument, StoredTrail
from memwal.store.records.process import is_gone
from memwal.store.records.runs import StoredRunRecords

_ERRORS_NAMED_MAX = 3


def run_audit(
    tables: Sequence[ResolvedTable],
    request: AuditRequest,
    other_shards: Mapping[str, Set[str]] | None = None,
) -> JobReport:
    """Report what the trails say. `other_shards` has, by table, shards that can't hold the key."""

    def search(table: ResolvedTable, uri: str, clock: Clock) -> tuple[TableReport, Objects]:
        trail = open_trail(table, uri, clock)
        others = (other_shards or {}).get(table.name)
        wanted = Wanted(
            path=None if request.path is None else clean_path(request.path, uri),
            run_id=request.run,
            other_shards=others or frozenset(),
        )
        return _search(table.name, trail, wanted, others, request.limit), trail.objects

    return _run(tables, search)


def run_audit_verify(tables: Sequence[ResolvedTable]) -> JobReport:
    """Check the trails of tables, and compare them with the run records in those."""

    def verify(table: ResolvedTable, uri: str, clock: Clock) -> tuple[TableReport, Objects]:
        trail = open_trail(table, uri, clock)
        # Read before the trail: what a run writes down later is not missed in it.
        stored = StoredRunRecords(open_objects(uri, table.storage_options, clock))
        kept = stored.newest(table.settings.runs_kept_max or RUNS_KEPT_MAX).records
        links = [record.audit for record in kept if record.audit is not None]
        return _verify(table.name, trail, {link.number: link.sha256 for link in links}), (
            trail.objects
        )

    return _run(tables, verify)


def run_audit_verify_place(place: str, storage_options: Mapping[str, str]) -> JobReport:
    """Check all trails in a place, by themselves."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    objects = open_objects(place, storage_options, clock)
    # On a local disk, files are staged in a folder beside the trails.
    folders = [name for name in objects.list_folders("") if name != layout.MAINTENANCE]
    reports = [_verify(folder, StoredTrail(objects, folder), None) for folder in folders]
    return job_report(
        "audit",
        reports,
        seconds=clock.monotonic_seconds() - started,
        requests=[objects.counts.as_dict()],
        otherwise=DONE,
    )


def _run(
    tables: Sequence[ResolvedTable],
    work: Callable[[ResolvedTable, str, Clock], tuple[TableReport, Objects]],
) -> JobReport:
    clock = SystemClock()
    started = clock.monotonic_seconds()
    reports: list[TableReport] = []
    requests: list[Mapping[str, int]] = []
    for table in tables:
        try:
            if table.settings.audit is None:
                raise Usage(
                    f"{table.name}: no audit trail is configured: set `audit` in memwal.toml, "
                    "MEMWAL_AUDIT, or --audit PLACE"
                )
            uri, _ = find_address(normalise_uri(table.find_uri()), table.storage_options)
            report, objects = work(table, uri, clock)
            reports.append(report)
            requests.append(objects.counts.as_dict())
        except MemWalError as error:
            reports.append(failed_report(table.name, error))
    seconds = clock.monotonic_seconds() - started
    return job_report("audit", reports, seconds=seconds, requests=requests, otherwise=DONE)


# ---- what a trail says


@dataclass(kw_only=True, slots=True)
class _Found:
    """What was found so far, from the newest document on; `closed` intents have their outcome."""

    documents: list[AuditDocumentReport] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    searched: int = 0


def _search(
    name: str, trail: StoredTrail, wanted: Wanted, others: Set[str] | None, limit: int
) -> AuditTableReport:
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


def _verify(name: str, trail: StoredTrail, recorded: Mapping[int, str] | None) -> AuditVerifyReport:
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
            FindingReport(code=f.code, number=f.number, detail=f.text) for f in findings
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
    texts: Iterable[str] = (finding.text for finding in findings[:_ERRORS_NAMED_MAX])
    more = len(findings) - _ERRORS_NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return Corruption(findings[0].code, f"{trail.uri}: {'; '.join(texts)}{rest}")
