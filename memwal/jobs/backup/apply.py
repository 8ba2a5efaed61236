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
from typing import TYPE_CHECKING

from memwal.errors import Corruption, LostRace, MemWalError, Missing, Refused
from memwal.jobs.backup.plan import (
    NUMBERED,
    BackupTableReport,
    CopyPlan,
    Damage,
    DestinationState,
    Needed,
    Phase,
    check_history,
    check_place,
    check_same,
    choose_deleted,
    choose_expired,
    describe_backup,
    find_shards,
    is_passing,
    list_hints,
    name_damage,
    plan_copies,
)
from memwal.jobs.backup.request import Keep
from memwal.model import Backup, BackupMark, BackupObject
from memwal.ports import Clock, Steps, no_steps
from memwal.report import DONE, NOTHING_TO_DO
from memwal.threads import Tally, side_by_side

if TYPE_CHECKING:
    from memwal.jobs.backup.store import BackupSource, StoredDestination
    from memwal.run.progress import Progress

_STAGED_NANOS_MAX = 86_400 * 10**9
_DELETED_MAX = 1000
"""Objects that are deleted before the claim on the place is looked at again."""
_CONNECTIONS_MAX = 16
_ATTEMPTS_MAX = 5


Check = Callable[[], None]
"""Called before what writes to a place; raises LeaseHeld when the claim on it was lost."""


@dataclass(kw_only=True)
class Dropper:
    """Drops backups of one place."""

    dest: StoredDestination
    check: Check = lambda: None
    steps: Steps = no_steps

    def choose(self, names: Sequence[str], keep: Keep | None, now_nanos: int) -> list[Backup]:
        """The backups of these names, and those that `keep` does not keep. Raises Usage."""
        named = [self.dest.backups.find(name) for name in names]
        expired = choose_expired(self.dest.backups.list(), keep, now_nanos)
        return list({backup.name: backup for backup in (*named, *expired)}.values())

    def run(
        self,
        names: Sequence[str],
        keep: Keep | None,
        now_nanos: int,
        claim: Callable[[], Check] | None,
    ) -> BackupTableReport:
        """Drop backups; without a claim on the place only plan it."""
        chosen = self.choose(names, keep, now_nanos)
        if claim is not None:
            self.check = claim()
            chosen = self.choose(names, keep, now_nanos)  # another run may have dropped the newest
        paths = self.plan(chosen) if claim is None else self.drop(chosen)
        state = "planned" if claim is None else "dropped"
        return BackupTableReport(
            table=self.dest.name,
            outcome=DONE if chosen or paths else NOTHING_TO_DO,
            dest=self.dest.uri,
            backups=tuple(describe_backup(backup, state) for backup in chosen),
            objects_deleted=len(paths),
        )

    def plan(self, dropped: Sequence[Backup], ours: Sequence[str] = ()) -> list[str]:
        """The objects that would be deleted. Raises Corruption if any list can't be read."""
        names, backups = {backup.name for backup in dropped}, self.dest.backups
        remaining = [b for b in backups.list() if b.name not in names]
        left = [backups.objects_of_left(name) for name in backups.left_lists()]
        listed = [backups.objects_of(backup) for backup in dropped]
        kept = [backups.objects_of(backup) for backup in remaining]
        return choose_deleted([*listed, *left], kept, ours)

    def drop(self, dropped: Sequence[Backup], ours: Sequence[str] = ()) -> list[str]:
        """Drop backups, and what killed runs left; returns the paths of deleted objects."""
        backups = self.dest.backups
        left = backups.left_lists()
        gone = {shard.shard_id for backup in dropped for shard in backup.shards}
        gone |= find_shards(ours)
        for name in left:
            gone |= find_shards(one.path for one in backups.objects_of_left(name))
        paths = self.plan(dropped, ours)
        for backup in dropped:
            self._before("drop document")
            backups.remove_document(backup.name)
        hints = list_hints(backups.list())
        for start in range(0, len(paths), _DELETED_MAX):
            self._before("delete objects")
            self.dest.delete(paths[start : start + _DELETED_MAX])
        if paths or gone:
            self._before("hints")
            self.dest.put_hints(hints, sorted(gone - hints.keys()))
        for name in (*left, *(backup.name for backup in dropped)):
            self._before("drop list")
            backups.remove_list(name)
        return paths

    def _before(self, step: str) -> None:
        self.check()
        self.steps(step)


def compare_objects(
    dest: StoredDestination, needed: Mapping[str, Sequence[BackupObject]], show: Progress
) -> tuple[int, list[Damage]]:
    """Read each object that backups need, once; returns how many there are, and what is wrong."""
    asked: dict[BackupObject, list[str]] = {}
    for name, listed in needed.items():
        for one in listed:
            asked.setdefault(one, []).append(name)
    show.start("comparing objects", len(asked), sum(one.size_bytes for one in asked))
    tally = Tally(show.done)

    def compare(one: BackupObject) -> Damage | None:
        problem = dest.find_problem(one)
        tally.add(one.size_bytes)
        if problem is None:
            return None
        return Damage(path=one.path, problem=problem, backups=tuple(asked[one]))

    found = side_by_side(compare, list(asked), _CONNECTIONS_MAX)
    return len(asked), [damage for damage in found if damage is not None]


def name_backup(clock: Clock) -> str:
    """The name of a backup that was given none: its time."""
    now = datetime.fromtimestamp(clock.now_nanos() / 1e9, UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"


@dataclass(kw_only=True)
class BackupMaker:
    """Makes a backup of one table in one place.

    `claim` proves the place's store, and claims the place. With `verify`, all that the backup needs
    is read again.
    """

    name: str
    source: BackupSource
    dest: StoredDestination
    clock: Clock
    show: Progress
    claim: Callable[[], Check]
    check: Check = field(init=False)
    verify: bool = False
    steps: Steps = no_steps
    _read: dict[str, BackupObject] = field(init=False, default_factory=dict)
    _copied: int = field(init=False, default=0)
    _bytes_copied: int = field(init=False, default=0)
    _lock: Lock = field(init=False, default_factory=Lock)

    def plan(self) -> BackupTableReport:
        """What a backup would copy now. It pins nothing, and changes nothing."""
        place = self._look()
        view = self.source.view()
        self._check_history(place, view.version)
        backup, needed = self.source.cut(view, self.name)
        plan = plan_copies(place, needed)
        num_bytes = sum(n.size_bytes for n in plan.copied)
        backup = replace(
            backup, num_objects=len(needed), num_bytes=sum(n.size_bytes for n in needed)
        )
        return BackupTableReport(
            table=self.source.name,
            outcome=DONE,
            version_before=backup.version,
            version_after=backup.version,
            dest=self.dest.uri,
            backups=(describe_backup(backup, "planned"),),
            objects_copied=len(plan.copied),
            bytes_copied=num_bytes,
            objects_kept=len(needed) - len(plan.copied),
        )

    def make(self, keep: Keep | None = None) -> BackupTableReport:
        """Make it. Raises Refused, LostRace, LeaseHeld, Corruption, StoreUnavailable."""
        backups = self.dest.backups
        mark, place = backups.read_mark(), self._look()
        self._check_history(place, self.source.version())
        self.check = self.claim()
        # What others did to the place meanwhile shows in its documents, unless they were ending
        # what a killed run left: then objects that were there may be gone.
        if place.ours or (mark, place.backups) != (backups.read_mark(), backups.list()):
            mark, place = backups.read_mark(), self._look()
        mark = self._claim(mark)
        for moment in range(1, _ATTEMPTS_MAX + 1):
            try:
                mark, backup, found = self._copy_moment(place, mark)
                break
            except (Missing, Refused, Corruption) as error:
                if not (isinstance(error, Missing) or is_passing(error)):
                    raise
                if moment == _ATTEMPTS_MAX:
                    raise self._explain(error) from None
                self.show.say(f"looking again, as the table moved on: {error}")
                # What was marked before it vanished is there, or not, by now.
                mark, place = backups.read_mark() or mark, self._look()
        read = self._verify(backup, found)  # before others are dropped in its favour
        dropped, deleted = self._tidy(keep, mark, found)
        gone = (describe_backup(other, "dropped") for other in dropped)
        return BackupTableReport(
            table=self.source.name,
            outcome=DONE,
            version_before=backup.version,
            version_after=backup.version,
            dest=self.dest.uri,
            backups=(describe_backup(backup, "made"), *gone),
            objects_copied=self._copied,
            bytes_copied=self._bytes_copied,
            objects_kept=len(found) - self._copied,
            moments=moment,
            objects_read=read,
            objects_deleted=len(deleted),
        )

    def _verify(self, backup: Backup, found: Sequence[BackupObject]) -> int:
        """Compare all objects with the list, if that is asked for. Raises Corruption."""
        if not self.verify:
            return 0
        read, damaged = compare_objects(self.dest, {backup.name: found}, self.show)
        if damaged:
            raise name_damage(self.dest.uri, damaged)
        return read

    def _copy_moment(
        self, place: DestinationState, mark: BackupMark
    ) -> tuple[BackupMark, Backup, list[BackupObject]]:
        """Steps 3 to 6, of one moment; and its pin is let go of, unless the run is killed."""
        self._before("pin")
        view = self.source.pin(mark.pin)
        try:
            self._check_history(place, view.version)
            backup, needed = self.source.cut(view, self.name)
            plan = plan_copies(place, needed)
            mark = self._mark(mark, plan)
            found = self._copy(plan)
            return mark, self._finish(place, backup, found), found
        finally:
            self.steps("let go")
            with suppress(MemWalError):  # it expires
                self.source.let_go(mark.pin)

    def _look(self) -> DestinationState:
        self.dest.backups.check_free(self.name)
        place = self.dest.look()
        check_place(place, self.source.uri)
        return place

    def _check_history(self, place: DestinationState, version: int) -> None:
        if place.backups:
            at = self.source.committed_at_nanos(place.backups[-1].version)
            check_history(place, self.source.uri, version, at)

    def _claim(self, former: BackupMark | None) -> BackupMark:
        """Store the mark, with what the one of a killed run had; its pin is let go of."""
        if former is not None and former.pin:
            with suppress(MemWalError):
                self.source.let_go(former.pin)
        mark = BackupMark(
            source=self.source.uri,
            name=self.name,
            begun_at_nanos=self.clock.now_nanos(),
            pin=f"memwal-backup-{self.clock.new_id()[:8]}",
            paths=() if former is None else former.paths,
        )
        self._before("mark")
        self.dest.backups.put_mark(mark)
        return mark

    def _mark(self, mark: BackupMark, plan: CopyPlan) -> BackupMark:
        paths = {*mark.paths, *(needed.path for needed in plan.copied)}
        mark = replace(mark, paths=tuple(sorted(paths)))
        self._before("mark what is copied")
        self.dest.backups.put_mark(mark)
        return mark

    def _copy(self, plan: CopyPlan) -> list[BackupObject]:
        """Copy, phase by phase; returns all objects of the backup."""
        found = list(plan.kept)
        there = {needed.path for needed in plan.there}
        work = [*plan.there, *plan.copied]
        tally = Tally(self.show.done)
        self.show.start("copying objects", len(work), sum(n.size_bytes for n in plan.copied))

        def take(needed: Needed) -> BackupObject:
            self.steps("copy")
            one = self._take(needed, is_there=needed.path in there)
            tally.add(needed.size_bytes)
            return one

        for phase in Phase:
            todo = [needed for needed in work if needed.phase is phase]
            if todo:
                self._before(f"copy {phase.name.lower().replace('_', ' ')}")
                found += side_by_side(take, todo, _CONNECTIONS_MAX)
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

    def _finish(
        self, place: DestinationState, backup: Backup, found: Sequence[BackupObject]
    ) -> Backup:
        # It is the newest, whatever the clocks of those who made the others said.
        newest = max((other.made_at_nanos for other in place.backups), default=0)
        backup = replace(backup, made_at_nanos=max(backup.made_at_nanos, newest + 1))
        self._before("hints")
        self.dest.put_hints(list_hints([*place.backups, backup]), ())
        self._before("document")
        return self.dest.backups.put(backup, found)

    def _tidy(
        self, keep: Keep | None, mark: BackupMark, found: Sequence[BackupObject]
    ) -> tuple[list[Backup], list[str]]:
        """Drop what is not kept, and what killed runs left; then there is nothing to mark."""
        try:
            expired = choose_expired(self.dest.backups.list(), keep, self.clock.now_nanos())
            left = set(mark.paths) - {one.path for one in found}
            deleted: list[str] = []
            if expired or left or self.dest.backups.left_lists():
                dropper = Dropper(dest=self.dest, check=self.check, steps=self.steps)
                deleted = dropper.drop(expired, sorted(left))
            self._before("remove mark")
            self.dest.sweep(self.clock.now_nanos() - _STAGED_NANOS_MAX)
            self.dest.backups.remove_mark()
        except MemWalError as error:
            raise error.at(f"backup {mark.name!r} is made, but what goes could not go") from None
        return expired, deleted

    def _explain(self, error: MemWalError) -> MemWalError:
        if not isinstance(error, Missing):
            return error
        return LostRace(
            f"{self.source.uri}: what was to be copied was collected each of "
            f"{_ATTEMPTS_MAX} times ({error}): run again, which goes on from there"
        )

    def _before(self, step: str) -> None:
        self.check()
        self.steps(step)
