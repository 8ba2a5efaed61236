"""What a filter says about each column: the values that a matching row can have there. Pure.

A filter becomes a list of cases, one of which holds for every row that it matches. Everything errs
towards too many values: where two readers may compare differently, the wider answer is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa

from memwal.sharding.encoding import unwrap_type
from memwal.sharding.predicate import And, Anything, Comparison, In, IsNull, Not, Op, Or, Predicate
from memwal.sharding.values import Value, as_comparable, is_bytes, is_number, is_text

CASES_MAX = 256
_EXACT_IN_DOUBLE = 2**53
_DIGITS_IN_DOUBLE = 15
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)?")
_TIME_WITH_ZONE = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """An end of a range; `closed` includes the value."""

    value: Value
    closed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """A set of values: all that pass every part.

    NaN, which compares with nothing, is in it unless `values` are listed: readers differ over it.
    """

    values: frozenset[Value] | None = None
    low: Bound | None = None
    high: Bound | None = None
    excluded: frozenset[Value] = frozenset()
    null: bool = True

    def contains(self, value: Value | None) -> bool:
        """Whether the value, None for NULL, is in the set."""
        if value is None:
            return self.null
        if self.values is not None and value not in self.values:
            return False
        return self._in_range(value) and value not in self.excluded

    def _in_range(self, value: Value) -> bool:
        low, high = self.low, self.high
        if low and (value < low.value or (value == low.value and not low.closed)):  # type: ignore[operator]
            return False
        return not (high and (value > high.value or (value == high.value and not high.closed)))  # type: ignore[operator]

    def meet(self, other: Domain) -> Domain:
        """The intersection of both sets."""
        both = Domain(
            low=_tighten(self.low, other.low, above=True),
            high=_tighten(self.high, other.high, above=False),
            excluded=self.excluded | other.excluded,
            null=self.null and other.null,
        )
        listed = [d.values for d in (self, other) if d.values is not None]
        if not listed:
            return both
        values = frozenset(v for v in frozenset.intersection(*listed) if both.contains(v))
        return Domain(values=values, null=both.null)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is in the set. False says nothing."""
        return not self.null and self.values == frozenset()


ANY = Domain()
NOT_NULL = Domain(null=False)
ONLY_NULL = Domain(values=frozenset())
NOTHING = Domain(values=frozenset(), null=False)

Case = Mapping[str, Domain]
Cases = tuple[Case, ...]
_ALWAYS: Cases = ({},)
_NEVER: Cases = ()


def cases_of(predicate: Predicate, types: Mapping[str, pa.DataType]) -> Cases:
    """Cases of which one holds for every row that the predicate is TRUE for.

    `types` are those of the columns that matter; conditions on others are left out. No case at all
    means that no row matches.
    """
    plain_types = {name: unwrap_type(kind) for name, kind in types.items()}
    return _split(predicate, plain_types, negated=False, in_or=False)


def _split(
    predicate: Predicate, types: Mapping[str, pa.DataType], *, negated: bool, in_or: bool
) -> Cases:
    match predicate:
        case Not(part=part):
            return _split(part, types, negated=not negated, in_or=in_or)
        case And(parts=parts) | Or(parts=parts):
            # De Morgan holds for three truth values, too.
            conjunction = isinstance(predicate, And) is not negated
            in_or = in_or or not conjunction
            found = [_split(part, types, negated=negated, in_or=in_or) for part in parts]
            return _conjoin(found) if conjunction else _disjoin(found)
        case Anything():
            return _ALWAYS
    kind = types.get(predicate.column)
    if kind is None:
        return _ALWAYS
    domain = _domain_of(predicate, kind, negated=negated)
    if in_or and domain.values is None and not isinstance(predicate, IsNull):
        # DataFusion, and Lance with it, makes TRUE of `a NOT IN (1) OR a NOT IN (2)`, which by SQL
        # is NULL where a is.
        domain = replace(domain, null=True)
    return _NEVER if domain.is_empty else ({predicate.column: domain},)


def _conjoin(parts: list[Cases]) -> Cases:
    found = _ALWAYS
    for part in parts:
        if len(found) * len(part) > CASES_MAX:
            # Leaving a condition out only widens the answer.
            found = min(found, part, key=len)
            continue
        found = tuple(
            case for left, right in product(found, part) if (case := _meet(left, right)) is not None
        )
    return found


def _meet(left: Case, right: Case) -> Case | None:
    merged = {**left, **right}
    for column in left.keys() & right.keys():
        merged[column] = left[column].meet(right[column])
        if merged[column].is_empty:
            return None
    return merged


def _disjoin(parts: list[Cases]) -> Cases:
    lists: dict[str, Domain] = {}
    others: list[Case] = []
    for case in (case for part in parts for case in part):
        listed = _find_list(case)
        if listed is None:
            others.append(case)
            continue
        column, domain = listed
        before = lists.get(column, NOTHING)
        lists[column] = Domain(
            values=(before.values or frozenset()) | (domain.values or frozenset()),
            null=before.null or domain.null,
        )
    found = (*({column: domain} for column, domain in lists.items()), *others)
    return found if len(found) <= CASES_MAX else _ALWAYS


def _find_list(case: Case) -> tuple[str, Domain] | None:
    """The column and its values, of a case that lists the values of one column."""
    if len(case) != 1:
        return None
    ((column, domain),) = case.items()
    return (column, domain) if domain.values is not None else None


def _domain_of(leaf: Comparison | In | IsNull, kind: pa.DataType, *, negated: bool) -> Domain:
    """The values for which the leaf, or its opposite, is TRUE.

    A comparison that is not understood still is TRUE for no NULL.
    """
    if isinstance(leaf, IsNull):
        return NOT_NULL if negated else ONLY_NULL
    if isinstance(leaf, In):
        return _list_domain(leaf.values, kind, negated=negated)
    op = leaf.op.opposite if negated else leaf.op
    if op in (Op.EQ, Op.NE):
        return _list_domain((leaf.value,), kind, negated=op is Op.NE)
    if not leaf.value.is_valid:
        return NOTHING
    literal = literal_of(leaf.value, kind)
    if literal is None:
        return NOT_NULL
    bound = Bound(value=literal.value, closed=not literal.exact or op in (Op.LE, Op.GE))
    if op in (Op.GT, Op.GE):
        return Domain(low=bound, null=False)
    return Domain(high=bound, null=False)


def _list_domain(values: tuple[pa.Scalar, ...], kind: pa.DataType, *, negated: bool) -> Domain:
    """`IN` or `NOT IN`. A NULL in the list matches nothing, and makes NOT IN match nothing."""
    given = [value for value in values if value.is_valid]
    if negated and len(given) < len(values):
        return NOTHING
    literals = [literal_of(value, kind) for value in given]
    known = [literal for literal in literals if literal is not None]
    if len(known) < len(literals):
        return NOT_NULL
    if not negated:
        return Domain(values=frozenset(literal.value for literal in known), null=False)
    if not all(literal.exact for literal in known):
        return NOT_NULL
    return Domain(excluded=frozenset(literal.value for literal in known), null=False)


def _tighten(left: Bound | None, right: Bound | None, *, above: bool) -> Bound | None:
    if left is None or right is None:
        return left or right
    if left.value == right.value:
        return left if not left.closed else right
    return left if (left.value > right.value) is above else right  # type: ignore[operator]


# ---- literals


@dataclass(frozen=True, kw_only=True, slots=True)
class Literal:
    """A constant as a value of the column; `exact` unless readers may round it differently."""

    value: Value
    exact: bool = True


def literal_of(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    """A constant that is compared with a column of type `kind`; None when not understood.

    None wherever the two types are brought together in more than one way: text and a number, a
    time with a zone and one without, a fraction and a whole number.
    """
    if is_text(kind):
        return Literal(value=value.as_py()) if is_text(value.type) else None
    if is_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return Literal(value=value.as_py()) if is_bytes(value.type) else None
    if pa.types.is_boolean(kind):
        return Literal(value=value.as_py()) if pa.types.is_boolean(value.type) else None
    for matches, convert in _CONVERSIONS:
        if matches(kind):
            return convert(value, kind)
    return None


def _as_integer(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    number = _read_number(value)
    if number is None or number != int(number):
        return None
    if isinstance(number, float) and abs(number) >= _EXACT_IN_DOUBLE:
        return None
    return Literal(value=int(number))


def _as_float(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    number = _read_number(value)
    if number is None:
        return None
    with np.errstate(over="ignore"):
        rounded = float(np.dtype(kind.to_pandas_dtype()).type(float(number)))
    # Not exact: -0.0 and 0.0 are equal to some readers, and a literal is rounded or not.
    return Literal(value=rounded, exact=False)


def _as_decimal(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    number = _read_number(value)
    if number is None or (isinstance(number, float) and kind.precision > _DIGITS_IN_DOUBLE):
        return None
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    try:
        return Literal(value=pa.scalar(exact, kind).as_py())
    except pa.ArrowException:
        return None


def _read_number(value: pa.Scalar) -> int | float | Decimal | None:
    number: int | float | Decimal | None = value.as_py() if is_number(value.type) else None
    return number if number is not None and math.isfinite(number) else None


def _as_date(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    if is_text(value.type):
        text = value.as_py()
        return _cast(pa.scalar(text), pa.date32(), kind) if _DATE.fullmatch(text) else None
    if pa.types.is_date(value.type):
        return _cast(value, kind)
    if pa.types.is_timestamp(value.type) and value.type.tz is None:
        return _cast(value, kind)
    return None


def _as_timestamp(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    zoned = kind.tz is not None
    if is_text(value.type):
        text = value.as_py()
        if not (_TIME_WITH_ZONE if zoned else _TIME).fullmatch(text):
            return None
        return _cast(value, pa.timestamp("ns", "UTC" if zoned else None), kind)
    if pa.types.is_date(value.type):
        return None if zoned else _cast(value, kind)
    if pa.types.is_timestamp(value.type) and (value.type.tz is not None) is zoned:
        return _cast(value, kind)
    return None


def _as_clock(value: pa.Scalar, kind: pa.DataType) -> Literal | None:
    return _cast(value, kind) if pa.types.is_time(value.type) else None


def _cast(value: pa.Scalar, *kinds: pa.DataType) -> Literal | None:
    """Through types one after the other; None unless nothing is lost."""
    try:
        for kind in kinds:
            before = pa.array([value], value.type)
            after = before.cast(kind)
            # A cast from a time to a day leaves the time out without a word.
            if not is_text(before.type) and not after.cast(before.type).equals(before):
                return None
            value = after[0]
    except (pa.ArrowException, OverflowError):
        return None
    found = as_comparable(value)
    return None if found is None else Literal(value=found)


Conversion = Callable[[pa.Scalar, pa.DataType], Literal | None]
_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Conversion], ...] = (
    (pa.types.is_integer, _as_integer),
    (pa.types.is_floating, _as_float),
    (pa.types.is_decimal, _as_decimal),
    (pa.types.is_date, _as_date),
    (pa.types.is_timestamp, _as_timestamp),
    (pa.types.is_time, _as_clock),
)
