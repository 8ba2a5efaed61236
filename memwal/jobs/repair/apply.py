"""Mends a table: looks, mends what can be mended, and looks again until nothing more can be.

It may be killed after any step, and is then simply run again: each step leaves a table that is no
worse than before, and what is left is found by the next look. What is replaced or moved away is
copied into quarantine first, and only if it is still what was judged. A shard that is set back has
its rows in the WAL, where whoever claims it next replays them; that is the last step here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.errors import MemWalError, Refused
from memwal.jobs.repair.model import (
    BuildIndex,
    Damage,
    Effect,
    Evidence,
    Fetch,
    Flush,
    MoveAway,
    PutCheckpoint,
    PutManifest,
    PutSentinel,
    PutStopper,
    RaiseProgress,
    ReleaseClaim,
    RepairLimits,
    Replace,
    Tag,
    TakeSnapshot,
)
from memwal.jobs.repair.plan import choose_next, find_damage, frees_lease, hold_losses
from memwal.jobs.verify.plan import Check
from memwal.model import Checkpoint, ShardId, ShardManifest
from memwal.ports import Steps, no_steps


class Hands(Protocol):
    """What a repair does to a table. Each raises LostRace for what is not as it was judged."""

    def quarantine(self, path: str, digest: str) -> None:
        """Copy an object with that digest to where a repair keeps what it replaces."""
        ...

    def put_manifest(self, manifest: ShardManifest) -> None:
        """Store a shard's manifest, put-if-absent."""
        ...

    def put_stopper(self, shard_id: ShardId, version: int, at_nanos: int) -> None:
        """Take the name of a manifest that is missing, put-if-absent."""
        ...

    def put_sentinel(self, effect: PutSentinel) -> None:
        """Put an empty entry into a shard's WAL, put-if-absent unless one is replaced."""
        ...

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint's record."""
        ...

    def release_claim(self, token: int) -> None:
        """Put a released claim of that number."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Put another object in the place of one."""
        ...

    def remove(self, path: str) -> None:
        """Delete an object, whose copy is in quarantine."""
        ...

    def flush(self, effect: Flush) -> None:
        """Claim a shard and flush its WAL."""
        ...

    def tag(self, key: str, version: int) -> None:
        """Tag a version for a checkpoint."""
        ...

    def build_index(self, name: str) -> None:
        """Build an index again."""
        ...

    def raise_progress(self, version: int, merged: Mapping[ShardId, int]) -> None:
        """Raise merge progress."""
        ...

    def take_snapshot(self) -> None:
        """Take the shard snapshot again."""
        ...

    def fetch(self, effect: Fetch) -> None:
        """Copy an object from a backup, checked by its digest."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Mended:
    """A damage that was worked on, and the error that ended that, if any."""

    damage: Damage
    error: MemWalError | None = None


@dataclass(kw_only=True)
class TableRepair:
    """Repairs one table. `first` and `last` are what the looks before and after found.

    `checks` are those of the last look.

    `consult` mends by a backup what nothing in the table brings back. Without `accept_loss`,
    whatever would lose rows after that waits. `intend` writes down what is about to be mended.
    """

    uri: str
    look: Callable[[], Evidence]
    hands: Hands
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    confirm: Callable[[Sequence[Damage]], bool]
    consult: Callable[[Sequence[Damage]], Sequence[Damage]] | None = None
    accept_loss: bool = False
    intend: Callable[[Sequence[Damage]], None] = lambda damages: None
    limits: RepairLimits = RepairLimits()
    steps: Steps = no_steps
    first: Sequence[Damage] = ()
    last: Sequence[Damage] = ()
    checks: Sequence[Check] = ()
    mended: list[Mended] = field(default_factory=list)

    def list(self) -> None:
        """Look, and change nothing."""
        self.first = self.last = self._find()

    def run(self) -> None:
        """Mend what can be mended.

        Raises Refused if shards are not to be claimed, LeaseHeld, and what a look raises.
        """
        self.first = self.last = self._find()
        if self._mend([d for d in self.first if frees_lease(d)]):
            self.last = self._find()
        if not any(damage.effects for damage in self.last):
            return
        self.take_lease()
        for _ in range(self.limits.rounds_max):
            self.last = self._find()
            self._ask(self.last)
            if not self._mend(choose_next(self.last, [m.damage for m in self.mended])):
                return
        self.last = self._find()

    def _find(self) -> Sequence[Damage]:
        evidence = self.look()
        self.checks = evidence.checks
        damages: Sequence[Damage] = find_damage(evidence)
        if self.consult is not None:
            damages = self.consult(damages)
        if self.accept_loss:
            return damages
        return hold_losses(damages, asked=self.consult is not None)

    def _ask(self, damages: Sequence[Damage]) -> None:
        asked = {m.damage.shard_id for m in self.mended}
        fencing = [d for d in damages if d.fences and d.effects and d.shard_id not in asked]
        if fencing and not self.confirm(fencing):
            raise Refused("MW-R01", f"{self.uri}: not confirmed; no shard was claimed")

    def _mend(self, damages: Sequence[Damage]) -> bool:
        """Whether anything was tried; errors of one damage leave the others alone."""
        if damages:
            self.intend(damages)
        for damage in damages:
            error: MemWalError | None = None
            try:
                for effect in damage.effects:
                    self.before_commit()
                    self.do(effect)
            except MemWalError as caught:
                error = caught
            self.mended.append(Mended(damage=damage, error=error))
        return bool(damages)

    def do(self, effect: Effect) -> None:
        """One effect, after a copy of what it replaces. Raises what the port does."""
        hands = self.hands
        self.steps(type(effect).__name__)
        match effect:
            case PutManifest():
                hands.put_manifest(effect.manifest)
            case PutStopper():
                hands.put_stopper(effect.shard_id, effect.version, effect.at_nanos)
            case PutSentinel():
                if effect.digest is not None:
                    self._keep(effect.path, effect.digest)
                hands.put_sentinel(effect)
            case PutCheckpoint():
                self._keep(effect.path, effect.digest)
                hands.put_checkpoint(effect.checkpoint)
            case ReleaseClaim():
                self._keep(effect.path, effect.digest)
                hands.release_claim(effect.token)
            case Replace():
                self._keep(effect.path, effect.digest)
                hands.replace(effect.path, effect.data)
            case MoveAway():
                self._keep(effect.path, effect.digest)
                hands.remove(effect.path)
            case Fetch():
                if effect.digest is not None:
                    self._keep(effect.path, effect.digest)
                hands.fetch(effect)
            case Flush():
                hands.flush(effect)
            case Tag():
                hands.tag(effect.key, effect.version)
            case BuildIndex():
                hands.build_index(effect.name)
            case RaiseProgress():
                hands.raise_progress(effect.version, effect.merged)
            case TakeSnapshot():
                hands.take_snapshot()

    def _keep(self, path: str, digest: str) -> None:
        self.hands.quarantine(path, digest)
        self.steps("quarantined")
