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
from typing import TYPE_CHECKING

from memwal.errors import LostRace
from memwal.format import layout
from memwal.jobs.backup.request import RestoreRequest
from memwal.jobs.restore.plan import (
    RestoredShardReport,
    RestoreTableReport,
    check_end,
    check_list,
    check_place,
    is_copied,
    plan_claim,
    plan_end,
)
from memwal.model import Backup, BackupObject, BackupShard, RestoreMark, ShardManifest, StoredFile
from memwal.ports import Steps
from memwal.report import DONE
from memwal.text import iso_time
from memwal.threads import Tally, side_by_side

if TYPE_CHECKING:
    from memwal.jobs.restore.store import RestorePlaces
    from memwal.run.progress import Progress
    from memwal.run.tables import OpenTable

_ATTEMPTS_MAX = 16
_COPIES_MAX = 16


@dataclass(frozen=True, kw_only=True)
class Restorer:
    """Restores to the place of `table`."""

    table: OpenTable
    places: RestorePlaces
    take_lease: Callable[[], None]
    progress: Progress
    steps: Steps

    @property
    def uri(self) -> str:
        """The table's address."""
        return self.places.objects.uri

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
            self._before("mark")
            self.places.put_mark(backup, mark)
        self._copy(copied, files)
        shards = side_by_side(
            lambda shard: self._restore_shard(shard, objects), backup.shards, _COPIES_MAX
        )
        check_end(self.uri, self.places.list_files(), copied, backup)
        self._before("commit")
        self.places.commit(backup, mark)
        self.steps("committed")
        report = self._report(backup, objects, files)
        return report.model_copy(
            update={"version_after": backup.version + 1, "shards": tuple(shards)}
        )

    def _look(self, request: RestoreRequest) -> tuple[Backup, Mapping[str, StoredFile], bool]:
        """The backup, what is in the place, and whether the restore was begun there before."""
        backup = self.places.backups.find(request.backup)
        files, mark = self.places.list_files(), self.places.read_mark()
        check_place(self.uri, files, mark, backup)
        return backup, files, mark is not None

    def _list_objects(self, backup: Backup) -> Mapping[str, BackupObject]:
        objects = {o.path: o for o in self.places.backups.objects_of(backup)}
        check_list(objects, backup, self.places.source.uri)
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

    def _before(self, step: str) -> None:
        self.table.before_commit()
        self.steps(step)

    def _copy(self, copied: Sequence[BackupObject], files: Container[str]) -> None:
        self.progress.start("objects", len(copied), sum(found.size_bytes for found in copied))
        tally = Tally(self.progress.done)

        def copy(found: BackupObject) -> None:
            self._before("copy")
            if found.path in files:
                self.places.compare(found)
            else:
                self.places.copy(found)
            tally.add(found.size_bytes)

        side_by_side(copy, copied, _COPIES_MAX)

    def _restore_shard(
        self, shard: BackupShard, objects: Mapping[str, BackupObject]
    ) -> RestoredShardReport:
        kept, rows = self.places.read_kept(shard), self.places.list_rows(shard, objects)
        for left in reversed(range(_ATTEMPTS_MAX)):
            try:
                restored = self._try_shard(kept, rows)
                break
            except LostRace:
                if not left:
                    raise
        return RestoredShardReport(
            outcome=DONE,
            shard_id=shard.shard_id,
            epoch=restored.writer_epoch,
            generations=tuple(g.generation for g in restored.flushed_generations),
            wal_entries=len(rows),
        )

    def _try_shard(self, kept: ShardManifest, rows: Sequence[BackupObject]) -> ShardManifest:
        latest, position = self.places.find_latest(kept.shard_id)
        claimed = plan_claim(kept, latest, position, self.places.clock.now_nanos())
        self.steps("claim")
        self.places.create_manifest(claimed)
        self.steps("fence")
        self.places.create_sentinel(claimed)
        first = claimed.replay_after_wal_entry_position + 1
        for position, found in enumerate(rows, start=first):
            self.steps("row")
            self.places.copy(found, layout.wal_entry_path(kept.shard_id, position))
        self._before("shard")
        restored = plan_end(claimed, len(rows))
        self.places.create_manifest(restored)
        self.places.put_hint(restored)
        return restored
