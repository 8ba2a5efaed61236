"""`memwal audit`: what a trail says, and whether it is whole. Opens no table, imports no Lance.

A trail is whole if its numbers have no gap from 1 on, each document's bytes have the digest in its
last line, and each carries the digest of the one before. Its end could still be cut off, or all of
it be written anew from some document on: that shows where a run record in the table names a
document which the trail does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Corruption, MemWalError, Usage
from memwal.format import layout
from memwal.jobs.audit.report import (
    AuditDocumentReport,
    AuditTableReport,
    AuditVerifyReport,
    Finding,
    UnfinishedReport,
)
from memwal.jobs.audit.request import AuditRequest
from memwal.ports import Clock, Objects
from memwal.report import (
    DONE,
    AuditItem,
    JobReport,
    TableReport,
    describe_error,
    failed_report,
)
from memwal.run.records import RUNS_KEPT_MAX
from memwal.run.reports import job_report
from memwal.run.trail import open_trail
from memwal.store.objects.opening import find_address, normalise_uri, open_objects
from memwal.store.records.audit import StoredTrail
from memwal.store.records.process import is_gone
from memwal.store.records.runs import StoredRunRecords
from memwal.store.tables.manifests import check_table_folder
from memwal.text import name_some

_ERRORS_NAMED_MAX = 3
_BASE_FOLDERS = frozenset(("data", "_deletions", "_indices", "_transactions"))
_REWRITTEN = frozenset(("data", "_deletions"))


def run_audit(
    tables: Sequence[ResolvedTable],
    request: AuditRequest,
    find_others: Callable[
        [ResolvedTable, Sequence[tuple[str, str]]], Set[str]
    ] = lambda table, key: frozenset(),
) -> JobReport:
    """Report what the trails say. `find_others` finds a table's shards that can't hold a key."""

    def search(table: ResolvedTable, uri: str, clock: Clock) -> tuple[TableReport, Objects]:
        trail = open_trail(table, uri, clock)
        others = find_others(table, request.key) if request.key else frozenset[str]()
        report = search_trail(table.name, trail, request, uri, others)
        if not report.searched:
            # A trail outlives its table, so that is looked at only now.
            check_table_folder(open_objects(uri, table.storage_options, clock))
        return report, trail.objects

    return _run(tables, search)


def run_audit_verify(tables: Sequence[ResolvedTable]) -> JobReport:
    """Check the trails of tables, and compare them with the run records in those."""

    def verify(table: ResolvedTable, uri: str, clock: Clock) -> tuple[TableReport, Objects]:
        trail = open_trail(table, uri, clock)
        # Read before the trail: what a run writes down later is not missed in it.
        stored = StoredRunRecords(open_objects(uri, table.storage_options, clock))
        kept = stored.newest(table.settings.runs_kept_max or RUNS_KEPT_MAX).records
        links = [record.audit for record in kept if record.audit is not None]
        return verify_trail(table.name, trail, {link.number: link.sha256 for link in links}), (
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
    reports = [verify_trail(folder, StoredTrail(objects, folder), None) for folder in folders]
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


def search_trail(
    name: str, trail: StoredTrail, request: AuditRequest, uri: str, others: Set[str]
) -> AuditTableReport:
    """What the trail of a table says, newest first, without what was done to other shards."""
    path = None if request.path is None else clean_path(request.path, uri)
    documents: list[AuditDocumentReport] = []
    unreadable: list[int] = []
    closed, failed, searched = set[int](), set[int](), 0
    for document in trail.read(trail.numbers()[::-1]):
        searched += 1
        entry = document.entry
        if entry is None:
            unreadable.append(document.number)
            continue
        # An outcome without items is of a run that failed as a whole: its intents tell more.
        (closed if document.items else failed).update(entry.intents)
        if entry.number in closed or request.run not in (None, entry.run_id):
            continue
        items = [item for item in document.items if item.shard_id not in others]
        items = [item for item in items if path is None or is_about(item, path)]
        if (path is not None or others) and not items:
            continue
        left = "failed" if entry.number in failed else "unfinished"
        documents.append(
            AuditDocumentReport(
                **entry.model_dump(),
                state=left if entry.phase == "intent" else "outcome",
                items=tuple(items),
                items_in_all=len(document.items),
            )
        )
        if len(documents) >= request.limit:
            break
    return AuditTableReport(
        table=name,
        outcome=DONE,
        trail=trail.uri,
        searched=searched,
        documents=tuple(documents),
        unreadable=tuple(unreadable),
    )


def clean_path(path: str, table: str) -> str:
    """A path below the table, whether it was given with the table's address or without."""
    return path.removeprefix(table.rstrip("/")).strip("/")


def is_about(item: AuditItem, path: str) -> bool:
    """Whether the item is about that object or folder, or may be."""
    if item.path == path or item.path.startswith(f"{path}/"):
        return True
    folder, _, name = path.rpartition("/")
    if item.action == "expire":
        # Lance says which versions went, and not which files nothing needed any more.
        version = layout.parse_table_manifest_name(name) if folder == layout.VERSIONS else None
        return version == item.version or path.partition("/")[0] in _BASE_FOLDERS
    if item.action == "rewrite":
        return path.partition("/")[0] in _REWRITTEN
    if item.action in ("merge", "rescue"):
        rest = path.removeprefix(f"{item.path}/")
        if rest == path:
            return False
        generation = layout.parse_generation_folder(rest.partition("/")[0])
        if generation is None:
            return item.action == "rescue"
        first, last = item.generations or (0, 0)
        return first <= generation <= last
    return path.startswith(f"{item.path}/")


# ---- whether it is whole


@dataclass(kw_only=True, slots=True)
class Chain:
    """Follows a trail from its first document on.

    `recorded` has the digests by number that run records in the table name. `digest` is that of the
    last document; None where it can't be read.
    """

    recorded: Mapping[int, str] = field(default_factory=dict)
    documents: int = 0
    last: int = 0
    digest: str | None = ""

    def follow(
        self, number: int, *, digest: str | None, previous: str | None, problem: str | None
    ) -> Iterator[Finding]:
        """What is wrong with the next document, whose number is higher than that of the last.

        `digest` and `previous` are None where they can't be read.
        """
        if number > self.last + 1:
            first, last = self.last + 1, number - 1
            gone = f"document {first} is" if first == last else f"documents {first} to {last} are"
            yield _find(first, Corruption("MW-U01", f"{gone} missing"))
        elif previous is not None and self.digest is not None and previous != self.digest:
            text = f"document {number} does not carry the digest of {self.last}: one was changed"
            yield _find(number, Corruption("MW-U02", text))
        if problem is not None:
            yield _find(number, Corruption("MW-U02", f"document {number}: {problem}"))
        known = self.recorded.get(number)
        if known is not None and digest is not None and known != digest:
            text = f"document {number} is not the one that a run record in the table names"
            yield _find(number, Corruption("MW-U03", text))
        self.documents += 1
        self.last, self.digest = number, digest

    def end(self) -> Iterator[Finding]:
        """What the run records in the table name beyond the trail's end."""
        beyond = sorted(number for number in self.recorded if number > self.last)
        if beyond:
            text = f"the trail ends at {self.last}; run records in the table name {beyond[-1]}"
            yield _find(beyond[-1], Corruption("MW-U03", text))


def _find(number: int, error: Corruption) -> Finding:
    return Finding(code=error.code, number=number, detail=error.text, error=error)


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
            intents[entry.number] = UnfinishedReport(
                **entry.model_dump(), items=len(document.items), ended=is_gone(entry.holder)
            )
        for closed in entry.intents:
            intents.pop(closed, None)
    findings += chain.end()
    error = None
    if findings:
        texts = name_some([found.detail for found in findings], _ERRORS_NAMED_MAX, "findings")
        error = findings[0].error.say(f"{trail.uri}: {'; '.join(texts)}")
    return AuditVerifyReport(
        table=name,
        **describe_error(error, DONE),
        trail=trail.uri,
        documents=chain.documents,
        newest=newest,
        recorded=None if recorded is None else len(recorded),
        findings=tuple(findings),
        unfinished=tuple(intents.values()),
    )
