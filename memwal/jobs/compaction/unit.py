"""The unit that runs one compaction task, as sent to an executor."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.jobs.compaction.plan import CompactionTask
from memwal.jobs.compaction.ports import RewrittenFragments
from memwal.jobs.compaction.store import LanceCompactionTable
from memwal.run.units import TableUnit, UnitResult, run_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionUnit(TableUnit):
    """Rewrite the fragments of one task. Commits nothing, so it needs no lease."""

    task: CompactionTask


def run_compaction_unit(unit: CompactionUnit) -> UnitResult[RewrittenFragments]:
    """Rewrite some fragments in this process. Never raises: other tasks must go on."""
    return run_unit(unit, lambda stores: LanceCompactionTable(stores.tables).rewrite(unit.task))
