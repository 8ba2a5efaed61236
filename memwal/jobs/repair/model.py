"""What a repair judges by, what it finds damaged, and the effects that mend it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, computed_field

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.format.replay import WalEntry
from memwal.jobs.verify.plan import Check, FileFault, GenerationFacts, Hint
from memwal.model import (
    BackupObject,
    ShardId,
    ShardManifest,
    TableView,
    VersionManifest,
)
from memwal.report import Section

RESTORE = "a repair does not mend it: restore a backup (`memwal restore`)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEvidence:
    """What is stored of a shard whose newest manifest is in doubt.

    `error` is why it can't be used, `newer` what shows that a newer one is missing. `readable` are
    the manifests that can be read; `damaged` says of the others what is wrong; `times` when each
    name was taken, by a stopper too. `named_version` is the highest that a snapshot or a checkpoint
    names. `folders` are the generations' folders. `unfit` are entries, by position, whose columns
    are not the table's.
    """

    shard_id: ShardId
    merged: int
    error: Exception | None = None
    newer: tuple[str, ...] = ()
    readable: Mapping[int, ShardManifest] = field(default_factory=dict)
    damaged: Mapping[int, str] = field(default_factory=dict)
    times: Mapping[int, int] = field(default_factory=dict)
    hint: int | None = None
    named_version: int = 0
    entries: tuple[WalEntry, ...] = ()
    unfit: Mapping[int, MemWalError] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()

    @property
    def base(self) -> ShardManifest | None:
        """The newest manifest that can be read."""
        return self.readable[max(self.readable)] if self.readable else None

    @property
    def highest(self) -> int:
        """The highest version that is stored, readable or not; 0 without any."""
        return max((*self.readable, *self.damaged), default=0)

    @property
    def highest_name(self) -> int:
        """The highest version whose name is taken, by a stopper too; 0 without any."""
        return max((self.highest, *self.times))


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One look at a table: what `verify` checked, and the facts behind it.

    `shards` are those whose newest manifest is in doubt. `committed` has the versions from which a
    commit was begun, by Lance's records of them. `digests` has the SHA-256 of the files that
    something is wrong with, by path, as far as they are there; `times` when lease claims were
    written.
    """

    view: TableView
    checks: tuple[Check, ...] = ()
    shards: tuple[ShardEvidence, ...] = ()
    hints: tuple[Hint, ...] = ()
    generations: tuple[GenerationFacts, ...] = ()
    file_faults: tuple[FileFault, ...] = ()
    version_faults: tuple[FileFault, ...] = ()
    record_faults: tuple[FileFault, ...] = ()
    committed: frozenset[int] = frozenset()
    history: tuple[VersionManifest, ...] = ()
    rewound: frozenset[int] = frozenset()
    digests: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    now_nanos: int = 0


# ---- effects: the only things that a repair ever does


@dataclass(frozen=True, kw_only=True, slots=True)
class PutManifest:
    """Store a shard's manifest as its next version, put-if-absent. It fences the shard's writer."""

    manifest: ShardManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class PutStopper:
    """Take the name of a shard's manifest that is missing between others, put-if-absent."""

    path: str
    at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Flush:
    """Claim a shard, which fences its writer, and flush what is in its WAL only.

    `memtable` has the bounds with which it can be replayed.
    """

    shard_id: ShardId
    memtable: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replace:
    """Put bytes, or an object of a backup, in the place of what has that digest, or of nothing.

    With None, it is moved away. In the place of a lease claim, a released one of its number is put:
    no number is given twice.
    """

    path: str
    by: bytes | BackupObject | None
    digest: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RaiseProgress:
    """Raise the merge progress of the latest version, which has to be `version`."""

    version: int
    merged: Mapping[ShardId, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeSnapshot:
    """Take the shard snapshot again."""


Effect = PutManifest | PutStopper | Flush | Replace | RaiseProgress | TakeSnapshot


class Damage(Section):
    """One thing that is damaged, and how it is mended: not at all without `effects`.

    `finding` says what is wrong, `evidence` from what it is mended, or what to do instead. `lost`
    is what can't be brought back by then, as far as that can be said. `done`: nothing of it was
    left at the end of this run, as far as it was looked at. `error`: why mending it failed.

    `checks` are the names of the checks that report it. `objects` are the paths, or folders, of
    what a backup would have to have.
    """

    kind: str
    shard_id: ShardId | None = None
    path: str
    finding: str
    evidence: str
    lost: tuple[str, ...] = ()
    done: bool = False
    error: str | None = None
    checks: tuple[str, ...] = Field(exclude=True)
    objects: tuple[str, ...] = Field(default=(), exclude=True)
    effects: tuple[Any, ...] = Field(default=(), exclude=True)

    @property
    def name(self) -> tuple[str, str, str]:
        """What tells it from others, in one look and from one to the next."""
        return self.kind, self.path, self.finding

    @computed_field  # type: ignore[prop-decorator]
    @property
    def action(self) -> str:
        """Mend or leave."""
        return "mend" if self.effects else "leave"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fences(self) -> bool:
        """Whether its shard is claimed to mend it, which fences a writer that is open."""
        return any(isinstance(effect, PutManifest) for effect in self.effects)

    @property
    def frees_lease(self) -> bool:
        """Whether it has to be mended before a lease can be taken."""
        return bool(self.effects) and layout.parse_lease_claim(self.path) is not None
