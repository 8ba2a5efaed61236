"""`memwal erase verify` and `erase list`: the proof again, and the erasures that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from memwal.config import ResolvedTable, is_address
from memwal.errors import MemWalError, Usage
from memwal.jobs.erase.apply import find_kept
from memwal.jobs.erase.plan import Finding, Kind, State, Surroundings, judge, judge_copy
from memwal.jobs.erase.report import EraseTableReport, describe_erasure, report_proof
from memwal.jobs.erase.request import EraseRequest, KeysRequest
from memwal.jobs.erase.store.keys import Keys, read_keys
from memwal.jobs.erase.store.search import TableSearch
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.model import TableView
from memwal.options import narrow
from memwal.report import DONE, NOTHING_TO_DO, JobOnTable, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress, Quiet
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.text import mask_address

NAME = "erase"


@dataclass(frozen=True, kw_only=True)
class KeysOptions(RunOptions):
    """What `erase` and `erase verify` share: `find_table` is asked for tables that `also` names."""

    find_table: Callable[[str], ResolvedTable] | None = None


@dataclass(frozen=True, kw_only=True)
class ProofOptions(KeysOptions):
    """The options of `erase verify`."""

    erasure_id: str
    request: KeysRequest = KeysRequest()


def run_verify(options: ProofOptions, progress: Progress) -> JobReport:
    """Repeat the proof of an erasure: look at every object again."""

    def prove(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        erasures = stores.erasures
        record = erasures.find(options.erasure_id)
        stored = erasures.read_keys(record.erasure_id)
        keys = _read_given(options.request, stores, view)
        copies = find_copies(options, options.request, table)
        if keys is None and stored is None:
            raise Usage(
                f"{stores.uri}: erasure {record.erasure_id} is {record.state}, and its keys are "
                "forgotten: name them with --key or --keys"
            )
        if keys is None:
            keys = Keys(stored)
        look = open_search(table, stores, keys).look(view)
        kept = run_garbage(collecting(options, table, execute=False), Quiet(progress))
        found = [JobOnTable(job="garbage", report=report) for report in kept.tables]
        around = Surroundings(
            now_nanos=stores.clock.now_nanos(),
            versions=look.versions,
            index_names=look.index_names,
            kept=find_kept(found),
            retention_seconds=record.retention_seconds,
        )
        found_copies = look_at_copies(copies, stores, keys)
        findings = [*judge(look.sightings, around, record), *found_copies]
        return report_proof(
            table.resolved.name,
            record,
            findings,
            leave_out(look.elsewhere, copies),
            version=view.version,
            keys=keys.count,
        )

    return JobRunner(name=NAME, looks_only=True).run_each(options, prove, progress)


def run_list(options: RunOptions, progress: Progress) -> JobReport:
    """List each table's erasures."""

    def look(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        records = stores.erasures.list()
        return EraseTableReport(
            table=table.resolved.name,
            outcome=DONE if records else NOTHING_TO_DO,
            version_before=view.version,
            version_after=view.version,
            erasures=tuple(map(describe_erasure, records)),
        )

    return JobRunner(name=NAME, looks_only=True).run_each(options, look, progress)


def _read_given(request: KeysRequest, stores: Stores, view: TableView) -> Keys | None:
    if not (request.key or request.keys):
        return None
    schema = stores.tables.seen(view.version).schema
    return Keys(read_keys(request.key, request.keys, view.primary_key, schema))


def open_search(table: OpenTable, stores: Stores, keys: Keys) -> TableSearch:
    """The search of one table."""
    place = table.resolved.backup
    backups = None if place is None else mask_address(place.uri)
    return TableSearch(stores=stores, keys=keys, backups=backups)


Copies = Mapping[str, Mapping[str, str]]
"""The tables that `also` names: their addresses, and the storage options of each."""


def find_copies(options: KeysOptions, request: KeysRequest, table: OpenTable) -> Copies:
    """Look names up; an address is opened as the table itself is. Raises NotATable, Usage."""
    found: dict[str, Mapping[str, str]] = {}
    for name in request.also:
        if options.find_table is None or is_address(name):
            found[name] = table.resolved.storage_options
        else:
            copy = options.find_table(name)
            found[copy.find_uri()] = copy.storage_options
    return found


def look_at_copies(copies: Copies, stores: Stores, keys: Keys) -> list[Finding]:
    """What those tables hold of the keys, by their whole addresses."""
    found: list[Finding] = []
    for uri, storage_options in copies.items():
        address = mask_address(uri)
        try:
            other = open_stores(uri, storage_options, clock=stores.clock)
            sightings = TableSearch(stores=other, keys=keys).look(other.views.table()).sightings
            found += (replace(f, path=f"{address}/{f.path}") for f in judge_copy(sightings))
        except MemWalError as error:
            why = f"can't be looked at: {error}"
            found.append(Finding(path=address, kind=Kind.OTHER, state=State.UNKNOWN, why=why))
    return found


def leave_out(elsewhere: Iterable[str], copies: Copies) -> list[str]:
    """What was not looked at, without those tables."""
    looked_at = tuple(f"{mask_address(uri)}: " for uri in copies)
    return [text for text in elsewhere if not text.startswith(looked_at)]


def collecting(
    options: RunOptions,
    table: OpenTable,
    *,
    execute: bool,
    retention_seconds: float | None = None,
    asked: EraseRequest | None = None,
) -> GarbageOptions:
    """The garbage job of an erasure: a sweep of everything, WAL included."""
    request = GarbageRequest(execute=execute, wal=True, full=True)
    if asked is not None:
        request = narrow(asked, GarbageRequest, execute=execute, wal=True, full=True)
        request = replace(request, retention_seconds=retention_seconds)
    return options.for_job(GarbageOptions, [table.resolved], request=request, dry_run=not execute)
