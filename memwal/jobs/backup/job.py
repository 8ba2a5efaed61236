"""`memwal backup`: makes a backup of a table; lists, verifies and drops those of a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from threading import Lock

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Corruption, MemWalError, Missing, Refused
from memwal.jobs.backup.apply import BackupMaker, Dropper
from memwal.jobs.backup.plan import choose_expired
from memwal.jobs.backup.report import BackupTableReport, DamageReport, describe_backup
from memwal.jobs.backup.request import BackupRequest, read_keep
from memwal.jobs.backup.store import LanceSource, StoredDestination, check_apart
from memwal.model import BackupObject, TableView
from memwal.ports import Clock, Objects, Steps, no_steps
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.lease import HeldLease
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.reports import job_report
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.objects.copying import digest_object
from memwal.store.objects.opening import ensure_put_if_absent, open_objects
from memwal.store.records.backups import StoredBackups
from memwal.store.records.lease import StoredLeases
from memwal.text import iso_time
from memwal.threads import side_by_side

NAME = "backup"
_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class BackupOptions(RunOptions):
    """The options of `backup`: where to, and what is asked for."""

    dest: ResolvedTable
    request: BackupRequest = field(default_factory=BackupRequest)


def run_backup(options: BackupOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Back up each of the tables, which is one, to the destination."""
    keep = None if options.request.keep is None else read_keep(options.request.keep)
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01", "a backup is made under the lease of its place: run it without --no-lease"
        )

    def one(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        objects = open_place(options.dest, stores.clock, options.request.dest_storage_options)
        check_apart(stores.objects, objects)
        dest = StoredDestination(objects=objects, source=stores.objects)
        try:
            with _Claim(objects, stores.clock, options.run_id, table.warn) as claim:
                maker = BackupMaker(
                    source=LanceSource(stores=stores, dest=objects.uri),
                    dest=dest,
                    documents=dest.backups,
                    clock=stores.clock,
                    memwal_version=str(import_module("memwal").__version__),
                    show=progress,
                    take_lease=claim.take,
                    before_step=claim.check,
                    steps=steps,
                )
                name = options.request.name or _name_now(stores.clock)
                if options.dry_run:
                    found = _plan(maker, name)
                else:
                    made = maker.make(name, keep)
                    found = BackupTableReport(
                        table="",
                        outcome=DONE,
                        version_before=made.backup.version,
                        version_after=made.backup.version,
                        dest=dest.uri,
                        backups=(
                            describe_backup(made.backup, "made"),
                            *(describe_backup(backup, "dropped") for backup in made.dropped),
                        ),
                        objects_copied=made.copied,
                        bytes_copied=made.bytes_copied,
                        objects_kept=made.kept,
                        moments=made.moments,
                        objects_deleted=made.objects_deleted,
                    )
        finally:
            table.unit_requests.append(objects.counts.as_dict())
        counts = objects.counts.as_dict()
        return found.model_copy(update={"table": table.resolved.name, "requests_dest": counts})

    runner = JobRunner(
        name=NAME,
        read=lambda stores, fanout: stores.views.base(),
        engine=lambda fanout: None,
    )
    return runner.run_each(options, one, progress)


def _plan(maker: BackupMaker, name: str) -> BackupTableReport:
    backup, plan = maker.plan(name)
    return BackupTableReport(
        table="",
        outcome=DONE,
        version_before=backup.version,
        version_after=backup.version,
        dest=maker.dest.uri,
        backups=(
            describe_backup(backup, "planned").model_copy(
                update={"objects": plan.num_objects, "bytes": plan.num_bytes + plan.bytes_there}
            ),
        ),
        objects_copied=len(plan.copied),
        bytes_copied=plan.num_bytes,
        objects_kept=plan.num_objects - len(plan.copied),
    )


def _name_now(clock: Clock) -> str:
    now = datetime.fromtimestamp(clock.now_nanos() / 1e9, UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"


def open_place(
    dest: ResolvedTable, clock: Clock, more: Sequence[tuple[str, str]] | Mapping[str, str] = ()
) -> Objects:
    """Open a place of backups, with storage options of its own over those of every table."""
    return open_objects(dest.uri, {**dest.storage_options, **dict(more)}, clock)


class _Claim:
    """The lease of a place, taken once there is something to write."""

    def __init__(
        self, objects: Objects, clock: Clock, run_id: str | None, warn: Callable[[str], None]
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._run_id = run_id
        self._warn = warn
        self._held: HeldLease | None = None

    def take(self) -> None:
        """Prove the store, and claim the place. Raises LeaseHeld, Unsupported."""
        ensure_put_if_absent(self._objects, self._clock)
        leases = StoredLeases(self._objects, self._clock, run_id=self._run_id)
        self._held = HeldLease(leases, NAME, self._warn)

    def check(self) -> None:
        """Raise LeaseHeld if the claim was lost."""
        if self._held is not None:
            self._held.check()

    def __enter__(self) -> _Claim:
        return self

    def __exit__(self, *error: object) -> None:
        if self._held is not None:
            try:
                self._held.release()
            except MemWalError as failed:
                self._warn(str(failed))


# ---- a place, without its table


def run_list(dest: ResolvedTable) -> JobReport:
    """List the backups of a place, oldest first."""

    def look(objects: Objects) -> BackupTableReport:
        backups = StoredBackups(objects)
        found = backups.list()
        return BackupTableReport(
            table=dest.name,
            outcome=DONE if found else NOTHING_TO_DO,
            dest=objects.uri,
            backups=tuple(describe_backup(backup, "kept") for backup in found),
            unfinished=_describe_unfinished(backups),
        )

    return _run(dest, look)


def _describe_unfinished(backups: StoredBackups) -> str | None:
    mark = backups.read_mark()
    if mark is None:
        return None
    return (
        f"a backup of {mark.source} was begun {iso_time(mark.begun_at_nanos)} and is not finished: "
        "it is under way, or was killed, and the next one goes on from there"
    )


def run_drop(
    dest: ResolvedTable,
    names: Sequence[str] = (),
    *,
    keep: str | None = None,
    dry_run: bool = False,
    run_id: str | None = None,
    progress: Progress = SILENT,
    steps: Steps = no_steps,
) -> JobReport:
    """Drop backups of these names and, with `keep`, those that it does not keep."""

    def drop(objects: Objects) -> BackupTableReport:
        place = StoredDestination(objects=objects)
        with _Claim(objects, SystemClock(), run_id, progress.warn) as claim:
            dropper = Dropper(
                dest=place, documents=place.backups, before_step=claim.check, steps=steps
            )
            if not dry_run:
                claim.take()
            known = place.backups.list()
            named = [place.backups.find(name) for name in names]
            stay = None if keep is None else read_keep(keep)
            expired = choose_expired(known, stay, SystemClock().now_nanos())
            chosen = list({b.name: b for b in (*named, *expired)}.values())
            paths = (dropper.plan if dry_run else dropper.drop)(chosen)
        return BackupTableReport(
            table=dest.name,
            outcome=DONE if chosen or paths else NOTHING_TO_DO,
            dest=objects.uri,
            backups=tuple(
                describe_backup(backup, "planned" if dry_run else "dropped") for backup in chosen
            ),
            objects_deleted=len(paths),
        )

    return _run(dest, drop, dry_run=dry_run)


def run_verify(
    dest: ResolvedTable, name: str | None = None, *, progress: Progress = SILENT
) -> JobReport:
    """Read every object that the backups need, or the one of that name, and compare its digest."""

    def verify(objects: Objects) -> BackupTableReport:
        backups = StoredBackups(objects)
        chosen = backups.list() if name is None else [backups.find(name)]
        needed: dict[BackupObject, list[str]] = {}
        for backup in chosen:
            for one in backups.objects_of(backup):
                needed.setdefault(one, []).append(backup.name)
        damaged = _compare(objects, needed, progress)
        spoiled = {found for damage in damaged for found in damage.backups}
        return BackupTableReport(
            table=dest.name,
            outcome="failed" if damaged else DONE if chosen else NOTHING_TO_DO,
            exit_code=Corruption.exit_code if damaged else 0,
            error=None if not damaged else str(_say_damaged(objects, damaged, spoiled)),
            dest=objects.uri,
            backups=tuple(
                describe_backup(b, "damaged" if b.name in spoiled else "sound") for b in chosen
            ),
            objects_read=len(needed),
            damaged=tuple(damaged),
        )

    return _run(dest, verify)


def _say_damaged(
    objects: Objects, damaged: Sequence[DamageReport], spoiled: set[str]
) -> Corruption:
    return Corruption(
        "MW-A07",
        f"{objects.uri}: {len(damaged)} objects are damaged or gone, which backups "
        f"{', '.join(sorted(spoiled))} need; the first is {damaged[0].path}",
    )


def _compare(
    objects: Objects, needed: Mapping[BackupObject, Sequence[str]], progress: Progress
) -> list[DamageReport]:
    lock, done, bytes_done = Lock(), 0, 0
    progress.start("comparing objects", len(needed), sum(one.size_bytes for one in needed))

    def compare(one: BackupObject) -> DamageReport | None:
        nonlocal done, bytes_done
        problem = None
        try:
            digest_object(objects, one.path, expected=one)
        except Missing:
            problem = "it is gone"
        except Corruption as error:
            problem = error.text.partition(": ")[2] or error.text
        with lock:
            done, bytes_done = done + 1, bytes_done + one.size_bytes
            progress.done(done, bytes_done)
        if problem is None:
            return None
        return DamageReport(path=one.path, problem=problem, backups=tuple(needed[one]))

    found = side_by_side(compare, list(needed), _READERS_MAX)
    return [damage for damage in found if damage is not None]


def _run(
    dest: ResolvedTable, work: Callable[[Objects], BackupTableReport], *, dry_run: bool = False
) -> JobReport:
    clock = SystemClock()
    started = clock.monotonic_seconds()
    requests: list[Mapping[str, int]] = []
    report: TableReport
    try:
        objects = open_place(dest, clock)
        try:
            report = work(objects)
        finally:
            requests.append(objects.counts.as_dict())
        report = report.model_copy(update={"requests_dest": objects.counts.as_dict()})
    except MemWalError as error:
        report = failed_report(dest.name, error)
    seconds = clock.monotonic_seconds() - started
    return job_report(NAME, [report], seconds=seconds, requests=requests, dry_run=dry_run)
