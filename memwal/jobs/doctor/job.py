"""`memwal doctor` on a store."""

from __future__ import annotations

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Refused
from memwal.jobs.doctor.apply import Doctor
from memwal.jobs.doctor.plan import CHECKS, complete, sum_up
from memwal.jobs.doctor.report import CheckReport, DoctorReport
from memwal.jobs.doctor.store import ScratchFolder
from memwal.report import DONE, FAILED
from memwal.rows.progress import check_progress, warn_untouched
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.stores import check_lance_version, open_stores
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import find_address, normalise_uri


def run_doctor(options: RunOptions, progress: Progress) -> DoctorReport:
    """Try the store of one table or address. Nothing is left there, and no table is changed."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    (table,) = options.tables
    left, address = 0, None
    requests: dict[str, int] = {}
    try:
        check_lance_version(options.untested_lance_allowed)
        uri, options_there = find_address(normalise_uri(table.find_uri()), table.storage_options)
        scratch = ScratchFolder(uri, options_there, clock, StoreLimits())
        progress.start("checks", len(CHECKS))
        doctor = Doctor(scratch=scratch, clock=clock, done=progress.done)
        checks, error = doctor.examine()
        left, address = doctor.left, scratch.address
        requests = scratch.objects.counts.as_dict()
    except MemWalError as caught:
        checks, error = complete((), "not tried"), caught
    wrong, exit_code = sum_up(checks, error)
    if not exit_code and (inherited := _find_inherited(table)) is not None:
        wrong, exit_code = inherited, Refused.exit_code
    return DoctorReport(
        job="doctor",
        outcome=FAILED if exit_code else DONE,
        error=wrong,
        exit_code=exit_code,
        seconds=round(clock.monotonic_seconds() - started, 3),
        requests=requests,
        uri=table.name,
        checks=tuple(CheckReport(name=c.name, ok=c.ok, detail=c.detail) for c in checks),
        scratch=address,
        left=left,
    )


def _find_inherited(table: ResolvedTable) -> str | None:
    """Why a writer's rows would be lost even on a good store: progress inherited by a clone.

    None if there is no such progress, or no readable table.
    """
    try:
        view = open_stores(table.find_uri(), table.storage_options).views.table()
    except MemWalError:
        return None  # no table, or one that `verify` finds out more about
    try:
        check_progress(view)
    except Refused as error:
        return str(error)
    return next((str(Refused("MW-H06", text)) for text in warn_untouched(view)), None)
