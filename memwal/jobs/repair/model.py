"""What a repair judges by, what it finds damaged, and the effects that mend it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from memwal.format import layout
from memwal.format.replay import WalEntry
from memwal.jobs.verify.plan import CatchUpFacts, Check, FileFault, GenerationFacts, Hint
from memwal.model import (
    BackupObject,
    Checkpoint,
    FlushedGeneration,
    ShardId,
    ShardManifest,
    ShardView,
    TableView,
    VersionManifest,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredManifests:
    """The manifests of a shard that are stored, and what is wrong with those that can't be read.

    `stored` are all names that are taken, by stoppers too; `times` when these were written.
    """

    readable: Mapping[int, ShardManifest] = field(default_factory=dict)
    damaged: Mapping[int, str] = field(default_factory=dict)
    stored: frozenset[int] = frozenset()
    times: Mapping[int, int] = field(default_factory=dict)

    @property
    def highest(self) -> int:
        """The highest version that is stored, readable or not; 0 without any."""
        return max((*self.readable, *self.damaged), default=0)

    @property
    def highest_name(self) -> int:
        """The highest version whose name is taken, by a stopper too; 0 without any."""
        return max((self.highest, *self.stored))

    @property
    def newest_readable(self) -> ShardManifest | None:
        """The newest of those that can be read."""
        return self.readable[max(self.readable)] if self.readable else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEvidence:
    """What is stored of one shard.

    `view` is None where its newest manifest can't be used. `newer` says what shows that a newer
    manifest is missing. `manifests` is read for a shard with damage only. `snapshot` is the shard's
    row in the shard snapshot, `kept` what checkpoints name of its generations. `listed` has what
    opening each listed generation showed; `folders` the generations' folders, and `opened` those of
    `kept` and `snapshot` that open. `newest_at_nanos` is the time of its newest file. `keys` has
    the keys of damaged generations, by number, as far as their own index still tells.
    """

    shard_id: ShardId
    merged: int
    view: ShardView | None
    newer: tuple[str, ...] = ()
    manifests: StoredManifests = StoredManifests()
    hint: int | None = None
    snapshot: ShardManifest | None = None
    kept: tuple[FlushedGeneration, ...] = ()
    named_version: int = 0
    entries: tuple[WalEntry, ...] = ()
    listed: tuple[GenerationFacts, ...] = ()
    folders: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    newest_at_nanos: int = 0
    keys: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One look at a table: what `verify` checked, and the facts behind it.

    `committed` has the versions from which a commit was begun, by Lance's records of them.
    `digests` has the SHA-256 of the files that something is wrong with, by path, as far as they
    are there; `times` when lease claims were written.
    """

    view: TableView
    checks: tuple[Check, ...]
    shards: tuple[ShardEvidence, ...]
    hints: tuple[Hint, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    checkpoint_faults: tuple[FileFault, ...] = ()
    record_faults: tuple[FileFault, ...] = ()
    index_faults: tuple[FileFault, ...] = ()
    base_faults: tuple[FileFault, ...] = ()
    version_faults: tuple[FileFault, ...] = ()
    committed: frozenset[int] = frozenset()
    history: tuple[VersionManifest, ...] = ()
    rewound: frozenset[int] = frozenset()
    catch_up: tuple[CatchUpFacts, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    idle_seconds: float = 0.0
    now_nanos: int = 0

    def broken(self, name: str) -> Check | None:
        """The check of that name, if it found something."""
        return next((c for c in self.checks if c.name == name and c.ok is False), None)


class Action(StrEnum):
    """What becomes of a damage."""

    MEND = "mend"
    """Everything comes back."""
    SALVAGE = "salvage"
    """The table can be used again, and something is lost."""
    LEAVE = "leave"
    """Nothing that is stored proves how it was."""


# ---- effects: the only things that a repair ever does


@dataclass(frozen=True, kw_only=True, slots=True)
class PutManifest:
    """Store a shard's manifest as its next version, put-if-absent."""

    manifest: ShardManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class PutStopper:
    """Take the name of a shard's manifest that is missing between others, put-if-absent."""

    shard_id: ShardId
    version: int
    at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PutSentinel:
    """Put an empty WAL entry at a position: put-if-absent where `digest` is None.

    Otherwise it takes the place of what has that digest, which is kept in quarantine.
    """

    shard_id: ShardId
    position: int
    writer_epoch: int
    digest: str | None

    @property
    def path(self) -> str:
        """The entry's path."""
        return layout.wal_entry_path(self.shard_id, self.position)


@dataclass(frozen=True, kw_only=True, slots=True)
class PutCheckpoint:
    """Store a checkpoint's record in the place of the one with that digest."""

    checkpoint: Checkpoint
    digest: str

    @property
    def path(self) -> str:
        """The record's path."""
        return layout.checkpoint_path(self.checkpoint.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseClaim:
    """Put a released claim of the same number in the place of a lease claim with that digest."""

    token: int
    digest: str

    @property
    def path(self) -> str:
        """The claim's path."""
        return layout.lease_claim_path(self.token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replace:
    """Put another object in the place of one with that digest, which is kept in quarantine."""

    path: str
    data: bytes
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveAway:
    """Move an object with that digest into quarantine."""

    path: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flush:
    """Claim a shard, which fences its writer, and flush what is in its WAL only."""

    shard_id: ShardId
    memtable_rows_max: int
    memtable_batches_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tag:
    """Tag a version of the base for a checkpoint."""

    key: str
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildIndex:
    """Build an index of the base again, with its parameters, in the place of the one there."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RaiseProgress:
    """Raise the merge progress of the latest version, which has to be `version`."""

    version: int
    merged: Mapping[ShardId, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeSnapshot:
    """Take the shard snapshot again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """Copy an object from a backup; what is in its place, with that digest, is quarantined."""

    wanted: BackupObject
    digest: str | None = None

    @property
    def path(self) -> str:
        """The object's path, in the backup as in the table."""
        return self.wanted.path


Effect = (
    PutManifest
    | PutStopper
    | PutSentinel
    | PutCheckpoint
    | ReleaseClaim
    | Replace
    | MoveAway
    | Flush
    | Tag
    | BuildIndex
    | RaiseProgress
    | TakeSnapshot
    | Fetch
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """One thing that is damaged, and how it is mended.

    `finding` says what is wrong, `evidence` from what it is mended, or why it is not. `lost` is
    what can't be brought back, as far as that can be said. `loses_rows`: mending it gives up rows
    that a backup may have. `fences`: mending it claims the shard.
    `checks` are the names of the checks that report it. `objects` are the paths, or folders, of
    what a backup would have to have.
    """

    kind: str
    path: str
    action: Action
    finding: str
    evidence: str
    checks: tuple[str, ...]
    objects: tuple[str, ...] = ()
    shard_id: ShardId | None = None
    lost: tuple[str, ...] = ()
    loses_rows: bool = False
    fences: bool = False
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairLimits:
    """How often the table is looked at again, as mending one thing may show the next."""

    rounds_max: int = 8


def describe_span(numbers: Sequence[int]) -> str:
    """Numbers for people: `3`, or `3 to 7`."""
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first} to {last}"
