"""Decides whether the changes between two versions can be told. Pure.

With stable row ids, Lance marks each row with the versions that made it and last changed it, so
what changed between two versions is found without reading the rest. The result is net: a key has
one row, an insert, an update or a delete, and none if it came and went in between, unless asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwal.errors import Refused, Usage
from memwal.text import count_of

INSERT, UPDATE, DELETE = "insert", "update", "delete"
ADDED = ("_change", "_version", "_time")
BEFORE = "_before"

# Operations after which each row that they changed says so. `BaseOperation` is how pylance shows
# commits that touch no rows: reserved fragments, progress of the MemWAL.
_MARKS_ROWS = frozenset(
    ("Append", "Delete", "Update", "Merge", "Project", "Rewrite", "CreateIndex", "UpdateConfig")
) | {"BaseOperation", "Clone"}
_TAKES_ROWS = frozenset(("Delete", "Update", "Merge"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangesRequest:
    """Which changes: those of the versions after `since`, up to `until` (None: the latest).

    From 0, each row of `until` is an insert. `before` adds the row as it was at `since`. `passing`
    tells keys that came and went in between as deletes: who applied an earlier part may hold them.
    """

    since: int
    until: int | None = None
    columns: tuple[str, ...] | None = None
    before: bool = False
    passing: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """What made a version, by Lance's name (None: nobody knows), and when."""

    version: int
    operation: str | None
    committed_at_nanos: int

    @property
    def takes_rows(self) -> bool:
        """Whether rows may be gone after it."""
        return self.operation in _TAKES_ROWS


def choose_range(uri: str, request: ChangesRequest, there: Sequence[int]) -> tuple[int, range]:
    """The last version, and those whose commits made the changes. `there` are all that exist.

    Raises Usage for versions that never were, Refused if one that is needed has expired.
    """
    latest = max(there)
    until = latest if request.until is None else request.until
    if not 0 <= request.since <= until <= latest:
        raise Usage(
            f"{uri}: there are no changes from version {request.since} to {until}; the latest "
            f"version is {latest}"
        )
    first = request.since or until
    if gone := set(range(first, until + 1)).difference(there):
        oldest = next(v for v in sorted(there) if v > max(gone))
        raise Refused(
            "MW-Y01",
            f"{uri}: version {min(gone)} has expired, and with it what changed; changes are known "
            f"from version {oldest} on. A cursor would have kept them: read the table as of a "
            "version as a whole, and make a cursor there",
        )
    return until, range(first if request.since == 0 else first + 1, until + 1)


def check_commits(uri: str, commits: Sequence[Commit]) -> None:
    """Raise Refused for a commit after which rows differ that are not marked as changed."""
    for commit in commits:
        if commit.operation not in _MARKS_ROWS:
            what = "can't be told" if commit.operation is None else f"was a {commit.operation}"
            raise Refused(
                "MW-Y02",
                f"{uri}: what made version {commit.version} {what}: rows may have changed without "
                f"a mark. Read version {commit.version} as a whole, and follow it with --since "
                f"{commit.version}",
            )


def check_columns(uri: str, names: Sequence[str], request: ChangesRequest) -> tuple[str, ...]:
    """The columns asked for, or all. Raises Usage for unknown names, and for names of ours."""
    ours = {BEFORE, *ADDED}
    if clash := ours.intersection(names):
        raise Usage(f"{uri}: changes add {clash.pop()}, and the table has such a column")
    asked = tuple(names) if request.columns is None else request.columns
    for name in asked:
        if name not in names:
            raise Usage(f"{uri}: no column {name!r}; there are {', '.join(names)}")
    return asked


def check_sum(uri: str, *, rows: int, rows_before: int, inserted: int, deleted: int) -> None:
    """Raise Refused unless the rows add up; else some row changed that nothing marks."""
    if rows != rows_before + inserted - deleted:
        raise Refused(
            "MW-Y03",
            f"{uri}: {count_of(rows_before, 'row')}, {inserted} new and {deleted} gone don't make "
            f"{rows}: something changed rows without a mark. Read the table as a whole",
        )
