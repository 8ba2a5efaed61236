"""The operators of row-merge policies: several values of a column into one. Pure (Arrow in, out).

A fold may end early: where a value makes all older ones of its key irrelevant, they are neither
combined nor, if every column's fold has ended, read from the base. The result is the same.

An operator is associative, and gets values oldest first. NULL adds nothing: NULL and NULL are NULL
(`last` alone takes a NULL as it is).

    sum          numbers and durations; one that does not fit its type is an error, whatever came
                 up on the way to it. Floats are added one by one from the oldest on, so that it
                 makes no difference where a merge cuts
    min, max     by Arrow's order; NaN loses against any number
    bit_and, bit_or  integers and booleans
    list_append  one list after the other; with a cap, the newest elements
    set_union    a list's elements once each, in the order in which they came first
    coalesce     the newest value that is not NULL
    last         the newest value, as for a column without an operator

A user's own is an entry point of the group `memwal.operators`: a callable that takes two Arrow
arrays of the column's type and one length, older values left, and returns a third of the same. It
is asked for many keys at once, and in any grouping of neighbours. It may have two attributes:

    needs_key   True: it is called with a RecordBatch of the key columns first, a row for each pair
    ends_fold   a function of an array of values (and keys first, if it needs them) that tells, as
                an array of booleans, which of them make all older values of their key irrelevant
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import localcontext
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Unsupported
from memwal.rows.keyset import Mask, Places

Combine = Callable[..., pa.Array]

GROUP = "memwal.operators"
_DECIMAL_DIGITS = 75
_EXACT_DIGITS = 100  # of sums of up to 10**24 decimals
_HALF_BITS = 32
_HALF = 2**32 - 1


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sum(Pairwise):
    """Addition. Floats, whose sums depend on the grouping, are added in order; others exactly."""

    def reduce(self, values: pa.Array, starts: Places) -> pa.Array:
        """See the base class."""
        kind = values.type
        if pa.types.is_decimal256(kind):
            return _sum_decimals(values, starts)
        if pa.types.is_decimal(kind):
            wide = values.cast(pa.decimal256(_DECIMAL_DIGITS, kind.scale))
            return _fit(Pairwise.reduce(self, wide, starts), kind)
        if not pa.types.is_floating(kind):
            return _sum_integers(values, starts)
        counts = np.diff(starts, append=len(values))
        groups = np.repeat(np.arange(len(starts)), counts)
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        distinct, first = np.unique(groups[valid], return_index=True)
        sums = np.zeros(len(starts), dtype=numbers.dtype)
        sums[distinct] = numbers[valid[first]]
        later = np.delete(valid, first)
        np.add.at(sums, groups[later], numbers[later])
        missing = np.ones(len(starts), dtype=bool)
        missing[distinct] = False
        return pa.array(sums, values.type, mask=missing)


def _sum_integers(values: pa.Array, starts: Places) -> pa.Array:
    """Sums of whole numbers and durations: the range is checked once, of what comes out.

    Halves of 32 bits are added by themselves, which no number of rows makes too large.
    """
    if not len(starts):
        return values
    kind = values.type
    whole = values.view(pa.int64()) if pa.types.is_duration(kind) else values
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    limits = np.iinfo(numbers.dtype)
    signed = numbers.dtype.kind == "i"
    wide = numbers.astype(np.int64 if signed else np.uint64)
    low = np.add.reduceat((wide & _HALF).astype(np.int64), starts)
    high = np.add.reduceat((wide >> _HALF_BITS).astype(np.int64), starts)
    high, low = high + (low >> _HALF_BITS), low & _HALF
    least, most = (divmod(int(limit), 2**32) for limit in (limits.min, limits.max))
    under = (high < least[0]) | ((high == least[0]) & (low < least[1]))
    over = (high > most[0]) | ((high == most[0]) & (low > most[1]))
    outside = np.flatnonzero(under | over)
    if len(outside):
        group = int(outside[0])
        total = (int(high[group]) << 32) + int(low[group])
        raise OperatorError(group, f"overflow: {total} is no {kind}", out_of_range=True)
    sums = (high.astype(wide.dtype) << wide.dtype.type(32)) | low.astype(wide.dtype)
    missing = ~np.logical_or.reduceat(values.is_valid().to_numpy(zero_copy_only=False), starts)
    found = pa.array(sums.astype(numbers.dtype), whole.type, mask=missing)
    return found.view(kind) if pa.types.is_duration(kind) else found


def _sum_decimals(values: pa.Array, starts: Places) -> pa.Array:
    """Sums of decimals for which Arrow has no wider type, one by one; as text, so exact too."""
    numbers = values.to_pylist()
    ends = np.append(starts[1:], len(numbers))
    sums: list[str | None] = []
    with localcontext(prec=_EXACT_DIGITS):
        for start, end in zip(starts, ends, strict=True):
            known = [number for number in numbers[start:end] if number is not None]
            sums.append(f"{sum(known):f}" if known else None)
    return _fit(pa.array(sums, pa.string()), values.type)


def _fit(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Sums of decimals in their own type."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        for group, value in enumerate(values):
            try:
                value.cast(kind)
            except pa.ArrowInvalid:
                cause = f"overflow: {value.as_py()} is no {kind}"
                raise OperatorError(group, cause, out_of_range=True) from None
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class Newest(Operator):
    """The newest value; or the newest that is not NULL."""

    skip_nulls: bool

    def accepts(self, kind: pa.DataType) -> bool:
        """Values are only chosen, so any type will do."""
        return True

    @property
    def may_end(self) -> bool:
        """It does with the value that is chosen."""
        return True

    def find_ends(self, values: pa.Array, starts: Places) -> Places:
        """See the base class."""
        wanted = np.ones(len(values), dtype=bool)
        if self.skip_nulls:
            wanted = values.is_valid().to_numpy(zero_copy_only=False)
        return find_newest(wanted, starts)

    def reduce(self, values: pa.Array, starts: Places) -> pa.Array:
        """See the base class."""
        if not len(starts):
            return values
        newest = self.find_ends(values, starts)
        return values.take(pa.array(np.where(newest >= 0, newest, starts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists(Operator):
    """Lists of several rows as one. A row alone stays as it is."""

    distinct: bool = False
    cap: int | None = None

    def accepts(self, kind: pa.DataType) -> bool:
        """Lists; their elements must be comparable where each is kept once."""
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        if not self.distinct:
            return True
        try:
            _number_values(pa.nulls(1, kind.value_type))
        except (pa.ArrowException, TypeError):
            return False
        return True

    @property
    def may_end(self) -> bool:
        """It does where a cap is reached."""
        return self.cap is not None

    def find_ends(self, values: pa.Array, starts: Places) -> Places:
        """See the base class. Two values at least, since one alone is not cut."""
        sizes = values.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        stops = np.append(starts[1:], len(values))
        groups = np.repeat(np.arange(len(starts)), stops - starts)
        before = np.append(0, np.cumsum(sizes))
        from_here = before[stops][groups] - before[:-1]
        several = np.arange(len(values)) < stops[groups] - 1
        full = from_here >= (np.inf if self.cap is None else self.cap)
        return find_newest(several & full, starts)

    def reduce(self, values: pa.Array, starts: Places) -> pa.Array:
        """See the base class."""
        if not len(starts):
            return values
        values, starts = skip_older(self, values, starts)
        counts = np.diff(starts, append=len(values))
        sizes = values.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        groups = np.repeat(np.arange(len(starts)), counts)
        owner = np.repeat(groups, sizes)
        elements = values.flatten()
        kept = self._keep(elements, owner, counts > 1, len(starts))
        sizes = np.bincount(owner[kept], minlength=len(starts))
        nulls = np.logical_and.reduceat(values.is_null().to_numpy(zero_copy_only=False), starts)
        large = pa.types.is_large_list(values.type)
        made = pa.LargeListArray if large else pa.ListArray
        return made.from_arrays(
            pa.array(np.append(0, np.cumsum(sizes)), pa.int64() if large else pa.int32()),
            elements.take(pa.array(kept)),
            type=values.type,
            mask=pa.array(nulls),
        )

    def _keep(self, elements: pa.Array, owner: Places, several: Mask, groups: int) -> Places:
        places = np.arange(len(elements))
        if self.distinct and len(elements):
            codes, count = _number_values(elements)
            _, first = np.unique(owner * count + codes, return_index=True)
            once = np.zeros(len(elements), dtype=bool)
            once[first] = True
            places = places[once | ~several[owner]]
        if self.cap is not None:
            ends = np.cumsum(np.bincount(owner, minlength=groups))
            newest = ends[owner] - places <= self.cap
            places = places[newest | ~several[owner]]
        return places


def _number_values(values: pa.Array) -> tuple[Places, int]:
    """A number for each distinct value, NULL among them, and how many there are."""
    found = pc.dictionary_encode(values, null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), max(1, len(found.dictionary))


def _add(left: pa.Array, right: pa.Array) -> pa.Array:
    kind = left.type
    if pa.types.is_decimal(kind):
        # A decimal's sum has a digit more than its type; what does not fit fails at the way back.
        wide = pa.decimal256(min(75, kind.precision), kind.scale)
        left, right = left.cast(wide), right.cast(wide)
    added = pc.add_checked(left, right)
    return pc.coalesce(added, left.cast(added.type), right.cast(added.type)).cast(kind)


def _choose(kernel: Combine) -> Combine:
    """Least or greatest; Arrow has no kernel for times with a zone."""

    def combine(left: pa.Array, right: pa.Array) -> pa.Array:
        kind = left.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            plain = pa.timestamp(kind.unit)
            return kernel(left.view(plain), right.view(plain)).view(kind)
        return kernel(left, right)

    return combine


def _combine_bits(on_booleans: Combine, on_integers: Combine) -> Combine:
    def combine(left: pa.Array, right: pa.Array) -> pa.Array:
        kernel = on_booleans if pa.types.is_boolean(left.type) else on_integers
        return pc.coalesce(kernel(left, right), left, right)

    return combine


_BUILT_IN: dict[str, Operator] = {
    "sum": Sum(combine=_add),
    "min": Pairwise(combine=_choose(pc.min_element_wise)),
    "max": Pairwise(combine=_choose(pc.max_element_wise)),
    "bit_and": Pairwise(combine=_combine_bits(pc.and_, pc.bit_wise_and)),
    "bit_or": Pairwise(combine=_combine_bits(pc.or_, pc.bit_wise_or)),
    "list_append": Lists(),
    "set_union": Lists(distinct=True),
    "coalesce": Newest(skip_nulls=True),
    "last": Newest(skip_nulls=False),
}
BUILT_IN = frozenset(_BUILT_IN)


def find_operator(name: str, cap: int | None = None) -> Operator:
    """A built-in operator, or a user's own. Raises Unsupported for one that is not installed."""
    if cap is not None:
        return Lists(cap=cap)
    found = _BUILT_IN.get(name)
    if found is not None:
        return found
    combine = _load(name)
    return Pairwise(
        combine=combine,
        any_type=True,
        needs_key=bool(getattr(combine, "needs_key", False)),
        ends_fold=getattr(combine, "ends_fold", None),
    )


def _load(name: str) -> Combine:
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if len(points) != 1:
        how = "no installed package offers" if not points else f"{', '.join(sorted(points))} offer"
        raise Unsupported(
            "MW-P06",
            f"operator {name!r} is not built in, and {how} it as an entry point of {GROUP}",
        )
    (point,) = points.values()
    try:
        combine = point.load()
    except Exception as error:  # whatever a user's module raises
        raise Unsupported(
            "MW-P06", f"operator {name!r} ({point.value}) can't be loaded: {error}"
        ) from None
    if not callable(combine):
        raise Unsupported("MW-P06", f"operator {name!r} ({point.value}) can't be called")
    found: Combine = combine
    return found
