"""Restores a backup to an empty place: every step, and in which order.

1. Take the lease. Look at the place, and at what the backup's list names.
2. Put the mark: a file that is no manifest, under the name of the version that is about to be made.
   From then on nobody takes the place for a table, and the next run knows whose it is.
3. Copy data, indexes, generations, shards' manifests and the backup's own version. What a killed
   run has copied is read and compared. A backup that turns out to be damaged ends the run here.
4. Each shard: the manifest with the new epoch, a sentinel, the WAL's rows, the manifest that starts
   after them (`plan.py` says why). Where an old writer claims or flushes in between, again.
5. Check that all objects are there, and nothing of an old table's. The mark's file becomes the
   restored version, in one put: a commit of Lance's kind Restore, with which every other commit
   conflicts.

It may be killed anywhere (invariant 8): the mark stays until the last step, and a rerun does each
step again. A shard that was done then leaps once more, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import AlreadyExists, Corruption, LostRace, Missing, Refused
from memwal.format import codec, layout, restores
from memwal.jobs.restore.plan import (
    check_end,
    check_list,
    check_place,
    find_version_path,
    is_copied,
    list_unflushed,
    plan_claim,
    plan_end,
)
from memwal.jobs.restore.report import RestoredShardReport, RestoreTableReport
from memwal.jobs.restore.request import RestoreRequest
from memwal.model import Backup, BackupObject, BackupShard, RestoreMark, ShardManifest, StoredFile
from memwal.ports import TABLE_MANIFEST_BYTES_MAX, Clock, Objects, Steps
from memwal.report import DONE
from memwal.run.progress import Progress
from memwal.run.tables import OpenTable
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.records.backups import StoredBackups
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.generations import name_restored
from memwal.store.tables.manifests import find_restore_mark
from memwal.text import iso_time
from memwal.threads import side_by_side

_ATTEMPTS_MAX = 16
_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class Restorer:
    """Restores from a place of backups, `source`, to `objects`, the place of `table`."""

    table: OpenTable
    objects: Objects
    source: Objects
    clock: Clock
    take_lease: Callable[[], None]
    progress: Progress
    steps: Steps

    def plan(self, request: RestoreRequest) -> RestoreTableReport:
        """What would be done."""
        backup, files, _ = self._look(request)
        return self._report(backup, self._list_objects(backup), files)

    def run(self, request: RestoreRequest) -> RestoreTableReport:
        """Restore. Raises Refused, LostRace, LeaseHeld, Corruption, StoreUnavailable."""
        self._look(request)
        self.take_lease()
        backup, files, is_marked = self._look(request)
        objects = self._list_objects(backup)
        copied = [found for found in objects.values() if is_copied(found)]
        mark = RestoreMark(backup=backup.name, objects_sha256=backup.objects_sha256)
        if not is_marked:
            self._put_mark(find_version_path(backup), mark)
        self._copy(copied, files)
        shards = side_by_side(
            lambda shard: self._restore_shard(shard, objects), backup.shards, _READERS_MAX
        )
        check_end(self.objects.uri, self._list_files(), copied, backup)
        self.table.before_commit()
        self.steps("commit")
        self._commit(backup, mark)
        self.steps("committed")
        report = self._report(backup, objects, files)
        return report.model_copy(
            update={"version_after": backup.version + 1, "shards": tuple(shards)}
        )

    def _look(self, request: RestoreRequest) -> tuple[Backup, Mapping[str, StoredFile], bool]:
        """The backup, what is in the place, and whether the restore was begun there before."""
        backup = StoredBackups(self.source).find(request.backup, request.version)
        files, mark = self._list_files(), find_restore_mark(self.objects)
        check_place(self.objects.uri, files, mark, backup)
        return backup, files, mark is not None

    def _list_files(self) -> Mapping[str, StoredFile]:
        return {file.path: file for file in self.objects.list("")}

    def _list_objects(self, backup: Backup) -> Mapping[str, BackupObject]:
        objects = {o.path: o for o in StoredBackups(self.source).objects_of(backup)}
        check_list(objects, backup, self.source.uri)
        return objects

    def _report(
        self, backup: Backup, objects: Mapping[str, BackupObject], files: Container[str]
    ) -> RestoreTableReport:
        missing = [o for o in objects.values() if is_copied(o) and o.path not in files]
        return RestoreTableReport(
            table=self.table.resolved.name,
            outcome=DONE,
            backup=backup.name,
            backup_made_at=iso_time(backup.made_at_nanos),
            backup_version=backup.version,
            objects_copied=len(missing),
            bytes_copied=sum(found.size_bytes for found in missing),
        )

    def _put_mark(self, path: str, mark: RestoreMark) -> None:
        self.table.before_commit()
        self.steps("mark")
        try:
            self.objects.put_if_absent(path, restores.encode_restore_mark(mark))
        except AlreadyExists:
            if find_restore_mark(self.objects) != mark:  # else the reply to the put was lost
                raise LostRace(f"{self.objects.uri}: somebody else makes a table there") from None

    def _copy(self, copied: Sequence[BackupObject], files: Container[str]) -> None:
        self.progress.start("objects", len(copied), sum(found.size_bytes for found in copied))
        counted = [0, 0]

        def copy(found: BackupObject) -> None:
            self.table.before_commit()
            self.steps("copy")
            if found.path not in files:
                self._copy_object(found)
            elif digest_object(self.objects, found.path) != found:
                raise Refused(
                    "MW-A20",
                    f"{self.objects.uri}: {found.path} is there, with other bytes than the backup "
                    "has: delete it, and run again",
                )
            counted[0] += 1
            counted[1] += found.size_bytes
            self.progress.done(*counted)

        side_by_side(copy, copied, _READERS_MAX)

    def _copy_object(self, found: BackupObject, to: str | None = None) -> None:
        try:
            copy_object(self.source, self.objects, found.path, to=to, expected=found)
        except Missing:
            raise Corruption(
                "MW-A07", f"{self.source.uri}/{found.path} is gone, and the backup needs it"
            ) from None

    # ---- shards

    def _restore_shard(
        self, shard: BackupShard, objects: Mapping[str, BackupObject]
    ) -> RestoredShardReport:
        kept, rows = self._read_kept(shard), self._list_rows(shard, objects)
        for left in reversed(range(_ATTEMPTS_MAX)):
            try:
                return self._try_shard(kept, rows)
            except LostRace:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _try_shard(self, kept: ShardManifest, rows: Sequence[BackupObject]) -> RestoredShardReport:
        shard_id = kept.shard_id
        latest = ShardManifests(self.objects).latest(shard_id)
        entries = WalEntries(self.objects).list_entries(shard_id)
        position = max((position for position, _ in entries), default=0)
        claimed = plan_claim(kept, latest, position, self.clock.now_nanos())
        sentinel = claimed.replay_after_wal_entry_position
        self.steps("claim")
        self._create_manifest(claimed)
        self.steps("fence")
        self._create(
            layout.wal_entry_path(shard_id, sentinel), sentinel_bytes(claimed.writer_epoch)
        )
        for position, found in enumerate(rows, start=sentinel + 1):
            self.steps("row")
            self._copy_object(found, layout.wal_entry_path(shard_id, position))
        self.table.before_commit()
        self.steps("shard")
        restored = plan_end(claimed, len(rows))
        self._create_manifest(restored)
        hint = layout.encode_version_hint(restored.version)
        self.objects.put(layout.version_hint_path(shard_id), hint)
        return RestoredShardReport(
            outcome=DONE,
            shard_id=shard_id,
            epoch=restored.writer_epoch,
            generations=tuple(g.generation for g in restored.flushed_generations),
            wal_entries=len(rows),
        )

    def _create_manifest(self, manifest: ShardManifest) -> None:
        """Not `ShardManifests.commit`, by which counters never fall: here they may, behind the
        new epoch.
        """
        path = layout.shard_manifest_path(manifest.shard_id, manifest.version)
        self._create(path, codec.encode_shard_manifest(manifest))

    def _create(self, path: str, data: bytes) -> None:
        try:
            self.objects.put_if_absent(path, data)
        except AlreadyExists:
            raise LostRace(f"{self.objects.uri}: {path} was written by someone else") from None

    def _read_kept(self, shard: BackupShard) -> ShardManifest:
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

    def _list_rows(
        self, shard: BackupShard, objects: Mapping[str, BackupObject]
    ) -> Sequence[BackupObject]:
        """The WAL entries to be replayed, in order, without sentinels."""
        paths = [layout.wal_entry_path(shard.shard_id, p) for p in list_unflushed(shard)]
        wal = WalEntries(self.source)

        def is_sentinel(path: str) -> bool:
            return wal.head(path, objects[path].size_bytes).fence_sentinel

        sentinels = side_by_side(is_sentinel, paths, _READERS_MAX)
        return [objects[p] for p, fence in zip(paths, sentinels, strict=True) if not fence]

    # ---- the end

    def _commit(self, backup: Backup, mark: RestoreMark) -> None:
        """Replace the mark with the restored version."""
        path = find_version_path(backup)
        if find_restore_mark(self.objects) != mark:
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
