"""Tries a store: what is put, read, listed and deleted, and in which order.

Permissions are tried first, one by one; checks that need a refused one are not tried. If only
deletes are refused, the rest is tried nevertheless, since merges can do without them; the report
then counts the few small objects that stay. All names are new in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError
from typing import Protocol

from memwal.errors import AlreadyExists, Corruption, MemWalError, Missing, Unsupported
from memwal.jobs.doctor.plan import (
    CREATE,
    DELETE,
    LIST,
    READ,
    REPLACE,
    Check,
    Round,
    complete,
    find_hindrance,
    is_denied,
    judge_clock,
    judge_permissions,
    judge_race,
)
from memwal.ports import Clock, Objects
from memwal.threads import side_by_side

RACERS = 8
_ROUNDS = 5
_READS = 3
_LISTED = 6
_TAIL_BYTES = 40
_START_SECONDS_MAX = 30.0
_SOME = bytes(range(256)) * 4


class Scratch(Protocol):
    """A folder that is this run's alone."""

    @property
    def objects(self) -> Objects:
        """The folder as an object store."""
        ...

    def prove_put_if_absent(self) -> None:
        """Prove put-if-absent, as before a table's first write; raises Unsupported without it."""
        ...

    def use_lance(self) -> None:
        """Make a tiny table with Lance, append to it, and read it. Raises Unsupported."""
        ...

    def remove(self, paths: Iterable[str]) -> int:
        """Delete the folder, with everything put at `paths`; returns how many objects are left."""
        ...

    def remove_leftovers(self) -> None:
        """Delete the folders of earlier, killed runs; what can't be deleted stays."""
        ...


@dataclass(kw_only=True)
class Doctor:
    """Examines one store. `done` is called with the number of checks made so far.

    `left` is how many objects could not be deleted.
    """

    scratch: Scratch
    clock: Clock
    done: Callable[[int], None] = lambda count: None
    found: list[Check] = field(default_factory=list)
    denied: dict[str, str] = field(default_factory=dict)
    left: int = 0
    _paths: list[str] = field(default_factory=list)

    def examine(self) -> tuple[Sequence[Check], MemWalError | None]:
        """Make every check; returns them in the report's order, and any error that cut it short."""
        try:
            error = self._examine()
        finally:
            left = self.scratch.remove(self._paths)
            self.left = 0 if CREATE in self.denied else left
        return complete(self.found, "not tried"), error

    def _examine(self) -> MemWalError | None:
        tries: dict[str, Callable[[], Check | str]] = {
            "permissions": self._try_permissions,
            "put_if_absent": self._put_twice,
            "put_race": self._race,
            "read_after_put": self._read_back,
            "list_after_put": self._list_back,
            "range_read": self._read_ranges,
            "delete": self._delete,
            "clock": self._compare_clocks,
            "lance": self._use_lance,
        }
        for name, attempt in tries.items():
            try:
                check = find_hindrance(name, self.denied, self.found) or attempt()
                self.found.append(check if isinstance(check, Check) else Check.judge(name, check))
            except MemWalError as error:
                ok = False if is_denied(error) else None
                self.found.append(Check(name=name, ok=ok, detail=str(error)))
                return error
            self.done(len(self.found))
        if not self.denied:
            self.scratch.remove_leftovers()
        return None

    # ---- permissions

    def _try_permissions(self) -> Check:
        objects, path = self.scratch.objects, self._name("permissions")
        tries: dict[str, Callable[[], object]] = {
            LIST: lambda: list(objects.list("")),
            CREATE: lambda: self._put_new(path, _SOME),
            READ: lambda: objects.exists(path),
            REPLACE: lambda: objects.put(path, _SOME),
        }
        refusals = []
        for operation, attempt in tries.items():
            try:
                attempt()
            except MemWalError as error:
                self._deny(operation, error)
                refusals.append(error)
        if {LIST, CREATE, READ} <= self.denied.keys():
            raise refusals[0]  # no permission is missing: the credentials are refused
        if CREATE not in self.denied:
            try:
                for _, text in objects.delete([path]).failed:
                    self.denied[DELETE] = text
            except MemWalError as error:
                self._deny(DELETE, error)
        return judge_permissions(self.denied)

    def _deny(self, operation: str, error: MemWalError) -> None:
        if not is_denied(error):
            raise error
        self.denied[operation] = str(error)

    # ---- puts

    def _put_twice(self) -> str:
        return _find_unfit(self.scratch.prove_put_if_absent)

    def _race(self) -> Check:
        return judge_race([self._race_once(number) for number in range(_ROUNDS)], RACERS)

    def _race_once(self, number: int) -> Round:
        objects, path, start = self.scratch.objects, self._name(f"race-{number}"), Barrier(RACERS)

        def put(data: bytes) -> bool:
            with suppress(BrokenBarrierError):  # a racer was late: the others go on without it
                start.wait(_START_SECONDS_MAX)
            try:
                objects.put_if_absent(path, data)
            except AlreadyExists:
                return False
            return True

        rows = [f"{racer}".encode() * 64 for racer in range(RACERS)]
        won = side_by_side(put, rows, RACERS)
        try:
            stored = objects.get(path)
        except Missing:
            stored = None
        winners = [data for data, has_won in zip(rows, won, strict=True) if has_won]
        return Round(winners=winners, stored=stored)

    # ---- reads

    def _read_back(self) -> str:
        """Check that reads see puts.

        Each name is asked for before its first put, since some caches remember a missing object.
        """
        objects = self.scratch.objects
        for number in range(_READS):
            path = self._name(f"read-{number}")
            for what, put in (("new", self._put_new), ("replaced", objects.put)):
                missing = not objects.exists(path)
                data = f"{what}-{number}".encode()
                put(path, data)
                try:
                    stored = objects.get(path)
                except Missing:
                    stored = None
                if missing is (what == "replaced") or stored != data:
                    return f"a {what} object was not there, or not whole, when it was read"
        return ""

    def _read_ranges(self) -> str:
        objects, path = self.scratch.objects, self._name("ranges")
        self._put_new(path, _SOME)
        size = len(_SOME)
        spans = ((0, 10), (500, 540), (size - 10, size))
        try:
            wrong = [
                f"bytes {start} to {end} of {size} were others"
                for start, end in spans
                if objects.get_range(path, start, end) != _SOME[start:end]
            ]
            before = objects.counts.bytes_read
            for length, last in ((_TAIL_BYTES, _SOME[-_TAIL_BYTES:]), (2 * size, _SOME)):
                if objects.get_tail(path, length) != (last, size):
                    wrong.append(f"the last {length} bytes of {size} were others")
            sent = objects.counts.bytes_read - before
        except (Corruption, Unsupported) as error:
            return str(error)
        # Our S3 store asks again by offsets when it gets other bytes than it asked for.
        if not wrong and objects.uri.startswith("s3://") and sent > _TAIL_BYTES + size:
            wrong.append(
                f"a request for the last bytes (bytes=-{_TAIL_BYTES}) is answered with others; "
                "memwal asks again by offsets, which not every program does"
            )
        return "; ".join(wrong)

    # ---- listings, deletes

    def _list_back(self) -> str:
        objects = self.scratch.objects
        paths = [self._name(f"listed/{number}") for number in range(_LISTED)]
        for size, path in enumerate(paths):
            self._put_new(path, b"." * size)
        wanted = {path: size for size, path in enumerate(paths)}
        problem = self._compare_listing(wanted, "what was put")
        if not problem and "listed" not in objects.list_folders(""):
            problem = "a folder is missing in the list of folders"
        if not problem and DELETE not in self.denied:
            objects.delete(paths[::2])
            wanted = {path: wanted[path] for path in paths[1::2]}
            problem = self._compare_listing(wanted, "what was left after a delete")
        return problem

    def _compare_listing(self, wanted: dict[str, int], what: str) -> str:
        listed = {info.path: info.size_bytes for info in self.scratch.objects.list("listed")}
        missing, more = len(wanted.keys() - listed.keys()), len(listed.keys() - wanted.keys())
        if missing or more:
            return f"of {what}, {len(wanted)} objects, a list lacks {missing} and has {more} more"
        return "" if listed == wanted else f"a list tells other sizes of {what}"

    def _delete(self) -> str:
        objects = self.scratch.objects
        paths = [self._name(f"deleted/{number}") for number in range(_LISTED)]
        kept, *gone = paths
        for path in paths:
            self._put_new(path, _SOME)
        result = objects.delete([*gone, "deleted/none"])
        problem = "; ".join(f"{path}: {text}" for path, text in result.failed)
        still = [path for path in gone if objects.exists(path)]
        if not problem and (still or not objects.exists(kept)):
            problem = f"{len(still)} of {len(gone)} deleted objects can still be read"
            if not still:
                problem = "an object is gone that was not to be deleted"
        return problem

    # ---- the rest

    def _compare_clocks(self) -> Check:
        objects, path = self.scratch.objects, self._name("clock/now")
        before = self.clock.now_nanos()
        self._put_new(path, _SOME)
        after = self.clock.now_nanos()
        told = [info.modified_at_nanos for info in objects.list("clock")]
        replied = getattr(objects, "told_nanos", None)  # the time in the reply to the put
        if replied is not None:
            told.append(replied)
        return judge_clock(before, told, after)

    def _use_lance(self) -> str:
        return _find_unfit(self.scratch.use_lance)

    def _put_new(self, path: str, data: bytes) -> None:
        """Put an object under a new name; it can only exist already if a put's reply was lost."""
        with suppress(AlreadyExists):
            self.scratch.objects.put_if_absent(path, data)

    def _name(self, name: str) -> str:
        self._paths.append(name)
        return name


def _find_unfit(attempt: Callable[[], None]) -> str:
    """Why the store can't do that; empty if it can."""
    try:
        attempt()
    except Unsupported as error:
        return str(error)
    return ""
