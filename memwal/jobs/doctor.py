"""`memwal doctor`: proves what memwal and MemWAL writers need of a store, by trying it.

Permissions are tried first, one by one; checks that need a refused one are not tried. If only
deletes are refused, the rest is tried nevertheless, since merges can do without them; the report
then counts the few small objects that stay. All names are new in each run, in a scratch folder
below `_maintenance/`, of a table or of any other address.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import NamedTuple

import lance
import pyarrow as pa
from rich.console import RenderableType
from rich.text import Text

from memwal.clock import SystemClock
from memwal.errors import (
    AlreadyExists,
    BadCredentials,
    Corruption,
    MemWalError,
    Missing,
    Unsupported,
    Usage,
)
from memwal.format import layout
from memwal.grid import Column, build_table, prose, words
from memwal.ports import Clock, Objects
from memwal.report import DONE, FAILED, JobReport, Section
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.stores import check_lance_version
from memwal.store.objects.base import WAITS, StoreLimits
from memwal.store.objects.local import check_way
from memwal.store.objects.opening import (
    find_address,
    is_in_bucket,
    normalise_uri,
    open_objects,
    prove_put_if_absent,
)
from memwal.store.tables.lance_calls import tidy_text, translated
from memwal.threads import side_by_side

CLOCK_SECONDS_MAX = 60.0
RACERS = 8
FOLDER = f"{layout.STAGING}/doctor"
_ROUNDS = 5
_READS = 3
_LISTED = 6
_TAIL_BYTES = 40
_START_SECONDS_MAX = 30.0
_SOME = bytes(range(256)) * 4
# The errors by which a file system refuses permission.
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

LIST, CREATE, READ, REPLACE, DELETE = "list", "create", "read", "replace", "delete"
MERGE_NEEDS = (LIST, CREATE, READ, REPLACE)
GARBAGE_NEEDS = (*MERGE_NEEDS, DELETE)


class Trial(NamedTuple):
    """What a check needs to be allowed, what it proves, and what to do if it fails."""

    needs: tuple[str, ...]
    proves: str
    advice: str


_UNFIT = "let no MemWAL writer near it: upgrade it, or use a store that keeps If-None-Match"
TRIALS: Mapping[str, Trial] = {
    "put_if_absent": Trial((CREATE, READ), "no put replaces another's object", _UNFIT),
    "put_race": Trial((CREATE, READ), "of writers that meet, one wins", _UNFIT),
    "read_after_put": Trial(
        (CREATE, READ, REPLACE), "who reads after a commit sees it", "go past the cache or mirror"
    ),
    "list_after_put": Trial(
        (CREATE, LIST), "shards and versions are found at once", "use a store whose lists are exact"
    ),
    "range_read": Trial(
        (CREATE, READ), "parts of files are the right parts", "memwal can do without: try others"
    ),
    "delete": Trial(
        (CREATE, READ, DELETE), "garbage goes, and only that", "look for a lock on the bucket"
    ),
    "clock": Trial((CREATE, LIST), "ages of files are right", "set both clocks (NTP)"),
    "permissions": Trial(
        (), "merge and garbage are allowed", "allow what is refused; without delete, merge alone"
    ),
    "lance": Trial(GARBAGE_NEEDS, "Lance works with these options", "see what it says"),
}
"""Every check, in the report's order."""


class Check(Section):
    """One check. `ok` is None where it was not tried, or showed nothing either way."""

    name: str
    ok: bool | None
    detail: str


class DoctorReport(JobReport):
    """The document. `scratch` is where it tried; `left` objects there could not be deleted."""

    uri: str
    checks: tuple[Check, ...]
    scratch: str | None = None
    left: int = 0


def run_doctor(options: RunOptions, progress: Progress) -> DoctorReport:
    """Try the store of one table or address. Nothing is left there, and no table is changed."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    (table,) = options.tables
    checks: Sequence[Check] = complete(())
    doctor: Doctor | None = None
    error: MemWalError | None = None
    try:
        check_lance_version(options.untested_lance_allowed)
        uri, options_there = find_address(normalise_uri(table.find_uri()), table.storage_options)
        scratch = ScratchFolder(uri, options_there, clock, StoreLimits())
        progress.start("checks", len(TRIALS))
        doctor = Doctor(scratch=scratch, clock=clock, done=progress.done)
        checks, error = doctor.examine()
    except MemWalError as caught:
        error = caught
    wrong, exit_code = sum_up(checks, error)
    return DoctorReport(
        job="doctor",
        outcome=FAILED if exit_code else DONE,
        error=wrong,
        exit_code=exit_code,
        seconds=round(clock.monotonic_seconds() - started, 3),
        requests={} if doctor is None else doctor.scratch.objects.counts.as_dict(),
        uri=table.name,
        checks=tuple(checks),
        scratch=None if doctor is None else doctor.scratch.objects.uri,
        left=0 if doctor is None else doctor.left,
    )


@dataclass(kw_only=True)
class Doctor:
    """Examines one store. `done` is called with the number of checks made so far.

    `left` is how many objects could not be deleted.
    """

    scratch: ScratchFolder
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
        return complete(self.found), error

    def _examine(self) -> MemWalError | None:
        # What is refused is known first.
        for name in sorted(TRIALS, key=lambda name: name != "permissions"):
            try:
                check = find_hindrance(name, self.denied, self.found) or self._try(name)
            except MemWalError as error:
                ok = False if is_denied(error) else None
                self.found.append(Check(name=name, ok=ok, detail=str(error)))
                return error
            self.found.append(check)
            self.done(len(self.found))
        return None

    def _try(self, name: str) -> Check:
        try:
            found: Check | str | None = getattr(self, f"try_{name}")()
        except (Corruption, Unsupported) as error:
            found = str(error)
        if isinstance(found, Check):
            return found
        return Check(name=name, ok=not found, detail=found or TRIALS[name].proves)

    # ---- permissions

    def try_permissions(self) -> Check:
        """Try each operation that jobs need."""
        objects, path = self.scratch.objects, self._name("permissions")
        tries: dict[str, Callable[[], object]] = {
            LIST: lambda: list(objects.list("")),
            CREATE: lambda: self._put_new(path, _SOME),
            READ: lambda: objects.exists(path),
            REPLACE: lambda: objects.put(path, _SOME),
            DELETE: lambda: self._try_delete(path),
        }
        for operation, attempt in tries.items():
            try:
                attempt()
            except MemWalError as error:
                if not is_denied(error):
                    raise
                self.denied[operation] = str(error)
                # No permission is missing where none is there: the credentials are refused.
                if {LIST, CREATE, READ} <= self.denied.keys():
                    raise
        return judge_permissions(self.denied)

    def _try_delete(self, path: str) -> None:
        if CREATE not in self.denied:
            for _, text in self.scratch.objects.delete([path]).failed:
                self.denied[DELETE] = text

    def try_put_if_absent(self) -> None:
        """Raise Unsupported if a second put of a name wins."""
        prove_put_if_absent(self.scratch.objects, self.clock)

    def try_lance(self) -> None:
        """Raise Unsupported if Lance can't work here."""
        self.scratch.use_lance()

    def try_put_race(self) -> Check:
        """Let several put one object."""
        return judge_race([self._race_once(number) for number in range(_ROUNDS)])

    def _race_once(self, number: int) -> tuple[list[bytes], bytes | None]:
        """One race: the data of those who were told that they won, and what is stored."""
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
        return [data for data, has_won in zip(rows, won, strict=True) if has_won], self._get(path)

    def _get(self, path: str) -> bytes | None:
        try:
            return self.scratch.objects.get(path)
        except Missing:
            return None

    # ---- reads

    def try_read_after_put(self) -> str:
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
                if missing is (what == "replaced") or self._get(path) != data:
                    return f"a {what} object was not there, or not whole, when it was read"
        return ""

    def try_range_read(self) -> str:
        """Check that parts of an object are read right."""
        objects, path = self.scratch.objects, self._name("ranges")
        self._put_new(path, _SOME)
        size = len(_SOME)
        wrong = [
            f"bytes {start} to {end} of {size} were others"
            for start, end in ((0, 10), (500, 540), (size - 10, size))
            if objects.get_range(path, start, end) != _SOME[start:end]
        ]
        before = objects.counts.bytes_read
        for length, last in ((_TAIL_BYTES, _SOME[-_TAIL_BYTES:]), (2 * size, _SOME)):
            if objects.get_tail(path, length) != (last, size):
                wrong.append(f"the last {length} bytes of {size} were others")
        sent = objects.counts.bytes_read - before
        # Our S3 store asks again by offsets when it gets other bytes than it asked for.
        if not wrong and objects.uri.startswith("s3://") and sent > _TAIL_BYTES + size:
            wrong.append(
                f"a request for the last bytes (bytes=-{_TAIL_BYTES}) is answered with others; "
                "memwal asks again by offsets, which not every program does"
            )
        return "; ".join(wrong)

    # ---- listings, deletes

    def try_list_after_put(self) -> str:
        """Check that listings see puts and deletes."""
        objects = self.scratch.objects
        wanted = {self._name(f"listed/{number}"): number for number in range(_LISTED)}
        for path, size in wanted.items():
            self._put_new(path, b"." * size)
        if problem := self._compare_listing(wanted, "what was put"):
            return problem
        if "listed" not in objects.list_folders(""):
            return "a folder is missing in the list of folders"
        if DELETE in self.denied:
            return ""
        for path in [*wanted][::2]:
            objects.delete([path])
            del wanted[path]
        return self._compare_listing(wanted, "what was left after a delete")

    def _compare_listing(self, wanted: dict[str, int], what: str) -> str:
        listed = {info.path: info.size_bytes for info in self.scratch.objects.list("listed")}
        missing, more = len(wanted.keys() - listed.keys()), len(listed.keys() - wanted.keys())
        if missing or more:
            return f"of {what}, {len(wanted)} objects, a list lacks {missing} and has {more} more"
        return "" if listed == wanted else f"a list tells other sizes of {what}"

    def try_delete(self) -> str:
        """Check that a delete deletes what it names, and nothing else."""
        objects = self.scratch.objects
        paths = [self._name(f"deleted/{number}") for number in range(_LISTED)]
        kept, *gone = paths
        for path in paths:
            self._put_new(path, _SOME)
        failed = objects.delete([*gone, "deleted/none"]).failed
        if failed:
            return "; ".join(f"{path}: {text}" for path, text in failed)
        still = [path for path in gone if objects.exists(path)]
        if still:
            return f"{len(still)} of {len(gone)} deleted objects can still be read"
        return "" if objects.exists(kept) else "an object is gone that was not to be deleted"

    # ---- the rest

    def try_clock(self) -> Check:
        """Compare the store's clock with this host's."""
        objects, path = self.scratch.objects, self._name("clock/now")
        before = self.clock.now_nanos()
        self._put_new(path, _SOME)
        after = self.clock.now_nanos()
        told = [info.modified_at_nanos for info in objects.list("clock")]
        if (replied := getattr(objects, "told_nanos", None)) is not None:
            told.append(replied)  # the time in the reply to the put
        return judge_clock(before, told, after)

    def _put_new(self, path: str, data: bytes) -> None:
        """Put an object under a new name; it can only exist already if a put's reply was lost."""
        with suppress(AlreadyExists):
            self.scratch.objects.put_if_absent(path, data)

    def _name(self, name: str) -> str:
        self._paths.append(name)
        return name


# ---- what the tries come to


def judge_race(rounds: Sequence[tuple[Sequence[bytes], bytes | None]]) -> Check:
    """Judge the races: one racer wins each, and its data is stored; with none, no verdict."""
    won = [(winners, stored) for winners, stored in rounds if winners]
    crowds = [len(winners) for winners, _ in won if len(winners) > 1]
    other = sum(stored != winners[0] for winners, stored in won if len(winners) == 1)
    ok: bool | None = bool(won) or None
    detail = f"{len(won)} of {len(rounds)} rounds: one of {RACERS} won, and what it put is stored"
    if crowds:
        ok, detail = False, f"{max(crowds)} of {RACERS} were told that they had made one object"
    elif other:
        ok, detail = False, f"in {other} of {len(won)} rounds what is stored is not the winner's"
    return Check(name="put_race", ok=ok, detail=detail)


def judge_clock(before_nanos: int, told_nanos: Sequence[int], after_nanos: int) -> Check:
    """Judge the store's clock by times it gave between two moments of this host's clock."""
    if not told_nanos:
        return Check(name="clock", ok=None, detail="the store tells no time")
    apart = [min(0, told - before_nanos) or max(0, told - after_nanos) for told in told_nanos]
    seconds = max(apart, key=abs) / 1e9
    how = "behind" if seconds < 0 else "ahead of"
    text = f"the store's clock is {abs(seconds):.1f} s {how} this host's"
    # Many stores give times in whole seconds.
    detail = text if abs(seconds) >= 1.5 else "the store's clock and this host's agree"
    return Check(name="clock", ok=abs(seconds) <= CLOCK_SECONDS_MAX, detail=detail)


def judge_permissions(denied: Mapping[str, str]) -> Check:
    """Judge whether merge and garbage can work; `denied` has refused operations and the reasons."""
    if not denied:
        return Check(name="permissions", ok=True, detail=f"{', '.join(GARBAGE_NEEDS)}: allowed")
    stopped = "a merge and garbage" if set(denied) & set(MERGE_NEEDS) else "garbage"
    told = "; ".join(f"{operation} is refused: {text}" for operation, text in denied.items())
    return Check(name="permissions", ok=False, detail=f"{stopped} can't work here: {told}")


def is_denied(error: MemWalError) -> bool:
    """Whether the error means that the store has refused permission."""
    cause = error.__cause__
    denied = isinstance(cause, OSError) and cause.errno in _DENIED
    return denied or isinstance(error, BadCredentials)


def find_hindrance(name: str, denied: Mapping[str, str], found: Sequence[Check]) -> Check | None:
    """The verdict on a check that can't be tried; None if it can."""
    missing = [operation for operation in TRIALS[name].needs if operation in denied]
    if missing == [DELETE] and name == "delete":
        return Check(name=name, ok=False, detail=denied[DELETE])
    detail = f"not tried: {' and '.join(missing)} refused"
    # Only a listing tells the names that Lance puts, so it is tried last, if all else is right.
    if name == "lance" and not missing and not all(check.ok for check in found):
        missing, detail = [name], "not tried: another check failed"
    return Check(name=name, ok=None, detail=detail) if missing else None


def complete(found: Sequence[Check]) -> list[Check]:
    """All checks in the report's order; those not in `found` were not tried."""
    known = {check.name: check for check in found}
    return [known.get(name) or Check(name=name, ok=None, detail="not tried") for name in TRIALS]


def sum_up(checks: Sequence[Check], error: MemWalError | None) -> tuple[str | None, int]:
    """What is wrong, if anything, and the exit code."""
    if isinstance(error, BadCredentials):
        return str(error), error.exit_code
    failed = {check.name: check.detail for check in checks if check.ok is False}
    if failed:
        denied = failed.get("permissions") if failed.keys() <= {"permissions", "delete"} else None
        why = f"this store can't be trusted with a MemWAL: {', '.join(failed)}"
        unfit = Unsupported("MW-D05", denied) if denied else Unsupported("MW-D04", why)
        return str(unfit), unfit.exit_code
    if error is not None:
        return str(error), error.exit_code
    unsettled = [check.name for check in checks if check.ok is None]
    if unsettled:
        return f"not settled, run again: {', '.join(unsettled)}", MemWalError.exit_code
    return None, 0


class ScratchFolder:
    """The scratch folder of one run. Raises what opening the store raises."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        self._options = dict(storage_options) or None
        self._run = f"{FOLDER}/{clock.new_id()}"
        self._local = not is_in_bucket(uri)
        if self._local:
            if Path(uri).is_file():
                raise Usage(f"{uri} is a file: expected a folder, or one that is yet to be made")
            check_way(uri, self._run)  # nothing is put, or deleted, through a link
            way = [Path(uri, self._run), *Path(uri, self._run).parents]
            self._made = [folder for folder in way if not folder.is_dir()]
        self.objects: Objects = open_objects(f"{uri}/{self._run}", storage_options, clock, limits)

    def use_lance(self) -> None:
        """Make a tiny table with Lance, append to it, and read it. Raises Unsupported."""
        uri, rows = f"{self.objects.uri}/table.lance", pa.table({"id": [1, 2, 3]})

        def explain(error: BaseException) -> MemWalError:
            return Unsupported("MW-D02", f"Lance can't work here: {tidy_text(error)}")

        with translated(explain, (Exception,)), WAITS.watch(uri, "Lance makes a table"):
            for mode in ("create", "append"):
                lance.write_dataset(rows, uri, mode=mode, storage_options=self._options)
            found = lance.dataset(uri, storage_options=self._options).to_table()
        if found["id"].to_pylist() != [1, 2, 3, 1, 2, 3]:
            raise Unsupported(
                "MW-D03", f"Lance reads other rows than it wrote: {found['id'].to_pylist()}"
            )

    def remove(self, paths: Iterable[str]) -> int:
        """Delete the folder, with everything put at `paths`; returns how many objects are left."""
        left = dict.fromkeys(paths, "")
        with suppress(MemWalError):
            # Known names first, as a listing may lag or be refused.
            left = dict(self.objects.delete(left).failed)
            more = [info.path for info in self.objects.list("") if info.path not in left]
            if more:
                left |= dict(self.objects.delete(more).failed)
        if self._local:
            _remove_folders(Path(self.objects.uri), self._made)
        return len(left)


def _remove_folders(top: Path, made: Sequence[Path]) -> None:
    """Remove the folders in `top`, `top` itself and those `made` above it, if they are empty."""
    below = sorted((p for p in top.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True)
    for folder in (*below, top, *made):
        with suppress(OSError):
            folder.rmdir()


_WORDS = {
    True: Text("ok", style="green"),
    False: Text("FAILED", style="red"),
    None: Text("-", style="yellow"),
}
COLUMNS: tuple[Column[Check], ...] = (
    words("check", lambda check: check.name),
    words("", lambda check: _WORDS[check.ok]),
    prose("found", lambda check: check.detail),
)


def show_job(report: DoctorReport) -> list[RenderableType]:
    """Render each check, advice for failed ones, and what was not deleted."""
    told = [
        f"{check.name} is to prove that {TRIALS[check.name].proves}: {TRIALS[check.name].advice}"
        for check in report.checks
        if check.ok is False
    ]
    if report.left:
        told.append(
            f"{report.left} small objects could not be deleted and stay below {report.scratch}"
        )
    advice = [Text(text, style="yellow") for text in told]
    return [Text(report.uri, style="bold"), build_table(report.checks, COLUMNS), *advice]
