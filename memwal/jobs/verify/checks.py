"""The checks that `verify` makes, by name and in order. A repair begins with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import Corruption, MemWalError
from memwal.jobs.verify import plan
from memwal.jobs.verify.plan import Check, Folders, Hint, WalFacts
from memwal.jobs.verify.store import StoredFacts
from memwal.model import ShardId, TableView
from memwal.run.progress import Progress
from memwal.store.tables.datasets import KEYS_COMPARED_MAX
from memwal.text import count_of

Checks = Callable[[], Sequence[Check]]


def make_checks(steps: Mapping[str, Checks], progress: Progress) -> list[Check]:
    """Make the checks, one after the other; one that fails to look is undecided, or broken."""
    checks: list[Check] = []
    progress.start("checks", len(steps))
    for done, (name, make) in enumerate(steps.items(), start=1):
        try:
            checks += make()
        except MemWalError as error:
            ok = False if isinstance(error, Corruption) else None
            failed = None if ok is False else error
            checks.append(Check(invariant=None, name=name, ok=ok, detail=str(error), error=failed))
        progress.done(done)
    return checks


@dataclass(frozen=True, slots=True)
class TableChecks:
    """The checks of one table. Paths of files that nothing reads are added to `leavings`."""

    facts: StoredFacts
    view: TableView
    leavings: list[str]

    def list_steps(self) -> dict[str, Checks]:
        """The steps by name; each makes one check or several."""
        facts, view = self.facts, self.view
        return {
            "shard manifests": self._check_manifests,
            "generations contiguous": lambda: [plan.check_contiguous(view.shards)],
            "listed generations": lambda: [plan.check_generations(facts.read_generations(view))],
            "one key, one shard": self._check_keys,
            "merge progress and catch-up": self._check_history,
            "shard snapshot": lambda: [plan.check_snapshot(view, *facts.read_snapshot(view))],
            "WAL": self._check_wals,
            "folders": self._check_folders,
            "files": self._check_files,
            "lineage": lambda: [plan.check_lineage(facts.find_foreign_shards(view))],
        }

    def _check_keys(self) -> Sequence[Check]:
        found, rows = self.facts.find_shared_key(self.view, KEYS_COMPARED_MAX)
        return [plan.check_one_shard(found, rows, KEYS_COMPARED_MAX)]

    def _check_history(self) -> Sequence[Check]:
        facts, view = self.facts, self.view
        history = facts.read_history(view.version)
        return (
            plan.check_progress_history(history, facts.find_rewound(history), view.shards),
            plan.check_catch_up(view, facts.read_catch_up(view, history)),
            plan.check_spec_ids(history, view.shards),
        )

    def _check_wals(self) -> Sequence[Check]:
        facts, view = self.facts, self.view
        wals = {shard.shard_id: facts.read_wal(shard.shard_id) for shard in view.shards}
        hints = facts.read_hints(view)
        newer = find_newer_manifests(facts, view, hints, facts.read_named_versions(view), wals)
        return (
            plan.check_wal(view.shards, wals),
            plan.check_sentinels(view.shards, wals),
            plan.check_newest([text for found in newer.values() for text in found], len(wals)),
            plan.check_hints(hints),
        )

    def _check_files(self) -> Sequence[Check]:
        facts, view = self.facts, self.view
        checkpoints, lost = facts.read_checkpoints()
        kept = f"{count_of(len(checkpoints), 'checkpoint')}, each with what it needs"
        indexes = facts.read_index_faults(view)
        base, records = facts.read_base_faults(view), facts.read_records()
        return (
            plan.check_files("newest version", facts.read_newest_faults(), "is what its name says"),
            plan.check_files("base table's files", base, "all there, as long as they were"),
            plan.check_files("indexes open", indexes, "each opens, and has its files"),
            plan.check_files("checkpoints", [*lost, *facts.read_cut_faults()], kept),
            plan.check_files("tags", facts.read_tag_faults(), "each names a version that is there"),
            plan.check_files("records", records, "each document of memwal's can be read"),
        )

    def _check_folders(self) -> Sequence[Check]:
        folders: Folders = self.facts.list_folders(self.view)
        self.leavings.extend(folders.leavings)
        return (
            plan.check_strangers(folders.outside, folders.inside),
            plan.count_orphans(self.view.shards, folders.inside),
            plan.check_bare_shards(plan.find_bare_shards(self.view, folders.inside)),
        )

    def _check_manifests(self) -> Sequence[Check]:
        self.facts.check_unforked(self.view)
        return [plan.check_manifests(self.view)]


def find_newer_manifests(
    facts: StoredFacts,
    view: TableView,
    hints: Sequence[Hint],
    named: Mapping[ShardId, int],
    wals: Mapping[ShardId, WalFacts],
) -> dict[ShardId, tuple[str, ...]]:
    """By shard, what shows that it had a newer manifest than the newest that is there.

    What a live writer flushed since the view is there.
    """
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
    seen = {shard.shard_id: shard.manifest for shard in view.shards}
    return {s: texts for s, texts in found.items() if texts and not facts.has_moved(seen[s])}
