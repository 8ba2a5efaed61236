"""What a run of index catch-up sees (`Look`), aims at (`Goal`) and counts (`Run`)."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.errors import MemWalError, Unsupported
from memwal.indexes import Progress, TableIndexes, find_behind
from memwal.jobs.index_catchup.plan import CatchupLimits, IndexPlan, Method
from memwal.model import TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One version of the table: the progress in its manifest, and what its indexes cover."""

    view: TableView
    table: TableIndexes

    def recorded(self, name: str) -> Progress:
        """The progress that the manifest records for an index; empty for none."""
        return self.view.mem_wal.index_catchup.get(name, {})

    def uncovered_rows(self, name: str) -> int | None:
        """How many rows the index does not cover; None when there is no such index."""
        index = self.table.index(name)
        return None if index is None else self.table.uncovered_rows(index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What has to be covered and recorded, which is the state at the start of the run."""

    fragments: frozenset[int]
    merged: Progress

    def is_reached(self, look: Look, name: str) -> bool:
        """Whether the index covers the goal's fragments, and records its merge progress."""
        index = look.table.index(name)
        if index is None or find_behind(look.recorded(name), self.merged):
            return False
        left = {f.fragment_id for f in look.table.uncovered(index)}
        return not left & self.fragments


@dataclass(kw_only=True, slots=True)
class Run:
    """The running totals of one index."""

    plan: IndexPlan
    had_work: bool = False
    rounds: int = 0
    conflicts: int = 0
    faults: int = 0
    seconds: float = 0.0
    work_seconds: float = 0.0
    error: MemWalError | None = None
    committed: bool = False
    retrained: bool = False
    method: Method = Method.NONE
    reason: str = ""
    rows: int = 0
    column_bytes: int = 0
    expected_seconds: float = 0.0

    @property
    def owes_retrain(self) -> bool:
        """Whether a retrain was begun and has not landed, which coverage alone does not show."""
        return self.method is Method.RETRAIN and not self.retrained

    @property
    def is_open(self) -> bool:
        """Whether there is still something to commit."""
        return self.error is None and self.plan.has_work

    def begin_round(self) -> None:
        """Begin one more round; the first round that indexes is the one to report."""
        self.rounds += 1
        self.committed = False
        if self.method is Method.NONE:
            self.method, self.reason = self.plan.method, self.plan.reason
            self.rows, self.column_bytes = self.plan.rows, self.plan.column_bytes
            self.expected_seconds = self.plan.seconds

    def check_refusal(self) -> None:
        """End the run of an index that can't be caught up at all, with Unsupported."""
        if self.plan.refusal is not None:
            self.error = Unsupported("MW-X01", self.plan.refusal)

    def count_fault(self, fault: MemWalError, limits: CatchupLimits) -> None:
        """Count one more fault; too many of them end the run of the index."""
        self.faults += 1
        if self.faults >= limits.fault_attempts_max:
            self.error = fault
