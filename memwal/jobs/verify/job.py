"""`memwal verify`: gathers facts about a table at rest, and reports a verdict on each invariant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memwal.errors import Corruption, MemWalError, Refused
from memwal.jobs.verify import plan
from memwal.jobs.verify.plan import Check, Folders, Hint, WalFacts
from memwal.jobs.verify.report import report_checks
from memwal.jobs.verify.store import StoredFacts
from memwal.model import ShardId, TableView
from memwal.report import JobReport, TableReport
from memwal.rows.policy import parse_policy
from memwal.rows.progress import warn_untouched
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.policy_choice import list_policy_warnings
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.tables.policy_rows import check_fits
from memwal.text import count_of

# The most keys that are held in memory at once to find one that is in two shards.
_KEYS_COMPARED_MAX = 10_000_000

Checks = Callable[[], Sequence[Check]]


def run_verify(options: RunOptions, progress: Progress) -> JobReport:
    """Check each table without changing it; exit code 8 means that an invariant is broken."""

    def verify(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        facts = StoredFacts(
            objects=stores.objects,
            tables=stores.tables,
            views=stores.views,
            manifests=stores.table_manifests,
            wal=stores.wal,
            shard_manifests=stores.shard_manifests,
            clock=stores.clock,
        )
        leavings: list[str] = []
        steps = list_steps(facts, view, leavings)
        if view.policy_text is not None or table.resolved.policy is not None:
            steps["row-merge policy"] = lambda: [_check_policy(table, stores, view)]
        checks = make_checks(steps, progress)
        private = plan.warn_of_private_indexes(facts.read_private_indexes(view))
        warnings = (*warn_untouched(view), *private, *plan.warn_of_leavings(leavings))
        told = plan.limit_to_readable(checks, view)
        return report_checks(table.resolved.name, view.version, told, warnings)

    return JobRunner(name="verify", looks_only=True).run_each(options, verify, progress)


def make_checks(steps: Mapping[str, Checks], progress: Progress) -> list[Check]:
    """Make the checks, one after the other; one that fails to look is undecided, or broken."""
    checks: list[Check] = []
    progress.start("checks", len(steps))
    for done, (name, make) in enumerate(steps.items(), start=1):
        try:
            checks += make()
        except MemWalError as error:
            ok = False if isinstance(error, Corruption) else None
            checks.append(Check(invariant=None, name=name, ok=ok, detail=str(error)))
        progress.done(done)
    return checks


def list_steps(facts: StoredFacts, view: TableView, leavings: list[str]) -> dict[str, Checks]:
    """The checks by name, in order. Paths of files that nothing reads are added to `leavings`."""

    def check_keys() -> Check:
        found, rows = facts.find_shared_key(view, _KEYS_COMPARED_MAX)
        return plan.check_one_shard(found, rows, _KEYS_COMPARED_MAX)

    def check_history() -> Sequence[Check]:
        history = facts.read_history(view.version)
        return (
            plan.check_progress_history(history, facts.find_rewound(history), view.shards),
            plan.check_catch_up(view, facts.read_catch_up(view, history)),
            plan.check_spec_ids(history, view.shards),
        )

    def check_wals() -> Sequence[Check]:
        wals = {shard.shard_id: facts.read_wal(shard.shard_id) for shard in view.shards}
        hints = facts.read_hints(view)
        newer = find_newer_manifests(view, hints, facts.read_named_versions(view), wals)
        seen = {shard.shard_id: shard.manifest for shard in view.shards}
        newer = {shard: why for shard, why in newer.items() if not facts.has_moved(seen[shard])}
        return (
            plan.check_wal(view.shards, wals),
            plan.check_sentinels(view.shards, wals),
            plan.check_newest([text for found in newer.values() for text in found], len(wals)),
            plan.check_hints(hints),
        )

    def check_files() -> Sequence[Check]:
        checkpoints, lost = facts.read_checkpoints()
        lost = [*lost, *facts.read_cut_faults()]
        indexes = facts.read_index_faults(view)
        base, records = facts.read_base_faults(view), facts.read_records()
        return (
            plan.check_files("newest version", facts.read_newest_faults(), "is what its name says"),
            plan.check_files("base table's files", base, "all there, as long as they were"),
            plan.check_files("indexes open", indexes, "each opens, and has its files"),
            plan.check_files(
                "checkpoints",
                lost,
                f"{count_of(len(checkpoints), 'checkpoint')}, each with what it needs",
            ),
            plan.check_files("records", records, "each document of memwal's can be read"),
        )

    def check_folders() -> Sequence[Check]:
        folders: Folders = facts.list_folders(view)
        leavings.extend(folders.leavings)
        return (
            plan.check_strangers(folders.outside, folders.inside),
            plan.count_orphans(view.shards, folders.inside),
            plan.check_bare_shards(plan.find_bare_shards(view, folders.inside)),
        )

    def check_manifests() -> Sequence[Check]:
        facts.check_unforked(view)
        return [plan.check_manifests(view)]

    return {
        "shard manifests": check_manifests,
        "generations contiguous": lambda: [plan.check_contiguous(view.shards)],
        "listed generations": lambda: [plan.check_generations(facts.read_generations(view))],
        "one key, one shard": lambda: [check_keys()],
        "merge progress and catch-up": check_history,
        "shard snapshot": lambda: [plan.check_snapshot(view, *facts.read_snapshot(view))],
        "WAL": check_wals,
        "folders": check_folders,
        "files": check_files,
        "lineage": lambda: [plan.check_lineage(facts.find_foreign_shards(view))],
    }


def find_newer_manifests(
    view: TableView,
    hints: Sequence[Hint],
    named: Mapping[ShardId, int],
    wals: Mapping[ShardId, WalFacts],
) -> dict[ShardId, tuple[str, ...]]:
    """By shard, what shows that it had a newer manifest than the newest that is there."""
    hinted = {hint.shard_id: hint.found for hint in hints if hint.shard_id is not None}
    found = {
        shard.shard_id: plan.find_newer(
            shard.manifest,
            shard.merged_generation,
            hinted.get(shard.shard_id),
            named.get(shard.shard_id, 0),
            wals[shard.shard_id],
        )
        for shard in view.shards
    }
    return {shard: texts for shard, texts in found.items() if texts}


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
