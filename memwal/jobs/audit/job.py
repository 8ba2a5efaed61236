"""`memwal audit`: what a trail says, and whether it is whole. Opens no table, imports no Lance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Usage
from memwal.format import layout
from memwal.jobs.audit.plan import Wanted, clean_path
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.audit.store import search_trail, verify_trail
from memwal.ports import Clock, Objects
from memwal.report import DONE, JobReport, TableReport, failed_report
from memwal.run.records import RUNS_KEPT_MAX
from memwal.run.reports import job_report
from memwal.run.trail import open_trail
from memwal.store.objects.opening import find_address, normalise_uri, open_objects
from memwal.store.records.audit import StoredTrail
from memwal.store.records.runs import StoredRunRecords
from memwal.store.tables.manifests import check_table_folder


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
        report = search_trail(table.name, trail, wanted, others, request.limit)
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
