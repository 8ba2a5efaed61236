"""The operators of row-merge policies: several values of a column into one. Pure (Arrow in, out).

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

from dataclasses import dataclass
from decimal import localcontext
from importlib.metadata import entry_points

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Unsupported
from memwal.rows.keyset import Mask, Places
from memwal.rows.pairwise import Combine, Operator, OperatorError, Pairwise, find_newest, skip_older

GROUP = "memwal.operators"

_DECIMAL_DIGITS = 75
_EXACT_DIGITS = 100  # of sums of up to 10**24 decimals
_HALF_BITS = 32
_HALF = 2**32 - 1


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
            "MW-P07", f"operator {name!r} ({point.value}) can't be loaded: {error}"
        ) from None
    if not callable(combine):
        raise Unsupported("MW-P07", f"operator {name!r} ({point.value}) can't be called")
    found: Combine = combine
    return found
