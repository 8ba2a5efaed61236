"""Makes and drops backups: every step, and in which order.

Making one:

1. Look at the place. Refuse one that is not this table's, or that somebody else wrote to.
2. Take the place's lease, and store the mark: it claims the place before anything lies there.
3. Pin a moment of the table by a checkpoint that expires, and cut it: the checkpoint's version of
   the base, the shards' manifests as the checkpoint saw them, their WALs up to the tip.
4. Store the mark again, with the paths of all that is about to be copied.
5. Copy: data and indexes, generations, WAL entries; then shard manifests; then the base's manifest.
6. Store the list, then the document: from now on there is a backup.
7. Let go of the pin. Drop what is not to be kept, and what killed runs left. Remove the mark.

The checkpoint holds the version and its pending generations, whatever merges and garbage do. WAL
entries, and generations that are merged, are not held: what vanishes while it is copied belongs to
an older moment by then, so a fresh one is pinned, for which little is left to copy.

It may be killed anywhere: without its document there is no backup. What was copied is in the mark;
the next run takes it over, or deletes it.

Dropping goes the other way: documents first, then objects, those that name others before these,
then lists. A list without a document is a drop, or a backup, that was killed: the next one ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Protocol

from memwal.errors import Corruption, LostRace, MemWalError, Missing, Refused
from memwal.jobs.backup.plan import (
    NUMBERED,
    CopyPlan,
    Cut,
    Damage,
    Needed,
    Phase,
    Place,
    check_history,
    check_place,
    check_same,
    choose_deleted,
    choose_expired,
    describe_cut,
    find_damage,
    find_shards,
    is_passing,
    list_hints,
    name_damage,
    plan_copies,
)
from memwal.jobs.backup.request import Keep
from memwal.model import Backup, BackupMark, BackupObject, Checkpoint, ShardId, TableView
from memwal.ports import Clock, Steps, no_steps
from memwal.threads import side_by_side

_STAGED_NANOS_MAX = 86_400 * 10**9
_DELETED_MAX = 1000
"""Objects that are deleted before the claim on the place is looked at again."""


class Source(Protocol):
    """The table that is backed up."""

    @property
    def uri(self) -> str:
        """Its address."""
        ...

    def version(self) -> int:
        """The latest version's number."""
        ...

    def view(self) -> TableView:
        """A fresh view, which pins nothing."""
        ...

    def pin(self, name: str) -> tuple[Checkpoint, TableView]:
        """Make a checkpoint that expires, and return it with the view that it was made of."""
        ...

    def renew_pin(self, pin: Checkpoint) -> Checkpoint:
        """Push its expiry out, if half of it has passed."""
        ...

    def let_go(self, name: str) -> None:
        """Remove the checkpoint of that name, if it is there."""
        ...

    def cut(self, view: TableView) -> Cut:
        """All that a copy of the view needs. Raises Refused for a hole, Corruption for a loss."""
        ...

    def committed_at_nanos(self, version: int) -> int | None:
        """When a version was committed; None if it has expired."""
        ...

    def digest(self, path: str, size_bytes: int) -> BackupObject:
        """Read an object for its digest. Raises Missing if it is not of that size (any more)."""
        ...


class Destination(Protocol):
    """The place of backups."""

    @property
    def uri(self) -> str:
        """Its address."""
        ...

    def look(self) -> Place:
        """All that is there."""
        ...

    def copy(self, path: str, size_bytes: int) -> BackupObject:
        """Copy an object of the table. Raises Missing if it is not of that size (any more).

        Raises Refused where another one is there.
        """
        ...

    def digest(self, path: str) -> BackupObject:
        """Read an object for its digest. Raises Missing."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects. Raises StoreUnavailable."""
        ...

    def sweep(self, before_nanos: int) -> None:
        """Delete what was staged before a time, and never finished."""
        ...

    def put_hints(self, hints: Mapping[ShardId, int], gone: Sequence[ShardId]) -> None:
        """Say which manifest of each shard is the newest; remove the hints of those that went."""
        ...


class Documents(Protocol):
    """The documents of the place. Raises Corruption for one that can't be read."""

    def list(self) -> Sequence[Backup]:
        """All backups, oldest first."""
        ...

    def find(self, name: str) -> Backup:
        """The backup of a name. Raises Usage."""
        ...

    def objects_of(self, backup: Backup) -> Sequence[BackupObject]:
        """What a backup needs."""
        ...

    def check_free(self, name: str) -> None:
        """Raise Refused where there is a backup of that name."""
        ...

    def put(self, backup: Backup, objects: Sequence[BackupObject]) -> Backup:
        """Store the list, then the document."""
        ...

    def remove_document(self, name: str) -> None:
        """Delete a document."""
        ...

    def remove_list(self, name: str) -> None:
        """Delete a list."""
        ...

    def left_lists(self) -> Sequence[str]:
        """Names of lists without a document."""
        ...

    def objects_of_left(self, name: str) -> Sequence[BackupObject]:
        """What a list without a document names."""
        ...

    def read_mark(self) -> BackupMark | None:
        """The mark of a run under way, or of one that was killed."""
        ...

    def put_mark(self, mark: BackupMark) -> None:
        """Store the mark."""
        ...

    def remove_mark(self) -> None:
        """Delete the mark."""
        ...


class Show(Protocol):
    """Follows the copying."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """A step of so many objects and bytes begins."""
        ...

    def done(self, count: int, bytes_done: int = 0) -> None:
        """So many of them are done."""
        ...

    def say(self, text: str) -> None:
        """A line for people."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupLimits:
    """Copies side by side; how many moments are pinned before a run gives up."""

    connections_max: int = 16
    attempts_max: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeBackup:
    """A backup, and what it took: objects copied, there already, and read again, and moments."""

    backup: Backup
    copied: int
    bytes_copied: int
    kept: int
    moments: int
    read: int = 0
    dropped: tuple[Backup, ...] = ()
    objects_deleted: int = 0


@dataclass(frozen=True, kw_only=True)
class Dropper:
    """Drops backups of one place."""

    dest: Destination
    documents: Documents
    before_step: Callable[[], None] = lambda: None
    steps: Steps = no_steps

    def choose(self, names: Sequence[str], keep: Keep | None, now_nanos: int) -> list[Backup]:
        """The backups of these names, and those that `keep` does not keep. Raises Usage."""
        named = [self.documents.find(name) for name in names]
        expired = choose_expired(self.documents.list(), keep, now_nanos)
        return list({backup.name: backup for backup in (*named, *expired)}.values())

    def run(
        self,
        names: Sequence[str],
        keep: Keep | None,
        now_nanos: int,
        take_lease: Callable[[], None] | None,
    ) -> tuple[list[Backup], list[str]]:
        """Drop backups, and return them and the deleted paths; without a lease only plan it."""
        chosen = self.choose(names, keep, now_nanos)
        if take_lease is None:
            return chosen, self.plan(chosen)
        take_lease()
        chosen = self.choose(names, keep, now_nanos)  # another run may have dropped the newest
        return chosen, self.drop(chosen)

    def plan(self, dropped: Sequence[Backup], ours: Sequence[str] = ()) -> list[str]:
        """The objects that would be deleted. Raises Corruption if any list can't be read."""
        names = {backup.name for backup in dropped}
        remaining = [b for b in self.documents.list() if b.name not in names]
        left = [self.documents.objects_of_left(name) for name in self.documents.left_lists()]
        listed = [self.documents.objects_of(backup) for backup in dropped]
        kept = [self.documents.objects_of(backup) for backup in remaining]
        return choose_deleted([*listed, *left], kept, ours)

    def drop(self, dropped: Sequence[Backup], ours: Sequence[str] = ()) -> list[str]:
        """Drop backups, and what killed runs left; returns the paths of deleted objects."""
        left = self.documents.left_lists()
        gone = {shard.shard_id for backup in dropped for shard in backup.shards}
        gone |= find_shards(ours)
        for name in left:
            gone |= find_shards(one.path for one in self.documents.objects_of_left(name))
        paths = self.plan(dropped, ours)
        for backup in dropped:
            self._before("drop document")
            self.documents.remove_document(backup.name)
        remaining = self.documents.list()
        hints = list_hints(remaining)
        for start in range(0, len(paths), _DELETED_MAX):
            self._before("delete objects")
            self.dest.delete(paths[start : start + _DELETED_MAX])
        if paths or gone:
            self._before("hints")
            self.dest.put_hints(hints, sorted(gone - hints.keys()))
        for name in (*left, *(backup.name for backup in dropped)):
            self._before("drop list")
            self.documents.remove_list(name)
        return paths

    def _before(self, step: str) -> None:
        self.before_step()
        self.steps(step)


def compare_objects(
    dest: Destination, needed: Mapping[str, Sequence[BackupObject]], show: Show
) -> tuple[int, list[Damage]]:
    """Read each object that backups need, once; returns how many there are, and what is wrong."""
    asked: dict[BackupObject, list[str]] = {}
    for name, listed in needed.items():
        for one in listed:
            asked.setdefault(one, []).append(name)
    lock, done, bytes_done = Lock(), 0, 0
    show.start("comparing objects", len(asked), sum(one.size_bytes for one in asked))

    def compare(one: BackupObject) -> Damage | None:
        nonlocal done, bytes_done
        try:
            problem = find_damage(one, dest.digest(one.path))
        except Missing:
            problem = find_damage(one, None)
        with lock:
            done, bytes_done = done + 1, bytes_done + one.size_bytes
            show.done(done, bytes_done)
        if problem is None:
            return None
        return Damage(path=one.path, problem=problem, backups=tuple(asked[one]))

    found = side_by_side(compare, list(asked), BackupLimits().connections_max)
    return len(asked), [damage for damage in found if damage is not None]


def name_backup(clock: Clock) -> str:
    """The name of a backup that was given none: its time."""
    now = datetime.fromtimestamp(clock.now_nanos() / 1e9, UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"


@dataclass(kw_only=True)
class BackupMaker:
    """Makes backups of one table in one place."""

    source: Source
    dest: Destination
    documents: Documents
    clock: Clock
    memwal_version: str
    show: Show
    take_lease: Callable[[], None] = lambda: None
    """Proves the place's store, and claims the place. Raises LeaseHeld."""
    before_step: Callable[[], None] = lambda: None
    """Called before what writes; raises LeaseHeld when the claim was lost."""
    verify: bool = False
    """Whether all that a backup needs is read again."""
    limits: BackupLimits = BackupLimits()
    steps: Steps = no_steps
    _read: dict[str, BackupObject] = field(init=False, default_factory=dict)
    _copied: int = field(init=False, default=0)
    _bytes_copied: int = field(init=False, default=0)
    _lock: Lock = field(init=False, default_factory=Lock)

    def plan(self, name: str) -> tuple[Backup, CopyPlan]:
        """What a backup would copy now. It pins nothing, and changes nothing."""
        place = self._look(name)
        view = self.source.view()
        self._check_history(place, view.version)
        cut = self.source.cut(view)
        return self._describe(name, cut), plan_copies(place, cut)

    def make(self, name: str, keep: Keep | None = None) -> MadeBackup:
        """Make one. Raises Refused, LostRace, LeaseHeld, Corruption, StoreUnavailable."""
        mark, place = self.documents.read_mark(), self._look(name)
        self._check_history(place, self.source.version())
        self.take_lease()
        # What others did to the place meanwhile shows in its documents, unless they were ending
        # what a killed run left: then objects that were there may be gone.
        if place.ours or (mark, place.backups) != (
            self.documents.read_mark(),
            self.documents.list(),
        ):
            mark, place = self.documents.read_mark(), self._look(name)
        mark = self._claim(name, mark)
        for moment in range(1, self.limits.attempts_max + 1):
            try:
                mark, backup, found = self._copy_moment(name, place, mark)
            except (Missing, Refused, Corruption) as error:
                if not (isinstance(error, Missing) or is_passing(error)):
                    raise
                if moment == self.limits.attempts_max:
                    raise self._explain(error) from None
                self.show.say(f"looking again, as the table moved on: {error}")
                # What was marked before it vanished is there, or not, by now.
                mark, place = self.documents.read_mark() or mark, self._look(name)
                continue
            read = self._verify(backup, found)  # before others are dropped in its favour
            dropped, deleted = self._tidy(keep, mark, found)
            return MadeBackup(
                backup=backup,
                copied=self._copied,
                bytes_copied=self._bytes_copied,
                kept=len(found) - self._copied,
                moments=moment,
                read=read,
                dropped=tuple(dropped),
                objects_deleted=len(deleted),
            )
        raise LostRace(f"{self.source.uri}: no moment was pinned")

    def _verify(self, backup: Backup, found: Sequence[BackupObject]) -> int:
        """Compare all objects with the list, if that is asked for. Raises Corruption."""
        if not self.verify:
            return 0
        read, damaged = compare_objects(self.dest, {backup.name: found}, self.show)
        if damaged:
            raise name_damage(self.dest.uri, damaged)
        return read

    def _copy_moment(
        self, name: str, place: Place, mark: BackupMark
    ) -> tuple[BackupMark, Backup, list[BackupObject]]:
        """Steps 3 to 6, of one moment; and its pin is let go of, unless the run is killed."""
        self._before("pin")
        pin, view = self.source.pin(mark.pin)
        try:
            self._check_history(place, view.version)
            cut = self.source.cut(view)
            plan = plan_copies(place, cut)
            mark = self._mark(mark, plan)
            found = self._copy(plan, pin)
            return mark, self._finish(name, place, cut, found), found
        finally:
            self.steps("let go")
            with suppress(MemWalError):  # it expires
                self.source.let_go(mark.pin)

    def _look(self, name: str) -> Place:
        self.documents.check_free(name)
        place = self.dest.look()
        check_place(place, self.source.uri)
        return place

    def _check_history(self, place: Place, version: int) -> None:
        if place.backups:
            at = self.source.committed_at_nanos(place.backups[-1].version)
            check_history(place, self.source.uri, version, at)

    def _claim(self, name: str, former: BackupMark | None) -> BackupMark:
        """Store the mark, with what the one of a killed run had; its pin is let go of."""
        if former is not None and former.pin:
            with suppress(MemWalError):
                self.source.let_go(former.pin)
        mark = BackupMark(
            source=self.source.uri,
            name=name,
            begun_at_nanos=self.clock.now_nanos(),
            pin=f"memwal-backup-{self.clock.new_id()[:8]}",
            paths=() if former is None else former.paths,
        )
        self._before("mark")
        self.documents.put_mark(mark)
        return mark

    def _mark(self, mark: BackupMark, plan: CopyPlan) -> BackupMark:
        paths = {*mark.paths, *(needed.path for needed in plan.copied)}
        mark = replace(mark, paths=tuple(sorted(paths)))
        self._before("mark what is copied")
        self.documents.put_mark(mark)
        return mark

    def _copy(self, plan: CopyPlan, pin: Checkpoint) -> list[BackupObject]:
        """Copy, phase by phase; returns all objects of the backup."""
        found = list(plan.kept)
        there = {needed.path for needed in (*plan.looked_at, *plan.compared)}
        work = [*plan.looked_at, *plan.compared, *plan.copied]
        done, bytes_done = 0, 0
        self.show.start("copying objects", len(work), plan.num_bytes)

        def take(needed: Needed) -> BackupObject:
            nonlocal done, bytes_done, pin
            self.steps("copy")
            one = self._take(needed, is_there=needed.path in there)
            with self._lock:
                done, bytes_done = done + 1, bytes_done + needed.size_bytes
                pin = self.source.renew_pin(pin)
                self.show.done(done, bytes_done)
            return one

        for phase in Phase:
            todo = [needed for needed in work if needed.phase is phase]
            if todo:
                self._before(f"copy {phase.name.lower().replace('_', ' ')}")
                found += side_by_side(take, todo, self.limits.connections_max)
        return found

    def _take(self, needed: Needed, *, is_there: bool) -> BackupObject:
        """The object as it is at the place, by copying it unless it is there."""
        read = self._read.get(needed.path)
        if read is None:
            if not is_there:
                read = self.dest.copy(needed.path, needed.size_bytes)
            else:
                read = self.dest.digest(needed.path)
                if needed.phase in NUMBERED:
                    check_same(
                        self.dest.uri, read, self.source.digest(needed.path, needed.size_bytes)
                    )
            with self._lock:
                self._read[needed.path] = read
                self._copied += not is_there
                self._bytes_copied += 0 if is_there else read.size_bytes
        return read

    def _finish(self, name: str, place: Place, cut: Cut, found: Sequence[BackupObject]) -> Backup:
        backup = self._describe(name, cut)
        # It is the newest, whatever the clocks of those who made the others said.
        newest = max((other.made_at_nanos for other in place.backups), default=0)
        backup = replace(backup, made_at_nanos=max(backup.made_at_nanos, newest + 1))
        self._before("hints")
        self.dest.put_hints(list_hints([*place.backups, backup]), ())
        self._before("document")
        return self.documents.put(backup, found)

    def _describe(self, name: str, cut: Cut) -> Backup:
        return describe_cut(
            cut,
            name=name,
            source=self.source.uri,
            made_at_nanos=self.clock.now_nanos(),
            memwal_version=self.memwal_version,
        )

    def _tidy(
        self, keep: Keep | None, mark: BackupMark, found: Sequence[BackupObject]
    ) -> tuple[list[Backup], list[str]]:
        """Drop what is not kept, and what killed runs left; then there is nothing to mark."""
        try:
            expired = choose_expired(self.documents.list(), keep, self.clock.now_nanos())
            left = set(mark.paths) - {one.path for one in found}
            deleted: list[str] = []
            if expired or left or self.documents.left_lists():
                dropper = Dropper(
                    dest=self.dest,
                    documents=self.documents,
                    before_step=self.before_step,
                    steps=self.steps,
                )
                deleted = dropper.drop(expired, sorted(left))
            self._before("remove mark")
            self.dest.sweep(self.clock.now_nanos() - _STAGED_NANOS_MAX)
            self.documents.remove_mark()
        except MemWalError as error:
            raise error.at(f"backup {mark.name!r} is made, but what goes could not go") from None
        return expired, deleted

    def _explain(self, error: MemWalError) -> MemWalError:
        if not isinstance(error, Missing):
            return error
        return LostRace(
            f"{self.source.uri}: what was to be copied was collected each of "
            f"{self.limits.attempts_max} times ({error}): run again, which goes on from there"
        )

    def _before(self, step: str) -> None:
        self.before_step()
        self.steps(step)
