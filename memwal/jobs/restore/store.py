"""A place of backups, and the place where one of them becomes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import AlreadyExists, Corruption, LostRace, Missing, Refused
from memwal.format import codec, layout, restores
from memwal.jobs.restore.plan import find_version_path, list_unflushed
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    RestoreMark,
    ShardId,
    ShardManifest,
    StoredFile,
)
from memwal.ports import TABLE_MANIFEST_BYTES_MAX, Clock, Objects
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.records.backups import StoredBackups
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.generations import name_restored
from memwal.store.tables.manifests import find_restore_mark
from memwal.threads import side_by_side

_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class RestorePlaces:
    """Reads from `source`, the place of backups, and writes to `objects`, that of the table."""

    objects: Objects
    source: Objects
    clock: Clock

    @property
    def backups(self) -> StoredBackups:
        """The backups' documents."""
        return StoredBackups(self.source)

    def list_files(self) -> Mapping[str, StoredFile]:
        """What is at the table's place, by path."""
        return {file.path: file for file in self.objects.list("")}

    def read_mark(self) -> RestoreMark | None:
        """The mark of a restore that was begun there."""
        return find_restore_mark(self.objects)

    def put_mark(self, backup: Backup, mark: RestoreMark) -> None:
        """Put the mark. Raises LostRace where somebody else takes the version's name."""
        try:
            data = restores.encode_restore_mark(mark)
            self.objects.put_if_absent(find_version_path(backup), data)
        except AlreadyExists:
            if self.read_mark() != mark:  # else the reply to the put was lost
                raise LostRace(f"{self.objects.uri}: somebody else makes a table there") from None

    def copy(self, found: BackupObject, to: str | None = None) -> None:
        """Copy an object of the backup. Raises Corruption for one that is gone or damaged."""
        try:
            copy_object(self.source, self.objects, found.path, to=to, expected=found)
        except Missing:
            raise Corruption(
                "MW-A07", f"{self.source.uri}/{found.path} is gone, and the backup needs it"
            ) from None

    def compare(self, found: BackupObject) -> None:
        """Raise Refused where what a killed run copied is not what the backup has."""
        if digest_object(self.objects, found.path) != found:
            raise Refused(
                "MW-A20",
                f"{self.objects.uri}: {found.path} is there, with other bytes than the backup "
                "has: delete it, and run again",
            )

    # ---- shards

    def read_kept(self, shard: BackupShard) -> ShardManifest:
        """A shard's manifest in the backup, compared with the document."""
        try:
            found = ShardManifests(self.source).read(shard.shard_id, shard.manifest_version)
        except Missing as error:
            raise Corruption("MW-A07", str(error)) from None
        if (found.writer_epoch, found.current_generation) != (
            shard.writer_epoch,
            shard.current_generation,
        ):
            raise Corruption(
                "MW-A07",
                f"{self.source.uri}: shard {shard.shard_id}: manifest version {found.version} is "
                "not the one that the backup's document names",
            )
        return found

    def list_rows(
        self, shard: BackupShard, objects: Mapping[str, BackupObject]
    ) -> Sequence[BackupObject]:
        """The WAL entries to be replayed, in order, without sentinels."""
        paths = [layout.wal_entry_path(shard.shard_id, p) for p in list_unflushed(shard)]
        wal = WalEntries(self.source)

        def is_sentinel(path: str) -> bool:
            return wal.head(path, objects[path].size_bytes).fence_sentinel

        sentinels = side_by_side(is_sentinel, paths, _READERS_MAX)
        return [objects[p] for p, fence in zip(paths, sentinels, strict=True) if not fence]

    def find_latest(self, shard_id: ShardId) -> tuple[ShardManifest | None, int]:
        """The latest manifest at the table's place, and the last position in the WAL."""
        latest = ShardManifests(self.objects).latest(shard_id)
        entries = WalEntries(self.objects).list_entries(shard_id)
        return latest, max((position for position, _ in entries), default=0)

    def create_manifest(self, new: ShardManifest) -> None:
        """Put a shard's manifest. Raises LostRace where that version is there.

        Not `ShardManifests.commit`, by which counters never fall: here they may, behind the new
        epoch.
        """
        path = layout.shard_manifest_path(new.shard_id, new.version)
        self._create(path, codec.encode_shard_manifest(new))

    def create_sentinel(self, claimed: ShardManifest) -> None:
        """Put the sentinel of a claim. Raises LostRace where something is there."""
        path = layout.wal_entry_path(claimed.shard_id, claimed.replay_after_wal_entry_position)
        self._create(path, sentinel_bytes(claimed.writer_epoch))

    def _create(self, path: str, data: bytes) -> None:
        try:
            self.objects.put_if_absent(path, data)
        except AlreadyExists:
            raise LostRace(f"{self.objects.uri}: {path} was written by someone else") from None

    def put_hint(self, manifest: ShardManifest) -> None:
        """Say which manifest of a shard is the newest."""
        hint = layout.encode_version_hint(manifest.version)
        self.objects.put(layout.version_hint_path(manifest.shard_id), hint)

    # ---- the end

    def commit(self, backup: Backup, mark: RestoreMark) -> None:
        """Replace the mark with the restored version. Raises LostRace where it is gone."""
        path = find_version_path(backup)
        if self.read_mark() != mark:
            raise LostRace(f"{self.objects.uri}: {path} is no longer the mark of this restore")
        version, transaction_id = backup.version + 1, self.clock.new_id()
        file = f"{backup.version}-{transaction_id}.txn"
        data = restores.encode_restored_manifest(
            self.source.get(backup.manifest_path, TABLE_MANIFEST_BYTES_MAX),
            version=version,
            now_nanos=self.clock.now_nanos(),
            transaction_file=file,
            config=name_restored(version, backup.mem_wal_since_nanos),
        )
        transaction = restores.encode_restore_transaction(
            read_version=backup.version, transaction_id=transaction_id, restored=backup.version
        )
        self.objects.put_if_absent(f"{layout.TRANSACTIONS}/{file}", transaction)
        self.objects.put(path, data)
