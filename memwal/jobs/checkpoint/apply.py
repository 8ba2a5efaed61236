"""Makes a checkpoint: every step, and in which order.

1. Take the lease, so that no other memwal job works on the table meanwhile.
2. Look, and store the record, not yet ready: from now on garbage keeps the cut's generations.
3. Tag the version, and check that it is still the latest. If so, a cleanup that began before the
   tag saw it as the latest version, which no cleanup removes, and one that begins later sees the
   tag. If not, another version has landed: remove record and tag, and try the new version.
4. Mark the record as ready, and check that no other of its name is ready. Of two made at the same
   time, the one that checks last sees both, so that never both stay.

The lease only saves work; the order is safe without it. The version has not merged the pending
generations of the cut, and it is retained from its commit on. So no garbage run finds them merged
at every retained version, before the tag or after it (invariant 6).

It may be killed anywhere (invariant 8): a record that is not ready can't be read, and is removed
with its tag, by the next checkpoint of its name or, a day later, by garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from memwal.errors import LostRace, MemWalError, Refused
from memwal.format import layout
from memwal.jobs.checkpoint.plan import CheckpointLimits, CheckpointRequest, plan_checkpoint
from memwal.model import Checkpoint, TableView
from memwal.ports import Clock, Steps, no_steps
from memwal.text import iso_time


class ProbedViews(Protocol):
    """Views of a table whose shards can be looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """The latest version with every shard; `probed` trusts no listing of manifests."""
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...


class Checkpoints(Protocol):
    """The records of a table's checkpoints. Raises Corruption, StoreUnavailable."""

    def list(self) -> Sequence[Checkpoint]:
        """All stored checkpoints."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Store the checkpoint, replacing its earlier record."""
        ...

    def remove(self, checkpoint: Checkpoint) -> None:
        """Mark the checkpoint as expired, then delete its tag and its record."""
        ...


class Tags(Protocol):
    """Lance's tags."""

    def tag(self, name: str, version: int) -> None:
        """Tag a version of the base. Raises LostRace when that is gone, StoreUnavailable."""
        ...


@dataclass(frozen=True, kw_only=True)
class CheckpointMaker:
    """Makes checkpoints of one table."""

    uri: str
    views: ProbedViews
    checkpoints: Checkpoints
    tags: Tags
    clock: Clock
    take_lease: Callable[[], None]
    """Proves the store, and claims the table. Raises LeaseHeld."""
    before_commit: Callable[[], None]
    """Called before each writing step; raises LeaseHeld when the claim was lost."""
    limits: CheckpointLimits = CheckpointLimits()
    steps: Steps = no_steps

    def plan(self, request: CheckpointRequest) -> Checkpoint:
        """The checkpoint that would be made; raises Refused if its name is taken or rows miss."""
        self._check_free(request.name)
        now, end = self.clock.now_nanos(), self.clock.new_id().replace("-", "")[:8]
        view = self.views.table(probed=True)
        return plan_checkpoint(view, request, key=f"{request.name}.{end}", now_nanos=now)

    def create(self, request: CheckpointRequest) -> Checkpoint:
        """Make it. Raises Refused, LostRace, LeaseHeld, Corruption, StoreUnavailable."""
        self._check_free(request.name)
        self.take_lease()
        self._clear(request.name)
        for _ in range(self.limits.attempts_max):
            made = self.plan(request)
            try:
                if self._hold(made):
                    return self._finish(made)
            except MemWalError:
                with suppress(MemWalError):  # what is left is garbage
                    self.checkpoints.remove(made)
                raise
            self.checkpoints.remove(made)
        raise LostRace(
            f"{self.uri}: others committed to the table each of {self.limits.attempts_max} times "
            "that its latest version was to be kept; run again"
        )

    def _hold(self, made: Checkpoint) -> bool:
        """Steps 2 and 3; returns whether the tagged version is still the latest."""
        self.before_commit()
        self.steps("record")
        self.checkpoints.put(made)
        self.steps("tag")
        try:
            self.tags.tag(layout.checkpoint_tag(made.key), made.version)
        except LostRace:
            return False
        self.steps("tagged")
        return self.views.table_version() == made.version

    def _finish(self, made: Checkpoint) -> Checkpoint:
        self.before_commit()
        self.steps("ready")
        ready = replace(made, ready=True)
        self.checkpoints.put(ready)
        self.steps("made")
        self._check_free(made.name, but=made.key)
        return ready

    def _check_free(self, name: str, but: str = "") -> None:
        """Raise Refused where a checkpoint of that name is ready and has not expired."""
        now = self.clock.now_nanos()
        for other in self.checkpoints.list():
            is_other = other.name == name and other.key != but
            if is_other and other.ready and not other.is_expired(now):
                raise Refused(
                    "MW-C01",
                    f"{self.uri}: checkpoint {name!r} is there, of version {other.version}, "
                    f"made {iso_time(other.created_at_nanos)} for {other.holder}: choose another "
                    "name, or drop it first",
                )

    def _clear(self, name: str) -> None:
        """Remove unfinished checkpoints of that name, which earlier, killed runs left."""
        for other in self.checkpoints.list():
            if other.name == name and not other.ready:
                self.before_commit()
                self.checkpoints.remove(other)
