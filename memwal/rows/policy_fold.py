"""Folding a shard's rows by its table's policy (`memwal.rows.policy` has the rules). Pure (Arrow).

First the generations' rows alone: which of them count, and for which keys the base's row is asked
for. Then, with those, the rows that come out. Time is one instant, given from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import DoesNotFit, Refused, Unsupported
from memwal.rows.fold import ANCHORS_MAX, check_keys, find_tombstones
from memwal.rows.keyset import Mask, Places
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_operators import Operator, OperatorError, find_operator

_ROWS_NAMED_MAX = 10
_UNIT_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_BASE = "the base"


def check_policy(policy: RowPolicy, schema: pa.Schema, primary_key: Sequence[str]) -> None:
    """Raise Refused for a policy that does not fit the table; Unsupported for a type, operator."""
    for name in sorted(policy.named):
        if name not in schema.names:
            raise Refused(
                "MW-P02", f"the row-merge policy names {name!r}, which is no column of the table"
            )
        if name in primary_key:
            raise Refused("MW-P02", f"the row-merge policy names {name!r}, a column of the key")
    if not primary_key:
        raise Unsupported("MW-K02", "a table without a primary key can't have a row-merge policy")
    special = {name for name in (policy.marker, policy.expiry) if name is not None}
    for column in policy.columns:
        kind = schema.field(column.column).type
        if column.column in special:
            raise Refused(
                "MW-P02", f"column {column.column!r} is the marker or expiry: it has no operator"
            )
        if not find_operator(column.operator, column.cap).accepts(kind):
            raise Refused(
                "MW-P02", f"operator {column.operator!r} can't work on {column.column!r} ({kind})"
            )
    if policy.marker is not None and not pa.types.is_boolean(schema.field(policy.marker).type):
        raise Refused("MW-P02", f"the marker column {policy.marker!r} is not of type bool")
    if policy.expiry is not None and not pa.types.is_timestamp(schema.field(policy.expiry).type):
        raise Refused("MW-P02", f"the expiry column {policy.expiry!r} is not a timestamp")
    for field in schema:
        if isinstance(field.type, pa.BaseExtensionType):
            raise Unsupported(
                "MW-P04",
                f"column {field.name!r} is of type {field.type}, which a table with a row-merge "
                "policy can't have",
            )


def find_expired(values: pa.ChunkedArray, now_nanos: int) -> Mask:
    """Which expiry times have come; never for NULL."""
    unit = _UNIT_NANOS[values.type.unit]
    times = values.cast(pa.timestamp(values.type.unit)).cast(pa.int64())
    found: Mask = pc.fill_null(pc.less_equal(times, now_nanos // unit), False).to_numpy()
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """All rows of one source in the order of their writes; `_tombstone` may be missing."""

    name: str
    table: pa.Table


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """What became of the keys, in the base's columns.

    `rows` are new, `unchanged` rows of the base that nothing was added to (all of it expired), and
    `deleted` the key columns of keys that are gone.
    """

    rows: pa.Table
    unchanged: pa.Table
    deleted: pa.Table


class PolicyFold:
    """Layers of one shard, oldest first, folded at one instant."""

    def __init__(
        self,
        policy: RowPolicy,
        keys: Sequence[str],
        schema: pa.Schema,
        layers: Sequence[Layer],
        *,
        now_nanos: int,
    ) -> None:
        """`schema` is of the columns that come out. Raises Refused for a NULL in a key."""
        self._policy = policy
        self._keys = list(keys)
        self._schema = schema
        self._now_nanos = now_nanos
        self._names = [layer.name for layer in layers]
        self._sizes = np.array([len(layer.table) for layer in layers], dtype=np.int64)
        self._stack = pa.concat_tables([self._loosen(layer.table) for layer in layers])
        check_keys(self._stack.select(self._keys), self._keys)
        dead = np.concatenate([find_tombstones(layer.table) for layer in layers])
        operand = self._find_operands(self._stack)
        over = self._find_expired(self._stack)
        self._dropped = operand & over & ~dead
        self._tombstone = dead | (over & ~operand)
        self._barrier = self._tombstone | ~operand
        self._groups = _Groups(self._stack.select(self._keys))
        self._last_barrier = self._find_barriers()

    @property
    def keys(self) -> pa.Table:
        """Every key once."""
        return self._take_keys(self._groups.last)

    @cached_property
    def base_keys(self) -> pa.Table:
        """Keys whose outcome needs the base's row: no barrier hides it, and no column's fold ended.

        A result lives for as long as its longest part, so with expiry the base's row is one.
        """
        open_ = self._last_barrier < 0
        if self._policy.expiry is None:
            open_ &= ~self._find_ended()
        return self._take_keys(self._groups.last[open_])

    @property
    def anchors(self) -> pa.Table:
        """Keys (a sample) of the first layer that each fold of a prefix of the layers writes too.

        Those without a tombstone, and without a time by which they may be gone for somebody else.
        """
        first = int(self._sizes[0])
        unsure = self._tombstone | self._expires()
        there = np.zeros(self._groups.count, dtype=bool)
        there[self._groups.codes[:first]] = True
        there[self._groups.codes[unsure]] = False
        return self._take_keys(self._groups.last[np.flatnonzero(there)[:ANCHORS_MAX]])

    def counts(self) -> tuple[int, int]:
        """How many keys get a row, and how many are deleted, as far as the layers alone tell."""
        live = self._find_live(np.flatnonzero(self._find_counted()))
        return int(live.sum()), int(((self._last_barrier >= 0) & ~live).sum())

    def finish(
        self, base: pa.Table | None = None, wanted: Callable[[pa.Table], Mask] | None = None
    ) -> Outcome:
        """The outcome, with the base's rows of `base_keys`. Raises Refused when an operator fails.

        `base` has the columns of `schema` and those that the policy needs. `wanted` is asked, once
        an operator has failed, which of some keys matter: the others may be left out of `rows`.
        """
        counted = np.flatnonzero(self._find_counted())
        deleted = self._find_deleted(counted)
        stack = self._stack.take(pa.array(counted))
        origins = counted
        if base is not None and len(base):
            base = self._loosen(base)
            over = self._find_expired(base)
            deleted = pa.concat_tables(
                [deleted, self._find_overdue(base.filter(pa.array(over)), counted)]
            )
            base = base.filter(pa.array(~over))
            stack = pa.concat_tables([base, stack])
            origins = np.concatenate([np.full(len(base), -1), counted])
        order, starts = _Groups(stack.select(self._keys)).ordered()
        sizes = np.diff(starts, append=len(order))
        self._check_once(stack, origins, order, starts)
        untouched = (sizes == 1) & (origins[order[starts]] < 0)
        unchanged = stack.take(pa.array(order[starts[untouched]]))
        kept = ~untouched
        while True:
            order, sizes = order[np.repeat(kept, sizes)], sizes[kept]
            starts = np.cumsum(sizes) - sizes
            try:
                rows = self._combine(stack, order, starts)
                break
            except OperatorError as error:
                keys = stack.select(self._keys).take(pa.array(order[starts]))
                kept = np.ones(len(keys), dtype=bool) if wanted is None else wanted(keys)
                if kept[error.group]:
                    rows_of_key = order[starts[error.group] :][: sizes[error.group]]
                    raise self._refuse(error, stack, origins, rows_of_key) from None
                wanted = None
        return Outcome(rows=rows, unchanged=self._select(unchanged), deleted=deleted)

    def _check_once(self, stack: pa.Table, origins: Places, order: Places, starts: Places) -> None:
        """Refuse a base that holds a key twice: which of its rows is the value is not known."""
        second = np.ones(len(order), dtype=bool)
        second[starts] = False
        twice = order[second & (origins[order] < 0)]
        if len(twice):
            (key,) = stack.select(self._keys).take(pa.array(twice[:1])).to_pylist()
            raise Refused("MW-P11", f"the base table holds the key {key} more than once")

    # -- which rows count

    def _find_operands(self, table: pa.Table) -> Mask:
        if self._policy.marker is None:
            return np.ones(len(table), dtype=bool)
        found: Mask = pc.fill_null(table[self._policy.marker], False).to_numpy()
        return found

    def _find_expired(self, table: pa.Table) -> Mask:
        if self._policy.expiry is None:
            return np.zeros(len(table), dtype=bool)
        return find_expired(table[self._policy.expiry], self._now_nanos)

    def _expires(self) -> Mask:
        if self._policy.expiry is None:
            return np.zeros(len(self._stack), dtype=bool)
        found: Mask = self._stack[self._policy.expiry].is_valid().to_numpy()
        return found

    def _find_barriers(self) -> Places:
        """For each key the place of its newest value or tombstone; -1 without one."""
        last = np.full(self._groups.count, -1, dtype=np.int64)
        places = np.flatnonzero(self._barrier)
        last[self._groups.codes[places]] = places  # ascending, so that the highest stays
        return last

    def _find_counted(self) -> Mask:
        """Rows that are part of an outcome: the barrier if it is a value, and operands above it."""
        places = np.arange(len(self._stack))
        above: Mask = places >= self._last_barrier[self._groups.codes]
        counted: Mask = above & ~self._tombstone & ~self._dropped
        return counted

    def _find_ended(self) -> Mask:
        """Keys of which every column's fold ended: to what counts, nothing older can add."""
        ended = np.zeros(self._groups.count, dtype=bool)
        counted = np.flatnonzero(self._find_counted())
        codes = self._groups.codes[counted]
        order = counted[np.argsort(codes, kind="stable")]
        sizes = np.bincount(codes, minlength=self._groups.count)
        there = np.flatnonzero(sizes)
        if not len(there):
            return ended
        starts = np.cumsum(sizes[there]) - sizes[there]
        found = np.ones(len(there), dtype=bool)
        keys = self._stack.select(self._keys).take(pa.array(order[starts]))
        operators = self._find_operators(keys)
        if not all(operator.may_end for operator in operators.values()):
            return ended
        for name, operator in operators.items():
            found &= operator.find_ends(_take(self._stack[name], order), starts) >= 0
        ended[there] = found
        return ended

    def _find_deleted(self, counted: Places) -> pa.Table:
        gone = (self._last_barrier >= 0) & ~self._find_live(counted)
        return self._take_keys(self._groups.last[gone])

    def _find_live(self, counted: Places) -> Mask:
        live = np.zeros(self._groups.count, dtype=bool)
        live[self._groups.codes[counted]] = True
        return live

    def _find_overdue(self, base: pa.Table, counted: Places) -> pa.Table:
        """Keys whose row in the base has expired and that no counted row replaces."""
        mine = base.select(self._keys)
        both = pa.concat_tables([self._take_keys(counted), mine])
        codes = _Groups(both).codes
        return mine.filter(pa.array(~np.isin(codes[len(counted) :], codes[: len(counted)])))

    def _take_keys(self, places: Places) -> pa.Table:
        return self._stack.select(self._keys).take(pa.array(places))

    # -- what comes out

    def _combine(self, stack: pa.Table, order: Places, starts: Places) -> pa.Table:
        if not len(starts):
            return self._schema.empty_table()
        newest = np.append(starts[1:], len(order)) - 1
        operators = self._find_operators(stack.select(self._keys).take(pa.array(order[starts])))
        arrays = []
        for field in self._schema:
            if field.name == self._policy.marker:
                arrays.append(pa.array(np.zeros(len(starts), dtype=bool)))
                continue
            operator = operators.get(field.name)
            column = stack[field.name]
            if field.name == self._policy.expiry:
                arrays.append(_find_latest(_take(column, order), starts))
            elif operator is None:
                arrays.append(_take(column, order[newest]))
            else:
                try:
                    arrays.append(operator.reduce(_take(column, order), starts))
                except OperatorError as error:
                    error.column = field.name
                    raise
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _find_operators(self, keys: pa.Table) -> dict[str, Operator]:
        """The operator of each column that comes out, for groups with these keys."""
        found = {}
        for column in self._policy.columns:
            if column.column in self._schema.names:
                operator = find_operator(column.operator, column.cap)
                if operator.needs_key:
                    operator = operator.bind(keys.combine_chunks().to_batches()[0])
                found[column.column] = operator
        return found

    def _refuse(
        self, error: OperatorError, stack: pa.Table, origins: Places, rows: Places
    ) -> Refused:
        key = stack.select(self._keys).take(pa.array(rows[:1]))
        (operator,) = (c.operator for c in self._policy.columns if c.column == error.column)
        named = [self._name_row(int(origins[row])) for row in rows]
        more = len(named) - _ROWS_NAMED_MAX
        text = ", ".join(named[:_ROWS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        told = (
            f"operator {operator!r} failed on column {error.column!r} of key "
            f"{key.to_pylist()[0]}: {error} (rows, oldest first: {text})"
        )
        return DoesNotFit("MW-P12", told) if error.out_of_range else Refused("MW-P13", told)

    def _name_row(self, place: int) -> str:
        if place < 0:
            return _BASE
        ends = np.cumsum(self._sizes)
        layer = int(np.searchsorted(ends, place, side="right"))
        return f"{self._names[layer]} row {place - int(ends[layer] - self._sizes[layer])}"

    def _select(self, table: pa.Table) -> pa.Table:
        columns = [table[name] for name in self._schema.names]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _loosen(self, table: pa.Table) -> pa.Table:
        """The columns that are needed, without constraints: deleted rows have no values."""
        special = [name for name in (self._policy.marker, self._policy.expiry) if name is not None]
        names = list(dict.fromkeys([*self._schema.names, *self._keys, *special]))
        fields = [pa.field(name, table.schema.field(name).type) for name in names]
        return table.select(names).cast(pa.schema(fields)).unify_dictionaries()


class _Groups:
    """Rows by key, each key a number."""

    def __init__(self, keys: pa.Table) -> None:
        codes = np.zeros(len(keys), dtype=np.int64)
        for place, column in enumerate(keys.columns):
            values = column.combine_chunks().dictionary_encode()
            codes = codes * max(1, len(values.dictionary)) + values.indices.to_numpy()
            if place:  # numbers without gaps, so that the next column's do not overflow
                codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
        self.codes: Places = codes
        self.count = int(codes.max()) + 1 if len(codes) else 0
        self.last: Places = np.zeros(self.count, dtype=np.int64)
        self.last[codes] = np.arange(len(codes))

    def ordered(self) -> tuple[Places, Places]:
        """The rows' places, key by key and in order within a key, and where each key starts."""
        order = np.argsort(self.codes, kind="stable")
        sizes = np.bincount(self.codes, minlength=self.count)
        return order, np.cumsum(sizes) - sizes


def _take(column: pa.ChunkedArray, places: Places) -> pa.Array:
    return column.take(pa.array(places)).combine_chunks()


def _find_latest(values: pa.Array, starts: Places) -> pa.Array:
    """The latest time of each group; NULL, which is never, is later than any."""
    times = values.cast(pa.int64()).fill_null(np.iinfo(np.int64).max).to_numpy()
    latest = np.maximum.reduceat(times, starts)
    never = np.logical_or.reduceat(values.is_null().to_numpy(zero_copy_only=False), starts)
    return pa.array(latest, pa.int64(), mask=never).cast(values.type)
