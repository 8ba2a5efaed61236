"""Defines the checks, and judges what they found. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import BadCredentials, MemWalError, Unsupported

CLOCK_SECONDS_MAX = 60.0
# The errors by which a file system refuses permission.
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

LIST, CREATE, READ, REPLACE, DELETE = "list", "create", "read", "replace", "delete"
MERGE_NEEDS = (LIST, CREATE, READ, REPLACE)
GARBAGE_NEEDS = (*MERGE_NEEDS, DELETE)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of check: the operations it needs, what it proves, what to do if it fails, and what
    was found where nothing is wrong.
    """

    needs: tuple[str, ...]
    proves: str
    advice: str
    fine: str = ""


CHECKS: Mapping[str, Kind] = {
    "put_if_absent": Kind(
        (CREATE, READ),
        "a WAL entry, manifest or commit never replaces another's",
        "let no MemWAL writer near it: upgrade or reconfigure the store, or use one that keeps "
        "If-None-Match",
        "the second put of a name was refused",
    ),
    "put_race": Kind(
        (CREATE, READ),
        "of writers that meet, one wins",
        "as put_if_absent: the store looks and then stores, which two can do at once",
    ),
    "read_after_put": Kind(
        (CREATE, READ, REPLACE),
        "who reads after a commit sees it",
        "look for a cache or a mirror before the store; go to the store itself",
        "new and replaced objects were read as they were put",
    ),
    "list_after_put": Kind(
        (CREATE, LIST),
        "shards and versions are found at once",
        "use a store, or a gateway of it, whose lists are consistent",
        "what was put is listed at once, what was deleted no more",
    ),
    "range_read": Kind(
        (CREATE, READ),
        "parts of files are the right parts",
        "memwal asks by offsets instead where it can; prove your other readers, or upgrade",
        "ranges from the start, the middle and the end are right",
    ),
    "delete": Kind(
        (CREATE, READ, DELETE),
        "garbage goes, and only that",
        "look for a lock or a retention rule on the bucket",
        "5 objects, and one that was not there, in one batch",
    ),
    "clock": Kind(
        (CREATE, LIST),
        "ages of files are what they seem",
        "set the clocks of this host and the store (NTP): grace and retention go by them",
    ),
    "permissions": Kind(
        (),
        "what a merge needs, and garbage",
        "allow these credentials what is refused, below the table's folder; without delete, merge "
        "here and run garbage with others",
    ),
    "lance": Kind(
        GARBAGE_NEEDS,
        "Lance works with these options",
        "see what it says; its options are memwal's",
        "a table was made, appended to and read",
    ),
}
"""Every kind of check, in the report's order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One verdict. `ok` is None if the check could not be tried, or was inconclusive."""

    name: str
    ok: bool | None
    detail: str

    @classmethod
    def judge(cls, name: str, problem: str) -> Check:
        """The verdict on what was tried: it is right, unless there is a problem."""
        return cls(name=name, ok=not problem, detail=problem or CHECKS[name].fine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One race for a name: the data of those who were told that they won, and what is stored.

    `stored` is None where nothing is.
    """

    winners: Sequence[bytes]
    stored: bytes | None


def judge_race(rounds: Sequence[Round], racers: int) -> Check:
    """Judge the races: exactly one racer may win each, and its data has to be stored.

    A round that nobody won is inconclusive: a reply was lost, or the store asked all to try again.
    """
    won = [found for found in rounds if found.winners]
    crowds = [len(found.winners) for found in won if len(found.winners) > 1]
    other = sum(found.stored != found.winners[0] for found in won if len(found.winners) == 1)
    ok: bool | None = bool(won) or None
    detail = f"{len(won)} of {len(rounds)} rounds: one of {racers} won, and what it put is stored"
    if crowds:
        ok, detail = False, f"{max(crowds)} of {racers} were told that they had made one object"
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
    missing = [operation for operation in CHECKS[name].needs if operation in denied]
    if missing == [DELETE] and name == "delete":
        return Check(name=name, ok=False, detail=denied[DELETE])
    detail = f"not tried: {' and '.join(missing)} refused"
    # Only a listing tells the names that Lance puts, so it is tried last, if all else is right.
    if name == "lance" and not missing and not all(check.ok for check in found):
        missing, detail = [name], "not tried: another check failed"
    return Check(name=name, ok=None, detail=detail) if missing else None


def complete(found: Sequence[Check], why: str) -> list[Check]:
    """All checks in the report's order; those not in `found` have no verdict, because of `why`."""
    known = {check.name: check for check in found}
    return [known.get(name) or Check(name=name, ok=None, detail=why) for name in CHECKS]


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
