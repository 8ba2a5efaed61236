"""`memwal verify`: gathers facts about a table at rest, and reports a verdict on each invariant."""

from __future__ import annotations

from memwal.errors import Refused
from memwal.grid import format_size
from memwal.jobs.verify import plan
from memwal.jobs.verify.checks import list_checks, make_checks
from memwal.jobs.verify.plan import Check
from memwal.jobs.verify.report import report_checks
from memwal.jobs.verify.store import StoredFacts
from memwal.model import TableView
from memwal.report import JobReport, TableReport
from memwal.rows.expire import EXPIRE_KEY, find_expire
from memwal.rows.policy import parse_policy
from memwal.rows.progress import warn_untouched
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.policy_choice import list_policy_warnings
from memwal.run.progress import SILENT, Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.tables.pages import Part
from memwal.store.tables.policy_rows import check_fits


def run_verify(options: RunOptions, progress: Progress, *, deep: bool = False) -> JobReport:
    """Check each table without changing it; exit code 8 means that an invariant is broken."""

    def verify(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        facts = StoredFacts(stores, view)
        steps = list_checks(facts)
        if view.policy_text is not None or table.resolved.policy is not None:
            steps["row-merge policy"] = lambda: [_check_policy(table, stores, view)]
        if EXPIRE_KEY in view.manifest.config:
            steps["rows that expire"] = lambda: [_check_expire(view)]
        checks = make_checks(steps, progress)
        parts: list[Part] = []

        def read_pages() -> list[Check]:
            parts.extend(facts.list_parts())
            size = format_size(sum(part.size_bytes for part in parts))
            fine = f"{len(parts)} fragments and files of indexes were read, {size}"
            return [plan.check_files("pages", facts.read_parts(parts, progress), fine)]

        def compare_keys() -> list[Check]:
            return [plan.check_double_keys(*facts.find_double_keys())]

        if deep:
            checks += make_checks({"pages": read_pages, "double keys": compare_keys}, SILENT)
        read_bytes = sum(part.size_bytes for part in parts)
        private = plan.warn_of_private_indexes(facts.read_private_indexes())
        told = plan.limit_to_readable(checks, view)
        warnings = (*warn_untouched(view), *private)
        return report_checks(table.resolved.name, view.version, told, warnings, read_bytes)

    return JobRunner(name="verify", looks_only=True).run_each(options, verify, progress)


def _check_expire(view: TableView) -> Check:
    """Check that the column by which rows expire is there, and tells a time."""
    try:
        ok, text = find_expire(view) is not None, view.manifest.config[EXPIRE_KEY]
    except Refused as error:
        ok, text = False, str(error)
    return Check(invariant=None, name="rows that expire", ok=ok, detail=text)


def _check_policy(table: OpenTable, stores: Stores, view: TableView) -> Check:
    """Check that the stored policy fits the table; undecided if the configuration differs."""
    ok: bool | None = True
    try:
        if view.policy_text is not None:
            schema = stores.tables.at(view.version).schema
            check_fits(parse_policy(view.policy_text), view, schema)
        text = str(view.policy_text)
    except Refused as error:
        ok, text = False, str(error)
    for warning in list_policy_warnings(table.resolved, view) if ok else ():
        ok, text = None, warning
    return Check(invariant=None, name="row-merge policy", ok=ok, detail=text)
