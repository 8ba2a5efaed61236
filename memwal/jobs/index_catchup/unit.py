"""A segment of an index, as it travels to an executor to be built."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.jobs.index_catchup.ports import BuiltSegment, SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.run.units import TableUnit, UnitResult, run_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentUnit(TableUnit):
    """Build one segment of an index. Commits nothing, so it needs no lease."""

    task: SegmentTask


def run_segment_unit(unit: SegmentUnit) -> UnitResult[BuiltSegment]:
    """Build one segment in this process. Never raises: other indexes must go on."""
    return run_unit(unit, lambda stores: LanceIndexTable(stores.tables).build(unit.task))
