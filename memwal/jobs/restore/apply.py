"""Restores a backup: every step, and in which order.

1. Take the lease. Look at the place, and at what the backup's list names.
2. In a place without a table, put the mark: a file that is no manifest, under the name of the
   version that is about to be restored. From then on nobody takes the place for a table, and the
   next run knows whose it is.
3. Copy what the backup has: data, indexes, generations. What is there already is read and compared;
   what is damaged is kept below `_maintenance/replaced/` first. Readers of a table that is there
   see nothing of it. A backup that turns out to be damaged ends the run here.
4. Over a table: keep its present rows as a checkpoint, then put the mark. Nobody can open the table
   now, and every commit that was begun before meets the mark and fails.
5. Put aside what would be wrong afterwards: progress of ingests that went on after the backup,
   versions that can't be read.
6. Each shard: copies of the old WAL's rows that are in no generation, the manifest with the new
   epoch, sentinels, the WAL's rows, the manifest that starts after them (`plan.py` says why). Where
   somebody claims the shard in between, again.
7. Check that all objects are there. The mark's file becomes the restored version, in one put: a
   commit of Lance's kind Restore, with which every other commit conflicts.

It may be killed anywhere (invariant 8): the mark stays until the last step, and a rerun does each
step again. A shard that was done then leaps once more, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.errors import AlreadyExists, LostRace, MemWalError, StoreUnavailable
from memwal.format import layout
from memwal.jobs.restore.plan import (
    Part,
    Place,
    ShardRestore,
    ShardState,
    check_list,
    check_place,
    choose_backup,
    find_next_version,
    find_part,
    find_stale_ingests,
    find_version_path,
    is_read_at_once,
    list_copied,
    list_shard_ids,
    plan_shard,
)
from memwal.jobs.restore.request import RestoreRequest
from memwal.model import Backup, BackupObject, RestoreMark, ShardId, ShardManifest
from memwal.ports import Clock, Steps, no_steps
from memwal.text import name_some
from memwal.threads import side_by_side

_ATTEMPTS_MAX = 16
_NAMED_MAX = 5


class BackupSource(Protocol):
    """What is read of a backup. Raises Corruption, StoreUnavailable."""

    def list(self) -> Sequence[Backup]:
        """All backups of the place, oldest first."""
        ...

    def objects_of(self, backup: Backup) -> Sequence[BackupObject]:
        """The backup's list."""
        ...

    def shards(self, backup: Backup) -> Mapping[ShardId, ShardManifest]:
        """The shards' manifests."""
        ...

    def rows(
        self, backup: Backup, objects: Sequence[BackupObject]
    ) -> Mapping[ShardId, Sequence[BackupObject]]:
        """Of each shard, the WAL entries to be replayed, in order, without sentinels."""
        ...


class RestorePlace(Protocol):
    """The place of the table. Raises StoreUnavailable."""

    def look(self, backup: Backup) -> Place:
        """What is there."""
        ...

    def mark(self, path: str, mark: RestoreMark, *, over: bool) -> None:
        """Put the mark under a version's name; `over` another mark. Raises AlreadyExists."""
        ...

    def is_whole(self, found: BackupObject) -> bool:
        """Whether an object that is there has the backup's bytes."""
        ...

    def copy(self, found: BackupObject, to: str | None = None) -> None:
        """Copy an object of the backup. Raises Corruption for other bytes than its list says."""
        ...

    def put_aside(self, path: str, restore_id: str) -> None:
        """Keep a copy of an object, if it is there."""
        ...

    def remove(self, path: str) -> None:
        """Delete an object of which a copy is kept."""
        ...

    def find_unreadable(self, place: Place) -> Sequence[str]:
        """The paths of versions that can't be read."""
        ...

    def read_shard(self, shard_id: ShardId) -> tuple[ShardState, Sequence[int]]:
        """A shard as it is now, and the versions of newer manifests that can't be read."""
        ...

    def claim(self, planned: ShardRestore) -> None:
        """Create the manifest with the new epoch. Raises LostRace."""
        ...

    def fence(self, planned: ShardRestore) -> Sequence[str]:
        """Put the sentinels: at the old tip, or above it, and where the restored WAL begins.

        Returns the paths of entries that the old writer has put at its tip meanwhile.
        """
        ...

    def put_row(self, planned: ShardRestore, number: int, found: BackupObject) -> None:
        """Put the WAL's entry of that number, counted from 1."""
        ...

    def finish(self, planned: ShardRestore, entries: int) -> None:
        """Create the manifest of the restored shard. Raises LostRace."""
        ...

    def stop_up(self, shard_id: ShardId, version: int, restore_id: str) -> None:
        """Replace a manifest that can't be read with a stopper; its bytes are kept."""
        ...

    def commit(self, backup: Backup, mark: RestoreMark, version: int) -> None:
        """Replace the mark with the restored version. Raises LostRace where it is not ours."""
        ...


@dataclass(kw_only=True)
class Restored:
    """What a restore did, or would do. `kept` is the checkpoint of the old rows, if any.

    Of `replaced` and `removed` a copy was kept before they went, of `aside` too, which stay. Of
    `removed` the restored table must not know: progress of ingests, versions that can't be read.
    With `other_base`, the number of the backup's version is that of another version there.
    """

    backup: Backup
    restore_id: str
    version_before: int | None
    version: int
    copied: int = 0
    copied_bytes: int = 0
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    ingests: list[str] = field(default_factory=list)
    shards: list[RestoredShard] = field(default_factory=list)
    kept: str | None = None
    other_base: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RestoredShard:
    """A shard as it was and as it is. `is_known`: the backup has it."""

    shard_id: ShardId
    epoch_before: int
    epoch_after: int
    generations: tuple[int, ...]
    entries: int
    is_known: bool
    aside: tuple[str, ...] = ()
    unreadable: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restorer:
    """Restores to one place."""

    uri: str
    source_uri: str
    source: BackupSource
    place: RestorePlace
    clock: Clock
    take_lease: Callable[[], None]
    """Proves the store, and claims the place. Raises LeaseHeld."""
    before_commit: Callable[[], None]
    """Called before each writing step; raises LeaseHeld when the claim was lost."""
    keep: Callable[[str], str]
    """Makes a checkpoint of the table as it is, whose name ends in the text; returns its name."""
    intend: Callable[[Restored], None] = lambda done: None
    """Writes down what is about to be replaced or removed, as far as it is not written yet."""
    start: Callable[[str, int, int], None] = lambda what, total, size: None
    done: Callable[[int, int], None] = lambda count, size: None
    steps: Steps = no_steps
    readers_max: int = 8

    def plan(self, request: RestoreRequest) -> Restored:
        """What would be done. It reads all objects that are there already."""
        return self._look(request)[0]

    def run(self, request: RestoreRequest) -> Restored:
        """Restore. Raises Refused, LostRace, LeaseHeld, Corruption, StoreUnavailable."""
        self.plan_cheaply(request)
        self.take_lease()
        done, place, objects, missing = self._look(request)
        mark = RestoreMark(
            restore_id=done.restore_id,
            backup=done.backup.name,
            objects_sha256=done.backup.objects_sha256,
        )
        shards, rows = self.source.shards(done.backup), self.source.rows(done.backup, objects)
        was_table = place.mark is None and place.version > 0
        self.intend(done)
        if not was_table:
            self._mark(request, done, place, mark)
        late = [f for f in missing if was_table and is_read_at_once(f, done.backup)]
        self._copy(done, [found for found in missing if found not in late])
        if was_table:
            self._keep(done, place, objects)
            self._mark(request, done, place, mark)
            self._copy(done, late)
            place = self.place.look(done.backup)  # writers went on while it was copied
        self._put_aside(done, place)
        self._copy_base(done, objects)
        known = {*shards, *list_shard_ids(place)}

        def restore(shard_id: ShardId) -> RestoredShard:
            kept, entries = shards.get(shard_id), rows.get(shard_id, ())
            return self._restore_shard(done.restore_id, shard_id, kept, entries)

        done.shards = side_by_side(restore, sorted(known), self.readers_max)
        done.aside += [path for shard in done.shards for path in shard.aside]
        self._stop_up(done)
        place = self.place.look(done.backup)
        self._put_ingests_aside(done, place)  # now no writer of theirs can go on
        self._check_there(done, objects, place)
        self.before_commit()
        self.steps("commit")
        self.place.commit(done.backup, mark, done.version)
        self.steps("committed")
        return done

    def plan_cheaply(self, request: RestoreRequest) -> tuple[Backup, Place]:
        """The backup and the place, once neither forbids the restore."""
        backup = choose_backup(self.source.list(), request, self.source_uri)
        place = self.place.look(backup)
        check_place(place, backup, request)
        return backup, place

    def _look(
        self, request: RestoreRequest
    ) -> tuple[Restored, Place, Sequence[BackupObject], Sequence[BackupObject]]:
        """What there is to do; the list, and what of it has to be copied."""
        backup, place = self.plan_cheaply(request)
        objects = self.source.objects_of(backup)
        check_list(objects, backup, self.source_uri)
        parts = list_copied(objects, backup, place)
        mine = place.mark is not None and place.mark.backup == backup.name
        done = Restored(
            backup=backup,
            restore_id=place.mark.restore_id if place.mark and mine else self.clock.new_id(),
            version_before=place.version or None,
            version=find_next_version(place, backup),
        )
        self.start("objects compared", len(parts), sum(p.size_bytes for p in parts))
        missing = []
        whole = side_by_side(lambda found: self._is_whole(place, found), parts, self.readers_max)
        for found, is_whole in zip(parts, whole, strict=True):
            if not is_whole:
                missing.append(found)
                if found.path in place.files:
                    done.replaced.append(found.path)
        done.copied, done.copied_bytes = len(missing), sum(f.size_bytes for f in missing)
        done.ingests = sorted(find_stale_ingests(place, backup))
        return done, place, objects, missing

    def _is_whole(self, place: Place, found: BackupObject) -> bool:
        there = place.files.get(found.path)
        same_size = there is not None and there.size_bytes == found.size_bytes
        return same_size and self.place.is_whole(found)

    def _mark(
        self, request: RestoreRequest, done: Restored, place: Place, mark: RestoreMark
    ) -> None:
        """Steps 2 and 4: hold the name of the version; of a table that goes on, the next one."""
        for _ in range(_ATTEMPTS_MAX):
            self.before_commit()
            self.steps("mark")
            self.intend(done)  # others may have raised the version
            path = find_version_path(done.backup, done.version)
            try:
                self.place.mark(path, mark, over=place.marked_version > 0)
                return
            except AlreadyExists:
                place = self.place.look(done.backup)
                check_place(place, done.backup, request)
                done.version = find_next_version(place, done.backup)
                if place.mark == mark:  # ours: the reply to the put was lost
                    return
                done.version_before = place.version
        raise LostRace(
            f"{self.uri}: others committed to the table each of {_ATTEMPTS_MAX} times that it was "
            "to be held; stop them, or run again"
        )

    def _copy(self, done: Restored, missing: Sequence[BackupObject]) -> None:
        """Step 3."""
        self.start("objects", len(missing), sum(found.size_bytes for found in missing))
        replaced = set(done.replaced)
        counted = [0, 0]

        def copy(found: BackupObject) -> None:
            self.before_commit()
            if found.path in replaced:
                self._take_away(found.path, done.restore_id)
            self.steps("copy")
            self.place.copy(found)
            counted[0] += 1
            counted[1] += found.size_bytes
            self.done(*counted)

        side_by_side(copy, missing, self.readers_max)

    def _take_away(self, path: str, restore_id: str) -> None:
        self.steps("aside")
        self.place.put_aside(path, restore_id)
        self.steps("remove")
        self.place.remove(path)

    def _keep(self, done: Restored, place: Place, objects: Sequence[BackupObject]) -> None:
        """Step 4: keep the table's rows; where no checkpoint can be made, its shards' objects."""
        self.before_commit()
        self.steps("keep")
        try:
            done.kept = self.keep(done.restore_id[:8])
        except MemWalError as error:
            done.warnings.append(
                f"no checkpoint of the old rows could be made ({error}): what its shards had is "
                "kept as it was, and its versions until they are expired"
            )
            known = {found.path for found in objects}
            left = [p for p in place.files if p not in known and layout.parse_shard_path(p)]
            self._keep_copies(done.restore_id, left)
            done.aside += left

    def _put_aside(self, done: Restored, place: Place) -> None:
        """Step 5."""
        self._remove(done, self.place.find_unreadable(place))
        self._put_ingests_aside(done, place)

    def _put_ingests_aside(self, done: Restored, place: Place) -> None:
        stale = find_stale_ingests(place, done.backup)
        done.ingests = sorted({*done.ingests, *stale})
        self._remove(done, sorted(path for paths in stale.values() for path in paths))

    def _remove(self, done: Restored, paths: Sequence[str]) -> None:
        done.removed += paths
        self.intend(done)
        for path in paths:
            self._take_away(path, done.restore_id)

    def _stop_up(self, done: Restored) -> None:
        """Put stoppers in place of shards' manifests that can't be read."""
        found = [(shard.shard_id, v) for shard in done.shards for v in shard.unreadable]
        done.replaced += [layout.shard_manifest_path(*each) for each in found]
        self.intend(done)
        for shard_id, version in found:
            self.steps("stop up")
            self.place.stop_up(shard_id, version, done.restore_id)

    def _keep_copies(self, restore_id: str, paths: Sequence[str]) -> None:
        self.before_commit()

        def keep(path: str) -> None:
            self.steps("aside")
            self.place.put_aside(path, restore_id)

        side_by_side(keep, paths, self.readers_max)

    def _copy_base(self, done: Restored, objects: Sequence[BackupObject]) -> None:
        """The backup's own version, which the restored one names as its source."""
        (base,) = (o for o in objects if find_part(o, done.backup) is Part.BASE)
        place = self.place.look(done.backup)
        if self._is_whole(place, base):
            return
        if base.path in place.files:
            # It can be read, else it were put aside: the table was made again with the same
            # numbers. A checkpoint may need it.
            done.other_base = True
            done.warnings.append(
                f"version {done.backup.version} is another one than the backup's, and stays"
            )
            return
        self.before_commit()
        self.steps("base")
        self.place.copy(base)

    def _restore_shard(
        self,
        restore_id: str,
        shard_id: ShardId,
        kept: ShardManifest | None,
        rows: Sequence[BackupObject],
    ) -> RestoredShard:
        """Step 6, again where somebody else claimed the shard in between."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            found, unreadable = self.place.read_shard(shard_id)
            planned = plan_shard(found, kept)
            try:
                waiting = [layout.wal_entry_path(shard_id, p) for p in found.waiting]
                self._keep_copies(restore_id, waiting)
                self.steps("claim")
                self.place.claim(planned)
                self.steps("fence")
                late = self.place.fence(planned)
                self._keep_copies(restore_id, late)
                for number, entry in enumerate(rows, start=1):
                    self.steps("row")
                    self.place.put_row(planned, number, entry)
                self.before_commit()
                self.steps("shard")
                self.place.finish(planned, len(rows))
                break
            except LostRace:
                if attempt == _ATTEMPTS_MAX:
                    raise
        return RestoredShard(
            shard_id=shard_id,
            epoch_before=found.manifest.writer_epoch if found.manifest else 0,
            epoch_after=planned.claimed.writer_epoch,
            generations=tuple(g.generation for g in planned.claimed.flushed_generations),
            entries=len(rows),
            is_known=kept is not None,
            aside=(*waiting, *late),
            unreadable=tuple(unreadable),
        )

    def _check_there(self, done: Restored, objects: Sequence[BackupObject], place: Place) -> None:
        """Raise StoreUnavailable where an object has gone since it was copied or compared."""
        files = place.files
        parts = (Part.COPIED,) if done.other_base else (Part.COPIED, Part.BASE)
        gone = [
            found.path
            for found in objects
            if find_part(found, done.backup) in parts
            and (found.path not in files or files[found.path].size_bytes != found.size_bytes)
        ]
        if gone:
            some = ", ".join(name_some(gone, _NAMED_MAX, "objects"))
            raise StoreUnavailable(
                f"{self.uri}: what was restored is gone again ({some}): another program deletes "
                "there; stop it, and run again"
            )
