"""The base table's fragments: planning, running and committing Lance's compaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lance.optimize import Compaction, RewriteResult
from lance.optimize import CompactionTask as LanceTask

from memwal.jobs.compaction.apply import RewrittenFragments
from memwal.jobs.compaction.plan import (
    AgedFragment,
    CompactionLimits,
    CompactionTask,
    TableFragments,
)
from memwal.rows.expire import Horizon
from memwal.run.units import TableUnit, UnitResult, run_unit
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lance_calls import call_lance

# Of the commit. Deferring would need an index of its own and is refused with stable row ids.
_OPTIONS: Any = {"defer_index_remap": False}


class LanceCompactionTable:
    """The CompactionTable port over Lance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def fragments(self, version: int) -> TableFragments:
        """Fragments, files and rows of a version (see the port)."""
        return TableFragments(version=version, each=frozenset(self._tables.fragments(version)))

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """Lance's plan for a version (see the port)."""
        planned = self._tables.plan_compaction(
            version,
            target_rows=limits.target_rows_per_fragment,
            deleted_share=limits.materialize_deletions_threshold,
        )
        known = {f.fragment_id: f for f in self._tables.fragments(version)}
        return [
            CompactionTask(
                version=version,
                fragment_ids=ids,
                file_bytes=sum(known[i].file_bytes or 0 for i in ids),
                data=data,
            )
            for ids, data in planned
        ]

    def find_aged(self, version: int, horizon: Horizon) -> Sequence[AgedFragment]:
        """The fragments with rows that have expired (see the port)."""
        dataset = self._tables.at(version)
        scanner = dataset.scanner(columns=[], filter=horizon.expired, with_row_address=True)
        expired: Counter[int] = Counter()
        for batch in call_lance(lambda: scanner.to_batches()):
            fragments = batch.column("_rowaddr").to_numpy() >> 32
            expired.update(dict(zip(*np.unique(fragments, return_counts=True), strict=True)))
        return [
            AgedFragment(
                rows=f.physical_rows,
                deleted_rows=f.num_deletions,
                expired_rows=int(expired[f.fragment_id]),
            )
            for f in call_lance(dataset.get_fragments)
            if expired[f.fragment_id]
        ]

    def purge(self, version: int, horizon: Horizon) -> int:
        """Delete what has expired (see the port)."""
        dataset = self._tables.at(version)
        done = call_lance(lambda: dataset.delete(horizon.expired, conflict_retries=0))
        return int(done["num_deleted_rows"])

    def rewrite(self, task: CompactionTask) -> RewrittenFragments:
        """Run one task: rewrite its fragments, without a commit."""
        dataset = self._tables.at(task.version)
        result = call_lance(lambda: LanceTask.from_json(task.data).execute(dataset))
        return RewrittenFragments(
            fragment_ids=task.fragment_ids, file_bytes=task.file_bytes, data=result.json()
        )

    def commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        """Commit rewritten fragments (see the port)."""
        dataset = self._tables.base()
        results = [RewriteResult.from_json(r.data) for r in rewritten]
        call_lance(lambda: Compaction.commit(dataset, results, _OPTIONS))

    def has_landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        """Whether the latest version has one of the new files (see the port)."""
        new = [fragment for r in rewritten for fragment in json.loads(r.data)["new_fragments"]]
        names = {file["path"] for fragment in new for file in fragment["files"]}
        there = call_lance(self._tables.base().get_fragments)
        return any(file.path in names for fragment in there for file in fragment.data_files())


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionUnit(TableUnit):
    """Rewrite the fragments of one task. Commits nothing, so it needs no lease."""

    task: CompactionTask


def run_compaction_unit(unit: CompactionUnit) -> UnitResult[RewrittenFragments]:
    """Rewrite some fragments in this process. Never raises: other tasks must go on."""
    return run_unit(unit, lambda stores: LanceCompactionTable(stores.tables).rewrite(unit.task))
