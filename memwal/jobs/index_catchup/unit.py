"""The unit that builds one segment of an index, as sent to an executor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memwal.jobs.index_catchup.ports import BuiltSegment, SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.run.stores import Stores
from memwal.run.units import TableUnit, UnitResult, run_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentUnit(TableUnit):
    """Build one segment of an index. Commits nothing, so it needs no lease."""

    task: SegmentTask


def run_segment_unit(unit: SegmentUnit) -> UnitResult[BuiltSegment]:
    """Build one segment in this process. Never raises: other indexes must go on."""

    def build(stores: Stores) -> BuiltSegment:
        started = stores.clock.monotonic_seconds()
        built = LanceIndexTable(stores.tables).build(unit.task)
        return replace(built, seconds=stores.clock.monotonic_seconds() - started)

    return run_unit(unit, build)
