"""Row-merge policies, the slow and obvious way: one key, one row at a time, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

Row = dict[str, Any]


def _skip_null(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def combined(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return combine(left, right)

    return combined


def _union(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for element in [*left, *right]:
        if element not in found:
            found.append(element)
    return found


def append(cap: int | None) -> Callable[[Any, Any], Any]:
    return _capped(_skip_null(lambda left, right: left + right), cap)


def _capped(combine: Callable[[Any, Any], Any], cap: int | None) -> Callable[[Any, Any], Any]:
    def combined(left: Any, right: Any) -> Any:
        found = combine(left, right)
        if found is None or cap is None:
            return found
        return found[max(0, len(found) - cap) :]

    return combined


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": _skip_null(lambda left, right: left + right),
    "min": _skip_null(min),
    "max": _skip_null(max),
    "bit_and": _skip_null(lambda left, right: left & right),
    "bit_or": _skip_null(lambda left, right: left | right),
    "list_append": append(None),
    # A NULL still makes it a fold of two, which keeps each element once.
    "set_union": lambda left, right: (
        None if left is None and right is None else _union(left or [], right or [])
    ),
    "coalesce": lambda left, right: left if right is None else right,
    "last": lambda left, right: right,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """One table's policy. `columns` are operators by column; times are plain numbers."""

    columns: Mapping[str, Callable[[Any, Any], Any]]
    key: str = "id"
    marker: str | None = None
    expiry: str | None = None

    def fold(self, base: Row | None, rows: Iterable[Row | None], now: Any) -> Row | None:
        """The key's row after all: `rows` oldest first, None for a tombstone."""
        state = None if base is None or self._over(base, now) else base
        for row in rows:
            if row is None:
                state = None
            elif self._is_operand(row):
                if not self._over(row, now):
                    state = self._value(row) if state is None else self._combined(state, row)
            else:
                state = None if self._over(row, now) else self._value(row)
        return state

    def table(
        self,
        base: Mapping[Any, Row],
        generations: Sequence[Sequence[tuple[Any, Row | None]]],
        now: Any,
    ) -> dict[Any, Row]:
        """All keys' rows: `generations` are lists of (key, row), oldest first."""
        chains: dict[Any, list[Row | None]] = {key: [] for key in base}
        for generation in generations:
            for key, row in generation:
                chains.setdefault(key, []).append(row)
        found = {key: self.fold(base.get(key), rows, now) for key, rows in chains.items()}
        return {key: row for key, row in found.items() if row is not None}

    def _is_operand(self, row: Row) -> bool:
        return self.marker is None or bool(row[self.marker])

    def _over(self, row: Row, now: Any) -> bool:
        return self.expiry is not None and row[self.expiry] is not None and row[self.expiry] <= now

    def _value(self, row: Row) -> Row:
        return row if self.marker is None else {**row, self.marker: False}

    def _combined(self, left: Row, right: Row) -> Row:
        row = {
            name: self.columns[name](left[name], right[name])
            if name in self.columns
            else right[name]
            for name in right
        }
        if self.expiry is not None:
            times = (left[self.expiry], right[self.expiry])
            row[self.expiry] = None if None in times else max(times)
        return self._value(row)


def folded(operator: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """Values oldest first."""
    return reduce(operator, values)
