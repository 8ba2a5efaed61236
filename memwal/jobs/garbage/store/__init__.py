"""The adapters behind the job's ports, over an object store and Lance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from memwal.errors import Missing, Refused, StoreUnavailable
from memwal.format import layout
from memwal.jobs.garbage.kinds import KINDS_OUTSIDE
from memwal.jobs.garbage.model import (
    Evidence,
    Expired,
    FindDeciding,
    GarbageLimits,
    RetainedVersion,
    ShardEvidence,
    Sweep,
    cutoff_nanos,
)
from memwal.jobs.garbage.store.cache import CacheFile
from memwal.jobs.garbage.store.shards import ShardFolders
from memwal.jobs.garbage.store.versions import RetainedVersions
from memwal.jobs.garbage.store.wal_heads import WalHeads
from memwal.model import Cursor, ShardId, ShardManifest, StoredFile
from memwal.ports import Objects
from memwal.rows.progress import SettledRecord
from memwal.store.objects.local import find_link
from memwal.store.objects.opening import read_store_time
from memwal.store.records.checkpoints import StoredCheckpoints
from memwal.store.records.cursors import StoredCursors
from memwal.store.records.former_merges import read_record
from memwal.store.shards.inherited import read_adopted
from memwal.store.shards.listing import list_shards
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lance_calls import tidy_text


class StoredGarbageEvidence:
    """Reads the evidence that decides what may go, after the view was read.

    What happens in between can only add folders at or above the
    view's current generation, and versions that have merged more, or (restores) as much as a
    retained version had.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        readers_max: int = 16,
        make_pool: Callable[[int], Executor] = ThreadPoolExecutor,
    ) -> None:
        self._objects = objects
        self._shards = ShardFolders(objects)
        self._versions = RetainedVersions(objects)
        self._heads = WalHeads(objects)
        self._sweep: CacheFile[Sweep] = CacheFile(objects, "sweep", Sweep)
        self._checkpoints = StoredCheckpoints(objects, readers_max=readers_max)
        self._make_pool = partial(make_pool, readers_max)

    def has_shards(self) -> bool:
        """Whether the folder of any shard exists."""
        return bool(list_shards(self._objects, folders_only=True).shards)

    def read(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        *,
        limits: GarbageLimits,
        now_nanos: int,
        verified: bool = False,
        whole_shards: bool = False,
        find_deciding: FindDeciding | None = None,
        only: Set[ShardId] | None = None,
        listed: Mapping[ShardId, Sequence[StoredFile]] | None = None,
        outside: Evidence | None = None,
    ) -> Evidence:
        """Read the retained versions, the shard folders, and what lies outside them.

        What can't be read is noted as a problem in the evidence. Raises StoreUnavailable and
        BadCredentials.

        `manifests` are those of the view. With `verified`, nothing is taken from a cache that
        another process wrote; a plan that is carried out needs that. `whole_shards` keeps every
        file of a shard. `find_deciding` gets evidence with WAL entries as the cache has them, and
        returns the position in each shard from which on they have to be read; lower ones count as
        unread. `only` restricts the look to some shards; `listed` are files of theirs that were
        listed a moment ago, and `outside` is everything else that was read then.
        """
        with self._make_pool() as pool:
            if outside is None:
                outside = self._read_outside(pool, verified=verified)
            cutoff = cutoff_nanos(limits, now_nanos)
            shards = self._shards.read(
                pool,
                manifests,
                cutoff,
                limits=limits,
                whole=whole_shards,
                only=only,
                listed_before=listed,
            )
            if limits.wal:
                stored = not verified or find_deciding is not None
                entries_max = limits.wal_entries_per_shard_max
                shards = self._heads.add(pool, shards, manifests, cutoff, entries_max, stored)
            settled = self._read_settled(pool, outside.versions, manifests)
            shards = self._settle(pool, shards, manifests, settled)
            evidence = replace(
                outside,
                shards={s.shard_id: s for s in shards},
                settled=settled,
                adopted=self._read_adopted(manifests),
            )
            if limits.wal and verified and find_deciding is not None:
                epochs = {shard: manifest.writer_epoch for shard, manifest in manifests.items()}
                needed = find_deciding(evidence)
                evidence = self._heads.confirm(pool, evidence, needed, epochs)
            return evidence

    def _read_outside(self, pool: Executor, *, verified: bool) -> Evidence:
        versions, problems = self._versions.read(pool, verified=verified)
        return Evidence(
            versions=versions,
            checkpoints=self._checkpoints.list(),
            outside={k.NAME: k.read_evidence(self._objects, pool) for k in KINDS_OUTSIDE},
            problems=tuple(problems),
        )

    def _read_adopted(
        self, manifests: Mapping[ShardId, ShardManifest]
    ) -> Mapping[ShardId, Sequence[range]]:
        """The progress that adoptions gave up, read only while a shard lists its generation 1.

        Once that is gone, every retained version has the shard's own progress.
        """
        listed = (g.generation for m in manifests.values() for g in m.flushed_generations)
        return read_adopted(self._objects) if 1 in listed else {}

    def _read_settled(
        self, pool: Executor, versions: Sequence[RetainedVersion], shards: Iterable[ShardId]
    ) -> dict[str, SettledRecord | None]:
        needing = [v for v in versions if any(map(v.needs_record, shards))]
        named = sorted({record_id for version in needing for record_id in version.settled_ids})

        def read(record_id: str) -> tuple[str, SettledRecord | None] | None:
            try:
                return record_id, read_record(self._objects, record_id)
            except Missing:
                return None

        return dict(filter(None, pool.map(read, named)))

    def _settle(
        self,
        pool: Executor,
        shards: Sequence[ShardEvidence],
        manifests: Mapping[ShardId, ShardManifest],
        records: Mapping[str, SettledRecord | None],
    ) -> list[ShardEvidence]:
        """Add what the records prove of these very shards, where anything is left to collect."""
        said = [record for record in records.values() if record is not None]

        def settle(shard: ShardEvidence) -> ShardEvidence:
            manifest = manifests.get(shard.shard_id)
            if manifest is None or shard.problem is not None or not (shard.folders or shard.wal):
                return shard
            found = ((r.record_id, self._shards.find_settled(manifest, r)) for r in said)
            return replace(shard, settled={record_id: upto for record_id, upto in found if upto})

        return list(pool.map(settle, shards)) if said else list(shards)

    def list_files(self, shards: Iterable[ShardId]) -> Mapping[ShardId, Sequence[StoredFile]]:
        """List the files of these shards."""
        with self._make_pool() as pool:
            return self._shards.list_files(pool, shards)

    def recall_sweep(self) -> Sweep | None:
        """The sweep that former passes stored; None where there is none that can be used.

        It tells where to look. In a shard that is looked at, everything is read again; without one,
        all shards are looked at.
        """
        found = self._sweep.stored
        known = found is not None and all(map(layout.is_shard_folder, found.shards))
        return found if known else None

    def remember_sweep(self, sweep: Sweep, before_write: Callable[[], None]) -> None:
        """Store the sweep for the next pass; a failure to store it is ignored."""
        self._sweep.write(sweep, before_write)

    def store_now_nanos(self, name: str) -> int:
        """The store's own time, read off a file that is written under this name for the purpose."""
        return read_store_time(self._objects, name)

    def referenced_versions(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from, which no expiry removes.

        It only tells whether expiring is worth a try, so references that can't be read are left
        out.
        """
        return self._versions.read_referenced()

    def cursors(self) -> Sequence[Cursor]:
        """The cursors of those who follow the table's changes. Raises Corruption."""
        return StoredCursors(self._objects).list()

    def claimed_versions(self) -> frozenset[int] | None:
        """As `referenced_versions`, without tags of checkpoints; None if one can't be read."""
        return self._versions.read_claimed()

    def remember(self, before_write: Callable[[], None]) -> None:
        """Store what is known of versions and WAL entries, so that the next run reads less.

        `before_write` is called if there is anything new to store; where it raises MemWalError,
        nothing is stored.
        """
        self._versions.remember(before_write)
        self._heads.remember(before_write)


class LanceExpiry:
    """The VersionExpiry port over Lance's own cleanup."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def check_expirable(self) -> None:
        """Raise Refused for a symbolic link in a local table's folder.

        Lance's cleanup follows links. No version of this table names the files it finds there, so
        it would delete what belongs to another table (invariant 10).
        """
        uri = self._tables.uri
        link = None if "://" in uri else find_link(uri)
        if link is not None:
            raise Refused(
                "MW-G05",
                f"{uri}: no version is expired: {link} is a symbolic link, and Lance would "
                "follow it and delete there; remove the link, or run without --retention",
            )

    def expire_versions(self, versions: Set[int]) -> Expired:
        """Remove versions (see the port).

        Lance also deletes files that no version names, once they are a week old.
        """
        dataset = self._tables.base()
        self.check_expirable()
        try:
            stats = dataset.cleanup_old_versions(
                versions=sorted(versions),
                error_if_tagged_old_versions=False,
                delete_unverified=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise StoreUnavailable(
                f"{self._tables.uri}: old versions can't be expired: {tidy_text(error)}"
            ) from None
        return Expired(versions=int(stats.old_versions), size_bytes=int(stats.bytes_removed))
