"""What a run of `garbage` is asked for, and what it knows of each table."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply import Deleted, Dropped
from memwal.jobs.garbage.model import Evidence, GarbageLimits, GarbagePlan, WriterClaim
from memwal.jobs.garbage.store import StoredGarbageEvidence, open_evidence
from memwal.model import TableView
from memwal.ports import Expired
from memwal.run.options import RunOptions
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """What `garbage` takes besides. `retention_seconds` None expires no version."""

    execute: bool = False
    retention_seconds: float | None = None
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.execute and not self.dry_run


@dataclass(kw_only=True)
class GarbageRun:
    """One table on its way. `view` is None for a table whose MemWAL index is gone."""

    table: OpenTable
    view: TableView | None = None
    version: int = 0
    evidence: Evidence | None = None
    plan: GarbagePlan | None = None
    expirable: int = 0
    never_merged: tuple[str, ...] = ()
    old_claim: WriterClaim | None = None
    """The oldest writer claim that is older than the retention, where something is collected."""
    expired: Expired | None = None
    acted: bool = False
    fast_nanos: int = 0
    """How far this host's clock is ahead of the store's, once that was looked at."""
    dropped: tuple[Dropped, ...] = ()
    deleted: list[Deleted] = field(default_factory=list)
    broken: InvariantBroken | None = None
    """Why nothing more is done for this table: a step of it would have broken an invariant."""

    @property
    def stores(self) -> Stores:
        """The table's stores. Raises what kept it from being opened."""
        if self.table.stores is None:
            raise self.table.failure
        return self.table.stores

    @cached_property
    def source(self) -> StoredGarbageEvidence:
        """Where the evidence is read; it remembers what it has read."""
        return open_evidence(self.stores.objects)
