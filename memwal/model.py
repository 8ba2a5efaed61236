"""Frozen values that every layer shares. No I/O, no Arrow, no protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NewType

# A shard's UUID in canonical lower-case text, as it names the folder under `_mem_wal/`.
ShardId = NewType("ShardId", str)

GRACE_SECONDS = 3600.0  # what nothing needs any more is kept, for readers that are still at it
FRESHNESS_SECONDS = 60.0  # within which the rows of a table are merged that says nothing of it


class ShardStatus(IntEnum):
    """ShardManifest field 15 as pylance 14 writes it."""

    ACTIVE = 0
    SEALED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One listed object: its path below the store's root, its size and its age.

    `etag` changes with the content; it is empty if the store has none.
    """

    path: str
    size_bytes: int
    modified_at_nanos: int
    etag: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlushedGeneration:
    """One entry of ShardManifest.flushed_generations.

    `path` is the bare folder name, whose form has been checked already. Sizes are None if the
    writer did not record them: absent is not zero. `estimated` marks sizes that were read from the
    files later; values are packed there, so memory must not be planned by these sizes alone.
    """

    generation: int
    path: str
    in_memory_bytes: int | None = None
    physical_rows: int | None = None
    primary_key_bytes: int | None = None
    estimated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardManifest:
    """One version of a shard's manifest.

    `raw` keeps fields that this build does not know; `unknown_fields` names them.
    """

    shard_id: ShardId
    version: int
    writer_epoch: int
    current_generation: int
    replay_after_wal_entry_position: int = 0
    wal_entry_position_last_seen: int = 0
    shard_spec_id: int = 0
    flushed_generations: tuple[FlushedGeneration, ...] = ()
    shard_field_entries: tuple[tuple[str, bytes], ...] = ()
    status: ShardStatus = ShardStatus.ACTIVE
    raw: bytes = b""
    unknown_fields: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardField:
    """One derived field of a shard spec (spec: Shard Spec)."""

    field_id: str
    source_ids: tuple[int, ...] = ()
    transform: str | None = None
    expression: str | None = None
    result_type: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSpec:
    """How rows map to shards. `spec_id` 0 never occurs here: it marks manual shards."""

    spec_id: int
    fields: tuple[ShardField, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemWalState:
    """MemWalIndexDetails of one table version, with the entry's own uuid and creation time.

    `merged` maps a shard to its highest merged generation; a shard that is absent was never
    merged. `index_catchup` maps an index name to such a map; an index that is absent is NOT known
    to be caught up (seen on pylance 14). `raw` keeps fields that this build does not know;
    `unknown_fields` names them.
    """

    index_uuid: str
    created_at_millis: int | None
    merged: Mapping[ShardId, int]
    index_catchup: Mapping[str, Mapping[ShardId, int]]
    maintained_indexes: tuple[str, ...] = ()
    maintain_all_indexes: bool | None = None
    shard_specs: tuple[ShardSpec, ...] = ()
    snapshot_ts_millis: int = 0
    num_shards: int = 0
    inline_snapshots: bytes | None = None
    writer_config_defaults: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    unknown_fields: tuple[str, ...] = ()

    def caught_up_to(self, shard: ShardId, indexes: Iterable[str]) -> int:
        """Return the generation up to which the shard is merged and all these indexes caught up."""
        recorded = (self.index_catchup.get(name, {}).get(shard, 0) for name in indexes)
        return min((self.merged.get(shard, 0), *recorded))


NO_MEM_WAL = MemWalState(index_uuid="", created_at_millis=None, merged={}, index_catchup={})
"""In a view of a plain Lance table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexEntry:
    """One segment in a version's index section. A logical index may have several."""

    uuid: str
    name: str
    field_ids: tuple[int, ...]
    type_url: str
    dataset_version: int
    created_at_millis: int | None
    fragment_bitmap: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionHeader:
    """The part of a version that shows whether it continues another version."""

    version: int
    timestamp_nanos: int
    has_mem_wal: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionManifest:
    """What is read out of one `_versions/*.manifest` file."""

    version: int
    timestamp_nanos: int
    mem_wal: MemWalState | None
    indexes: tuple[IndexEntry, ...] = ()
    branch: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = 0
    requests: int = 0
    transaction_file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFacts:
    """A version's manifest, with the primary key and the row count that its file also holds."""

    manifest: VersionManifest
    primary_key: tuple[str, ...]
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFiles:
    """A shard's WAL entries with their positions, and the number of its manifest objects.

    `former` maps folders to their sizes in bytes, for generations that an earlier MemWAL index had
    merged and that nothing lists any more.
    """

    wal: Sequence[tuple[int, StoredFile]]
    manifests: int
    former: Mapping[str, int] = field(default_factory=dict)


LOWERING_JOB = "snapshot"
"""Lease claims under this job name may lower merge progress for a moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseClaim:
    """One numbered claim on a table's lease. `token` is the number: the fencing token.

    A claim whose `released` is set, or whose `expires_at_nanos` has passed, holds nothing. A claim
    made by `lease break` is released from the start and carries the operator's `reason`.
    `length_nanos` is how long the claim lasts without a heartbeat. It is a setting of the holder,
    which others need not share; a claim stored without it comes from a build that knew only one
    length. `run_id` is the run that made the claim, `airflow` the task that started that run, as it
    was stored, only to be shown. `unfenced` tells that a refresh was cut off before, and that none
    has committed since. `unknown` keeps a newer build's fields; the others mean the same.
    """

    token: int
    claim_id: str
    holder: str
    job: str
    acquired_at_nanos: int
    expires_at_nanos: int
    released: bool = False
    reason: str | None = None
    run_id: str | None = None
    airflow: Mapping[str, object] | None = field(default=None, hash=False)
    length_nanos: int = 300 * 10**9
    unfenced: bool = False
    unknown: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def may_lower(self) -> bool:
        """Whether a refresh may still commit: one under this claim, or one cut off before it."""
        return self.unfenced or (self.job == LOWERING_JOB and not self.released)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointShard:
    """A shard as a checkpoint keeps it: its generations up to `generation`, then the newest.

    `pending` are the ones among them that the checkpoint's version has not merged.
    """

    shard_id: ShardId
    manifest_version: int
    merged_generation: int
    generation: int
    pending: tuple[FlushedGeneration, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A table at one moment: a version of the base, and each shard's generations at that time.

    `key` is the name with a unique suffix, so that no other checkpoint ever has the same key. A
    checkpoint protects what it names until `expires_at_nanos` (None: until it is dropped).
    `version_at_nanos` is when the version was committed. A checkpoint that is not `ready` was never
    finished.
    """

    name: str
    key: str
    version: int
    version_at_nanos: int
    created_at_nanos: int
    expires_at_nanos: int | None
    holder: str
    shards: tuple[CheckpointShard, ...]
    ready: bool = False

    def is_expired(self, now_nanos: int) -> bool:
        """Whether it has expired, and so protects nothing any more."""
        return self.expires_at_nanos is not None and self.expires_at_nanos <= now_nanos

    @property
    def generations(self) -> int:
        """How many generations it needs in addition to the version."""
        return sum(len(shard.pending) for shard in self.shards)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupObject:
    """An object that a backup needs: its path below the table's root, and the SHA-256 digest."""

    path: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupShard:
    """A shard as a backup holds it.

    Its WAL entries are `wal_first` to `wal_last`, without a hole above
    `replay_after_wal_entry_position`; both are 0 if there are none.
    """

    shard_id: ShardId
    manifest_version: int
    writer_epoch: int
    replay_after_wal_entry_position: int
    current_generation: int
    merged_generation: int
    wal_first: int = 0
    wal_last: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Backup:
    """A table at one moment, copied to another place: what its document says.

    `version` of the base is stored at `manifest_path`, and was committed at `version_at_nanos`.
    `objects_sha256` is the digest of the list of objects, as it is stored. Of shards that were
    never merged, what is pending belongs to the table's MemWAL index, which existed from
    `mem_wal_since_nanos` on; 0 where there is nothing to prove, or it can't be proven.
    """

    name: str
    source: str
    made_at_nanos: int
    version: int
    version_at_nanos: int
    manifest_path: str
    shards: tuple[BackupShard, ...]
    num_objects: int = 0
    num_bytes: int = 0
    objects_sha256: bytes = b""
    memwal_version: str = ""
    mem_wal_since_nanos: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupMark:
    """The mark of a backup under way, or of one that was killed.

    `pin` is the name of the checkpoint that keeps its source's objects meanwhile.
    `paths` are of objects that it copies, or that killed ones have copied, and no backup has yet.
    """

    source: str
    name: str
    begun_at_nanos: int
    pin: str = ""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreMark:
    """The mark of a restore under way, or of one that was killed: of which backup it is."""

    backup: str
    objects_sha256: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A consumer has all changes up to `version`, and said so at `moved_at_nanos`.

    `transaction` is what it says of its own commit, so that it can tell after a crash whether that
    one landed.
    """

    name: str
    version: int
    moved_at_nanos: int
    holder: str
    transaction: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureMark:
    """How far a shard went when its tombstones were in: a WAL position, and a generation."""

    position: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasure:
    """Where an erasure of rows stands. It names no key.

    `state` is open or done. Tombstones go to the shards in `planned`, and are in those of
    `written`. `deleted_version` is noted with those, once the rows of the base are deleted, too.
    What holds a key and lies above a shard's mark was written since. `rebuilt` are the
    indexes that were built anew, `not_rebuilt` those that could not be, with the reason.
    `clean_version` is the first version of which no file and no index holds an erased row. `left`
    counts the objects that still held a key at the last look; `until` is when they can be gone,
    where that is known.
    """

    erasure_id: str
    state: str = "open"
    keys: int
    began_at: str
    holder: str
    version_before: int
    run_id: str | None = None
    retention_seconds: float | None = None
    marks: Mapping[str, ErasureMark] = field(default_factory=dict)
    planned: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    deleted_version: int | None = None
    rebuilt: tuple[str, ...] = ()
    not_rebuilt: Mapping[str, str] = field(default_factory=dict)
    clean_version: int | None = None
    looked_at: str | None = None
    left: int | None = None
    until: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnInfo:
    """One field of a schema, its type in Arrow's own words."""

    field_id: int
    name: str
    type_text: str
    nullable: bool
    children: tuple[ColumnInfo, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardView:
    """A shard as one view saw it.

    `sized` holds, by number, the listed generations whose writer recorded no size, with sizes read
    from their files; the manifest stays as it is stored. `listed_before` says for missing
    generations whether an earlier manifest listed them, as far as that is known. Generations up to
    `settled_generation` that are not listed are in the table already, merged under an earlier
    MemWAL index. The evidence is a record that cites the manifest version `settled_by`, or, if that
    is None, the retained table versions.
    """

    manifest: ShardManifest
    merged_generation: int
    settled_generation: int = 0
    settled_by: int | None = None
    oldest_pending_flushed_at_nanos: int | None = None
    sized: Mapping[int, FlushedGeneration] = field(default_factory=dict)
    listed_before: Mapping[int, bool] = field(default_factory=dict)

    @property
    def shard_id(self) -> ShardId:
        """The shard's id."""
        return self.manifest.shard_id

    @property
    def pending(self) -> tuple[FlushedGeneration, ...]:
        """Listed generations above the merge watermark, oldest first."""
        if not self.manifest.flushed_generations:
            return ()
        return tuple(
            sorted(
                (
                    self.sized.get(g.generation, g)
                    for g in self.manifest.flushed_generations
                    if g.generation > self.merged_generation
                ),
                key=lambda g: g.generation,
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenShard:
    """A shard whose manifest could not be used, and why. Other shards go on without it."""

    shard_id: str
    error: Exception


@dataclass(frozen=True, kw_only=True, slots=True)
class TableView:
    """A table, its progress and its shards, read in the safe order.

    `file_bytes` is the size of the version's files; None if it was not asked for or is not known.
    `policy_text` is the table's row-merge policy as it is stored; None if it has none.
    `settled_ids` are the ids of the records of what an earlier MemWAL index had merged.
    `settled_unread` are the files of those that can't be understood.
    `taken_at_millis` is when the shard snapshot that the shards come from was begun; None if they
    come from manifests that were just read. If a snapshot was asked for all the same,
    `snapshot_unused` says why it was not used. `is_legacy`: the table's files are in Lance's first
    format, which no merge can write to.
    """

    uri: str
    version: int
    primary_key: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]
    rows: int
    manifest: VersionManifest
    mem_wal: MemWalState
    shards: tuple[ShardView, ...]
    broken: tuple[BrokenShard, ...] = ()
    strangers: tuple[str, ...] = ()
    file_bytes: int | None = None
    policy_text: str | None = None
    settled_ids: tuple[str, ...] = ()
    settled_unread: tuple[str, ...] = ()
    taken_at_millis: int | None = None
    snapshot_unused: str | None = None
    is_legacy: bool = False

    @property
    def has_mem_wal(self) -> bool:
        """Whether it is more than a plain Lance table."""
        return bool(self.mem_wal.index_uuid)

    def describe_columns(self) -> dict[str, str]:
        """Map the names of the columns to their types, for reports."""
        return {column.name: column.type_text for column in self.columns}

    @property
    def shard_ids(self) -> list[ShardId]:
        """The ids of all shards, including those that can't be read."""
        return [*(s.shard_id for s in self.shards), *(ShardId(b.shard_id) for b in self.broken)]

    @property
    def snapshot_unused_text(self) -> str | None:
        """Why the snapshot was not used, in a sentence for people that says what to do."""
        if self.snapshot_unused is None:
            return None
        text = f"{self.snapshot_unused}; so every shard's manifest was read, as for latest"
        if self.policy_text is not None:
            return text
        return f"{text}. `memwal snapshot` takes one, and so does maintain"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should be told about the table, whichever job runs."""
        strangers = tuple(f"_mem_wal/{name} is not a shard; left alone" for name in self.strangers)
        keyed = self.primary_key or not self.has_mem_wal
        no_key = () if keyed else ("the table has no primary key: it can't be merged",)
        legacy = ("its files are in Lance's legacy format: it can't be merged (MW-K10)",)
        unread = tuple(
            f"{path} can't be understood, so it proves no merge; was it written by a newer memwal, "
            "use that"
            for path in self.settled_unread
        )
        return (
            *(strangers + no_key + unread),
            *(legacy if self.is_legacy else ()),
            *self.unknown_texts,
        )

    @property
    def unknown_texts(self) -> tuple[str, ...]:
        """That the MemWAL index has fields which this build does not know, if it has any."""
        names = ", ".join(self.mem_wal.unknown_fields)
        text = (
            f"the MemWAL index of version {self.version} has fields that are not known here "
            f"({names}): merges, index commits and compactions would drop them (MW-M10)"
        )
        return (text,) if names else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TableState:
    """How a table stands, taken from a view, with what a watch adds. None means unknown, never 0.

    All is of the shards that could be read, which are all but the `broken_shards`. The oldest
    pending generation was flushed at `oldest_pending_at_nanos`, the oldest merged one that an index
    lacks at `oldest_unindexed_at_nanos`; None if there is none. `unflushed_shards` have rows in no
    generation, the oldest acknowledged at `oldest_unflushed_at_nanos`. `reason` says why `failures`
    rounds failed, `lease_held_at_nanos` since when others have held the lease,
    `last_backup_at_nanos` of when the newest backup is: 0 if there should be one.
    """

    looked_at_nanos: int = 0
    version: int = 0
    shards: int = 0
    broken_shards: int = 0
    pending_generations: int | None = None
    pending_bytes: int | None = None
    oldest_pending_at_nanos: int | None = None
    oldest_unindexed_at_nanos: int | None = None
    index_lag_generations: Mapping[str, int] = field(default_factory=dict)
    reclaimable_generations: int | None = None
    reclaimable_bytes: int | None = None
    abandoned_shards: int | None = None
    unflushed_shards: int | None = None
    oldest_unflushed_at_nanos: int | None = None
    freshness_target_seconds: float | None = None
    lease_held_at_nanos: int | None = None
    last_backup_at_nanos: int | None = None
    cursors: Sequence[Cursor] = ()
    failures: int = 0
    reason: str | None = None

    @property
    def oldest_pending_seconds(self) -> float | None:
        """The age of the oldest pending generation at the look; 0 if nothing is pending."""
        return self._age(self.pending_generations, self.oldest_pending_at_nanos)

    @property
    def unflushed_seconds(self) -> float | None:
        """The age of the oldest row that is in no generation at the look; 0 if there is none."""
        return self._age(self.unflushed_shards, self.oldest_unflushed_at_nanos)

    def _age(self, count: int | None, at_nanos: int | None) -> float | None:
        if count == 0:
            return 0.0
        nanos = None if at_nanos is None else max(0, self.looked_at_nanos - at_nanos)
        return None if nanos is None else round(nanos / 1e9, 1)

    def known(self) -> dict[str, Any]:
        """What is known of the whole table: with a broken shard, only how far indexes are."""
        names = (
            *("pending_generations", "pending_bytes", "oldest_pending_seconds"),
            *("reclaimable_bytes", "abandoned_shards", "unflushed_seconds"),
        )
        lag = max(self.index_lag_generations.values(), default=0)
        of_shards = () if self.broken_shards else names
        return {"index_lag_generations": lag, **{name: getattr(self, name) for name in of_shards}}


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedKey:
    """A key that has rows in two shards, as messages describe it.

    A key belongs in one shard, because only within a shard is it known which row is newer. Lance
    does not enforce that, so code that has the keys of several shards at hand checks for it.
    `is_merged`: at least one of these rows has been merged already.
    """

    key: str
    shards: tuple[ShardId, ShardId]
    is_merged: bool = False

    def __str__(self) -> str:
        first, second = self.shards
        if self.is_merged:
            return (
                f"key {self.key} was merged from two shards, {first} and {second}: the row that "
                "the base has may be the older one. Write the newer one once more, and see who "
                "writes to each"
            )
        return (
            f"key {self.key} waits in two shards, {first} and {second}: nothing says which of its "
            "rows is newer, and readers see both until they are merged. One key belongs to one "
            "shard; see who writes to each"
        )


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if any value is unknown: absent is not zero."""
    found = list(values)
    return None if None in found else sum(value or 0 for value in found)
