"""The checks that `verify` makes, by name and in order. A repair begins with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memwal.errors import Corruption, MemWalError
from memwal.jobs.verify import plan
from memwal.jobs.verify.plan import Check, Hint
from memwal.jobs.verify.store import StoredFacts
from memwal.model import ShardId
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


def list_checks(facts: StoredFacts) -> dict[str, Checks]:
    """The checks of one table by name, in order; each makes one or several."""
    view = facts.view

    def check_manifests() -> Sequence[Check]:
        facts.check_unforked()
        return [plan.check_manifests(view)]

    def check_keys() -> Sequence[Check]:
        found, rows = facts.find_shared_key(KEYS_COMPARED_MAX)
        return [plan.check_one_shard(found, rows, KEYS_COMPARED_MAX)]

    def check_history() -> Sequence[Check]:
        history = facts.history
        return (
            plan.check_progress_history(history, facts.find_rewound(history), view.shards),
            plan.check_catch_up(view, facts.read_catch_up()),
            plan.check_spec_ids(history, view.shards),
        )

    def check_wals() -> Sequence[Check]:
        wals = {shard.shard_id: facts.read_wal(shard.shard_id) for shard in view.shards}
        hints = facts.hints
        newer = find_newer_manifests(facts, hints, facts.read_named_versions())
        return (
            plan.check_wal(view.shards, wals),
            plan.check_sentinels(view.shards, wals),
            plan.check_newest([text for found in newer.values() for text in found], len(wals)),
            plan.check_hints(hints),
        )

    def check_folders() -> Sequence[Check]:
        inside, foreign = facts.folders
        return (
            plan.check_strangers(foreign, inside),
            plan.check_bare_shards(plan.find_bare_shards(view, inside)),
        )

    def check_files() -> Sequence[Check]:
        checkpoints, lost = facts.checkpoints
        kept = f"{count_of(len(checkpoints), 'checkpoint')}, each with what it needs"
        indexes, tags = facts.read_index_faults(), facts.read_tag_faults()
        return (
            plan.check_files("newest version", facts.newest_faults, "is what its name says"),
            plan.check_files("base table's files", facts.base_faults, "all as long as they were"),
            plan.check_files("indexes open", indexes, "each opens, and has its files"),
            plan.check_files("checkpoints", [*lost, *facts.cut_faults], kept),
            plan.check_files("tags", tags, "each names a version that is there"),
            plan.check_files("records", facts.record_faults, "memwal's documents can be read"),
        )

    return {
        "shard manifests": check_manifests,
        "generations contiguous": lambda: [plan.check_contiguous(view.shards)],
        "listed generations": lambda: [plan.check_generations(facts.generation_facts)],
        "one key, one shard": check_keys,
        "merge progress and catch-up": check_history,
        "shard snapshot": lambda: [plan.check_snapshot(view, *facts.snapshot)],
        "WAL": check_wals,
        "folders": check_folders,
        "files": check_files,
        "lineage": lambda: [plan.check_lineage(facts.find_foreign_shards())],
    }


def find_newer_manifests(
    facts: StoredFacts, hints: Sequence[Hint], named: Mapping[ShardId, int]
) -> dict[ShardId, tuple[str, ...]]:
    """By shard, what shows that it had a newer manifest than the newest that is there.

    What a live writer flushed since the view is there.
    """
    hinted = {hint.shard_id: hint.found for hint in hints if hint.shard_id is not None}
    shards = facts.view.shards
    found = {
        shard.shard_id: plan.find_newer(
            shard.manifest,
            shard.merged_generation,
            hinted.get(shard.shard_id),
            named.get(shard.shard_id, 0),
            facts.read_wal(shard.shard_id),
        )
        for shard in shards
    }
    seen = {shard.shard_id: shard.manifest for shard in shards}
    return {s: texts for s, texts in found.items() if texts and not facts.has_moved(seen[s])}
