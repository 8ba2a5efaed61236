"""What an operator of a row-merge policy is, and the kind that combines values pair by pair. Pure.

A fold may end early: where a value makes all older ones of its key irrelevant, they are neither
combined nor, if every column's fold has ended, read from the base. The result is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.rows.keyset import Mask, Places

Combine = Callable[..., pa.Array]


class OperatorError(Exception):
    """An operator failed on the values of one key. `group` is the key's number.

    `out_of_range`: its value does not fit its type; with later values it may. `column` is filled
    in by the caller, who knows it.
    """

    column = ""

    def __init__(self, group: int, cause: str, *, out_of_range: bool = False) -> None:
        super().__init__(cause)
        self.group = group
        self.out_of_range = out_of_range


class Operator(ABC):
    """Makes one value of each group of values. It may need the groups' keys: see `bind`."""

    needs_key = False

    @property
    def may_end(self) -> bool:
        """Whether `find_ends` is worth asking."""
        return False

    @abstractmethod
    def accepts(self, kind: pa.DataType) -> bool:
        """Whether a column of this type can have the operator."""

    @abstractmethod
    def reduce(self, values: pa.Array, starts: Places) -> pa.Array:
        """One value a group; a group is what lies between two starts, oldest first, never empty.

        Raises OperatorError.
        """

    def bind(self, keys: pa.RecordBatch) -> Operator:
        """The operator for groups with these keys, a row a group."""
        return self

    def find_ends(self, values: pa.Array, starts: Places) -> Places:
        """For each group the place of the oldest value that matters, whatever may come before it.

        -1 for a group to which an older value might add something.
        """
        return np.full(len(starts), -1, dtype=np.int64)


def find_newest(wanted: Mask, starts: Places) -> Places:
    """For each group the place of its newest value that is wanted; -1 without one."""
    return np.maximum.reduceat(np.where(wanted, np.arange(len(wanted)), -1), starts)


def skip_older(operator: Operator, values: pa.Array, starts: Places) -> tuple[pa.Array, Places]:
    """The values that matter, and where each group starts among them."""
    if not operator.may_end or not len(starts):
        return values, starts
    ends = operator.find_ends(values, starts)
    if not (ends > starts).any():
        return values, starts
    counts = np.diff(starts, append=len(values))
    kept = np.arange(len(values)) >= np.repeat(ends, counts)
    counts = np.add.reduceat(kept, starts, dtype=np.int64)
    return values.filter(pa.array(kept)), np.cumsum(counts) - counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairwise(Operator):
    """An operator on two arrays; neighbours are combined, in as many rounds as a tree is high.

    `combine` takes the pairs' keys first where it `needs_key`; so does `ends_fold`.
    """

    combine: Combine
    any_type: bool = False
    needs_key: bool = False
    ends_fold: Combine | None = None
    keys: pa.RecordBatch | None = None

    def accepts(self, kind: pa.DataType) -> bool:
        """Whether Arrow can do it, and gives the type back."""
        if self.any_type:
            return True
        try:
            found: pa.DataType = self.combine(pa.nulls(1, kind), pa.nulls(1, kind)).type
        except (pa.ArrowException, TypeError, ValueError):
            return False
        return bool(found == kind)

    def bind(self, keys: pa.RecordBatch) -> Pairwise:
        """See the base class."""
        return replace(self, keys=keys)

    @property
    def may_end(self) -> bool:
        """See the base class."""
        return self.ends_fold is not None

    def find_ends(self, values: pa.Array, starts: Places) -> Places:
        """Where `ends_fold` says so; an answer that is none ends nothing, and changes no result."""
        nothing = Operator.find_ends(self, values, starts)
        if self.ends_fold is None:
            return nothing
        counts = np.diff(starts, append=len(values))
        keys = self._take_keys(np.repeat(np.arange(len(starts)), counts))
        try:
            found = self.ends_fold(*keys, values)
            wanted = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        except Exception:  # a user's may raise anything
            return nothing
        if wanted.dtype != bool or len(wanted) != len(values):
            return nothing
        return find_newest(wanted, starts)

    def reduce(self, values: pa.Array, starts: Places) -> pa.Array:
        """See the base class."""
        values, starts = skip_older(self, values, starts)
        counts = np.diff(starts, append=len(values))
        while len(counts) and counts.max() > 1:
            groups = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(len(values)) - np.repeat(starts, counts)
            lefts = np.flatnonzero(within % 2 == 0)
            paired = lefts[within[lefts] + 1 < counts[groups[lefts]]]
            combined = self._combine(values, paired, groups)
            # A left without a partner stays; the others are taken from behind the values.
            source = lefts.copy()
            source[np.searchsorted(lefts, paired)] = len(values) + np.arange(len(paired))
            values = pa.concat_arrays([values, combined]).take(pa.array(source))
            counts = (counts + 1) // 2
            starts = np.cumsum(counts) - counts
        return values

    def _combine(self, values: pa.Array, lefts: Places, groups: Places) -> pa.Array:
        pairs = (
            *self._take_keys(groups[lefts]),
            values.take(pa.array(lefts)),
            values.take(pa.array(lefts + 1)),
        )
        found = self._try(*pairs)
        if isinstance(found, pa.Array):
            return found
        # The half in which it fails; the first pair when it fails for no half alone.
        start, end, error = 0, len(lefts), found
        while end - start > 1:
            half = (start + end) // 2
            for first, stop in ((start, half), (half, end)):
                found = self._try(*(part.slice(first, stop - first) for part in pairs))
                if isinstance(found, str):
                    start, end, error = first, stop, found
                    break
            else:
                break
        raise OperatorError(int(groups[lefts[start]]), error)

    def _take_keys(self, groups: Places) -> tuple[pa.RecordBatch, ...]:
        """The argument that goes before the values, if one does."""
        if not self.needs_key or self.keys is None:
            return ()
        return (self.keys.take(pa.array(groups)),)

    def _try(self, *pairs: Any) -> pa.Array | str:
        """The result, or what is wrong with it."""
        left = pairs[-1]
        try:
            found = self.combine(*pairs)
        except Exception as error:  # a user's operator may raise anything
            return f"{type(error).__name__}: {error}"
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if not isinstance(found, pa.Array) or found.type != left.type or len(found) != len(left):
            what = (
                f"{found.type} of length {len(found)}"
                if isinstance(found, pa.Array)
                else type(found)
            )
            return f"it returned {what} for {left.type} of length {len(left)}"
        return found
