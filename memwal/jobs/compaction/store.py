"""The base table's fragments: planning, running and committing Lance's compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lance.optimize import Compaction, RewriteResult
from lance.optimize import CompactionTask as LanceTask

from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask, TableFragments
from memwal.jobs.compaction.ports import RewrittenFragments
from memwal.model import sum_known
from memwal.rows.memory import Memory
from memwal.run.metrics.spans import span
from memwal.store.lance_calls import call_lance
from memwal.store.table import LanceTables

_BATCH_ROWS_MAX = 8192


class LanceCompactionTable:
    """The CompactionTable port over Lance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def fragments(self, version: int) -> TableFragments:
        """Fragments, files and rows of a version (see the port)."""
        found = call_lance(lambda: self._tables.at(version).get_fragments())
        return TableFragments(
            version=version,
            fragment_ids=frozenset(f.fragment_id for f in found),
            files=sum(len(f.metadata.files) for f in found),
            rows=sum(f.metadata.num_rows for f in found),
            deleted_rows=sum(f.num_deletions for f in found),
        )

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """Lance's plan for a version (see the port)."""
        dataset = self._tables.at(version)
        options = {**_options(limits), **_bound_memory(dataset, self._tables.memory)}
        plan = call_lance(lambda: Compaction.plan(dataset, options))
        return [_read_task(version, task) for task in plan.tasks]

    def rewrite(self, task: CompactionTask) -> RewrittenFragments:
        """Run one task: write its fragments anew, uncommitted."""
        dataset = self._tables.at(task.version)
        result = call_lance(lambda: LanceTask.from_json(task.data).execute(dataset))
        return RewrittenFragments(fragment_ids=task.fragment_ids, data=result.json())

    def commit(self, rewritten: Sequence[RewrittenFragments], limits: CompactionLimits) -> None:
        """Commit rewritten fragments (see the port).

        With the options of the plan: a commit without them decides about remapping by itself.
        """
        dataset = self._tables.base()
        results = [RewriteResult.from_json(r.data) for r in rewritten]
        with span("memwal compaction commit", table=dataset.uri, tasks=len(results)):
            call_lance(lambda: Compaction.commit(dataset, results, _options(limits)))


def _options(limits: CompactionLimits) -> dict[str, Any]:
    return {
        "target_rows_per_fragment": limits.target_rows_per_fragment,
        "materialize_deletions": True,
        "materialize_deletions_threshold": limits.materialize_deletions_threshold,
        # Deferring would need an index of its own and is refused with stable row ids.
        "defer_index_remap": False,
    }


def _bound_memory(dataset: Any, memory: Memory) -> dict[str, Any]:
    """What bounds a task's memory by bytes: Lance reads 8,192 rows at once, and 2 GiB ahead.

    A row that is larger than the buffer is read all the same (tried with 60 MB in a buffer of 1).
    """
    files = [(f.physical_rows, sum_known(file.file_size_bytes or None for file in f.data_files()))
             for f in dataset.get_fragments()]  # fmt: skip
    rows = sum(rows for rows, size in files if size is not None)
    per_row = sum(size for _, size in files if size is not None) // max(1, rows)
    batch_rows = max(1, min(_BATCH_ROWS_MAX, memory.batch_bytes // max(1, per_row)))
    return {"batch_size": batch_rows, "io_buffer_size": memory.ahead_bytes}


def _read_task(version: int, task: Any) -> CompactionTask:
    fragments = task.fragments
    return CompactionTask(
        version=version,
        fragment_ids=tuple(f.id for f in fragments),
        rows=sum(f.num_rows for f in fragments),
        file_bytes=sum(file.file_size_bytes or 0 for f in fragments for file in f.files),
        data=task.json(),
    )
