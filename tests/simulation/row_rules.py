"""What several changes of one key come to: the newest wins, or a row-merge policy folds them.

Without a key there is nothing to come to: all rows stay.

A change is a number, or None for a delete. Under the policy of counters a number from 0 on is an
operand, which adds itself, and one below is a value (`value_of`); a state has values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from memwal.model import TableView
from memwal.rows.expire import Expire, find_horizon, make_expire
from tests.simulation.scheduler import START_NANOS

Changes = Mapping[int, int | None]


class RowRules(Protocol):
    """One of the three."""

    policy_text: str | None
    primary_key: tuple[str, ...]
    expire: Expire | None

    def hide(self, state: dict[int, int], now_nanos: int) -> dict[int, int]:
        """What is left of a state when rows that have expired by then are left out."""
        ...

    def onto(self, older: dict[int, int | None], newer: Changes) -> None:
        """Make one set of changes of two, in `older`."""
        ...

    def apply(self, state: dict[int, int], changes: Changes) -> None:
        """Put changes on top of a state."""
        ...

    def put(self, number: int) -> int:
        """A writer's change that is no delete."""
        ...

    def value(self, number: int) -> int:
        """What a plain write puts into the base."""
        ...


class _Stays:
    """Rows stay until they are deleted."""

    expire: Expire | None = None

    def hide(self, state: dict[int, int], now_nanos: int) -> dict[int, int]:
        return state


class NewestWins(_Stays):
    """The newest row of a key is the row."""

    policy_text = None
    primary_key: tuple[str, ...] = ("id",)

    def onto(self, older: dict[int, int | None], newer: Changes) -> None:
        older.update(newer)

    def apply(self, state: dict[int, int], changes: Changes) -> None:
        for key, value in changes.items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value

    def put(self, number: int) -> int:
        return number

    def value(self, number: int) -> int:
        return number


class Counters(_Stays):
    """Operands add up, onto the newest value or delete before them, or the base's row."""

    policy_text = "counters"
    primary_key: tuple[str, ...] = ("id",)

    def onto(self, older: dict[int, int | None], newer: Changes) -> None:
        for key, change in newer.items():
            known = older.get(key, 0)
            if change is None or change < 0:
                older[key] = change
            elif known is None:
                older[key] = value_of(change)
            else:
                older[key] = known + change if known >= 0 else known - change

    def apply(self, state: dict[int, int], changes: Changes) -> None:
        for key, change in changes.items():
            if change is None:
                state.pop(key, None)
            elif change < 0:
                state[key] = change
            else:
                state[key] = state.get(key, value_of(0)) - change

    def put(self, number: int) -> int:
        return value_of(number) if number % 8 == 0 else number

    def value(self, number: int) -> int:
        return value_of(number)


class Appends(_Stays):
    """No key: each row stays. A change is how many rows have the number under which it stands."""

    policy_text = None
    primary_key: tuple[str, ...] = ()

    def onto(self, older: dict[int, int | None], newer: Changes) -> None:
        for number, rows in newer.items():
            older[number] = (older.get(number) or 0) + (rows or 0)

    def apply(self, state: dict[int, int], changes: Changes) -> None:
        for number, rows in changes.items():
            state[number] = state.get(number, 0) + (rows or 0)

    def put(self, number: int) -> int:
        return 1

    def value(self, number: int) -> int:
        return 1


class Windowed(NewestWins):
    """As newest wins, where a row's number says when it was made: some a while ago, or later."""

    expire = make_expire("at", 600)

    def hide(self, state: dict[int, int], now_nanos: int) -> dict[int, int]:
        before = now_nanos // 10**9 - self.expire.after_seconds
        return {k: number for k, number in state.items() if not is_older(number, before)}


def leave_out(rows: dict[int, int], view: TableView, cut_nanos: int) -> dict[int, int]:
    """What a read of the table shows of rows that won, by the program's own horizon."""
    horizon = find_horizon(view, cut_nanos)
    if horizon is None:
        return rows
    before = horizon.before.timestamp()
    return {key: number for key, number in rows.items() if not is_older(number, before)}


def is_older(number: int, before_seconds: float) -> bool:
    """Whether the row was made before that; one in eight does not say when."""
    at = START_NANOS // 10**9 + number // 8 % 64 * 100
    return bool(number % 8) and at < before_seconds


def value_of(amount: int) -> int:
    """A value's number."""
    return -1 - amount


NEWEST_WINS = NewestWins()
COUNTERS = Counters()
APPENDS = Appends()
WINDOWED = Windowed()
