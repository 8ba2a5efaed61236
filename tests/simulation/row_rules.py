"""What several changes of one key come to: the newest wins, or a row-merge policy folds them.

Without a key there is nothing to come to: all rows stay.

A change is a number, or None for a delete. Under the policy of counters a number from 0 on is an
operand, which adds itself, and one below is a value (`value_of`); a state has values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Changes = Mapping[int, int | None]


class RowRules(Protocol):
    """One of the three."""

    policy_text: str | None
    primary_key: tuple[str, ...]

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


class NewestWins:
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


class Counters:
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


class Appends:
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


def value_of(amount: int) -> int:
    """A value's number."""
    return -1 - amount


NEWEST_WINS = NewestWins()
COUNTERS = Counters()
APPENDS = Appends()
