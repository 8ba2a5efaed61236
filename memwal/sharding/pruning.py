"""A filter and shards -> the shards that can match. Pure.

A shard is left out only on proof: its recorded shard values, and a filter that no row with such
values satisfies. pylance 14 records none, so no shard of its own is ever left out; shards of other
writers are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import pyarrow as pa

from memwal.errors import MemWalError, Unsupported
from memwal.model import ShardId, ShardManifest, ShardSpec
from memwal.sharding.domain import ANY, NOT_NULL, NOTHING, Bound, Case, Domain, cases_of
from memwal.sharding.encoding import unwrap_type
from memwal.sharding.evaluate import Rule, compute_field, rule_of
from memwal.sharding.expression import check_repeatable
from memwal.sharding.predicate import Predicate
from memwal.sharding.spec import (
    TIME_PARTS,
    Source,
    Sources,
    Spec,
    SpecField,
    Transform,
    field_sources,
    read_spec,
)
from memwal.sharding.values import (
    PER_SECOND,
    Value,
    array_of,
    as_comparable,
    decode_value,
    is_bytes,
    is_text,
)

RANGE_VALUES_MAX = 1_000
COMBINATIONS_MAX = 10_000
_SHOWN_MAX = 5
_DAY_SECONDS = 86_400
# Local time can jump back over midnight of New Year's Day; by how much never passes a day.
_ZONE_MARGIN_SECONDS = 2 * _DAY_SECONDS
_UTC = frozenset({None, "UTC", "Etc/UTC", "Z", "+00:00"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether rows of a shard can match, and why that is so."""

    shard_id: ShardId
    can_match: bool
    reason: str


def prune(
    predicate: Predicate,
    shards: Iterable[ShardManifest],
    specs: Iterable[ShardSpec],
    sources: Sources,
    *,
    key: Collection[str] | None = None,
) -> tuple[Verdict, ...]:
    """Judge, for each shard in its turn, whether it can hold rows that the predicate is TRUE for.

    `key` names the columns of the primary key, for a read that merges by it: shard fields over
    other columns are not used then. A row whose other column changed, or a delete, which has only
    its key, may have moved on to a shard that such a field would leave out, and an older version
    of it would come back.
    """
    filters: dict[int, ShardFilter | str] = {}
    for stored in specs:
        if stored.spec_id in filters:
            filters[stored.spec_id] = f"there are two shard specs {stored.spec_id}"
            continue
        try:
            filters[stored.spec_id] = shard_filter(predicate, read_spec(stored), sources, key=key)
        except Unsupported as error:
            filters[stored.spec_id] = error.text
    return tuple(_judge(shard, filters) for shard in shards)


def _judge(shard: ShardManifest, filters: Mapping[int, ShardFilter | str]) -> Verdict:
    def judge(reason: str, *, can_match: bool = True) -> Verdict:
        return Verdict(shard_id=shard.shard_id, can_match=can_match, reason=reason)

    if not shard.shard_spec_id:
        return judge("the shard was made by hand, no spec governs it")
    found = filters.get(shard.shard_spec_id, f"there is no shard spec {shard.shard_spec_id}")
    if isinstance(found, str):
        return judge(found)
    values = found.read_values(shard.shard_field_entries)
    why = found.refute(values)
    if why is not None:
        return judge(why, can_match=False)
    if not values:
        return judge("the shard records no shard values")
    shown = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    return judge(f"{shown} can match")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFilter:
    """A predicate in terms of a spec's shard values.

    `cases` hold, for each field that says something, the shard values that it leaves possible;
    `types` are the types of recorded values by field.
    """

    cases: tuple[Case, ...]
    types: Mapping[str, pa.DataType]

    def read_values(self, entries: Sequence[tuple[str, bytes]]) -> dict[str, Value | None]:
        """A manifest's `shard_field_entries`, as far as they can be trusted to mean one value."""
        values: dict[str, Value | None] = {}
        names = [name for name, _ in entries]
        for name, data in entries:
            kind = self.types.get(name)
            # No bytes can be an empty text as well as NULL.
            if kind is None or names.count(name) > 1 or not data:
                continue
            try:
                values[name] = as_comparable(decode_value(data, kind))
            except Unsupported:
                continue
        return values

    def refute(self, values: Mapping[str, Value | None]) -> str | None:
        """Why no row of a shard with these values can match, or None when one can.

        A field without a value in `values` leaves everything possible.
        """
        if not self.cases:
            return "the filter is true for no row"
        failed: dict[str, list[Domain]] = {}
        for case in self.cases:
            wrong = [f for f, d in case.items() if f in values and not d.contains(values[f])]
            if not wrong:
                return None
            failed.setdefault(wrong[0], []).append(case[wrong[0]])
        return "; ".join(
            f"{field} is {values[field]!r}, the filter needs {_describe(domains)}"
            for field, domains in failed.items()
        )


def shard_filter(
    predicate: Predicate,
    spec: Spec,
    sources: Sources,
    *,
    rule: Rule | None = None,
    key: Collection[str] | None = None,
) -> ShardFilter:
    """The predicate in terms of the spec's shard values; `key` as in `prune`."""
    rule = rule or rule_of(spec, sources)
    used = {
        field.field_id: [source for source in found if source is not None]
        for field in spec.fields
        if None not in (found := field_sources(field, sources))
        and (key is None or all(source and source.name in key for source in found))
    }
    names = [source.name for source in sources.values()]
    types = {
        source.name: source.type
        for found in used.values()
        for source in found
        if names.count(source.name) == 1
    }
    cases = []
    for case in cases_of(predicate, types):
        images = {
            field.field_id: image
            for field in spec.fields
            if (image := _map_case(field, case, used.get(field.field_id, ()), rule)) != ANY
        }
        cases.append(images)
    return ShardFilter(
        cases=tuple(cases),
        types={
            field.field_id: field.result_type or unwrap_type(used[field.field_id][0].type)
            for field in spec.fields
            if used.get(field.field_id)
        },
    )


# ---- what a case leaves possible for a shard field


def _map_case(field: SpecField, case: Case, sources: Sequence[Source], rule: Rule) -> Domain:
    """The shard values of all rows in the case, or more."""
    if not sources or not _compares_with_recorded(field, unwrap_type(sources[0].type)):
        return ANY
    domains = [case.get(source.name, ANY) for source in sources]
    try:
        rows = _combine(domains, sources)
        if rows is not None:
            return _map_rows(field, rows, sources, rule)
        return _map_range(field, domains[0], sources[0], rule)
    except (MemWalError, pa.ArrowException, OverflowError):
        return ANY


def _combine(
    domains: Sequence[Domain], sources: Sequence[Source]
) -> list[tuple[Value | None, ...]] | None:
    """Every combination of the columns' values, if they are few."""
    columns = [_list_few(d, unwrap_type(s.type)) for d, s in zip(domains, sources, strict=True)]
    listed = [column for column in columns if column is not None]
    if len(listed) < len(columns) or prod(map(len, listed)) > COMBINATIONS_MAX:
        return None
    return list(product(*listed))


def _list_few(domain: Domain, kind: pa.DataType) -> list[Value | None] | None:
    null: list[Value | None] = [None] if domain.null else []
    if domain.values is not None:
        return [*domain.values, *null]
    low, high = domain.low, domain.high
    countable = pa.types.is_integer(kind) or pa.types.is_date32(kind)
    if not (countable and low and high):
        return None
    first, last = int(low.value) + (not low.closed), int(high.value) - (not high.closed)
    if last - first >= RANGE_VALUES_MAX:
        return None
    return [*(n for n in range(first, last + 1) if n not in domain.excluded), *null]


def _map_rows(
    field: SpecField,
    rows: Sequence[tuple[Value | None, ...]],
    sources: Sequence[Source],
    rule: Rule,
) -> Domain:
    if field.transform is Transform.EXPRESSION:
        check_repeatable(field, tuple(source.type for source in sources))
    kinds = [unwrap_type(source.type) for source in sources]
    if not rows:
        return NOTHING
    columns = zip(*rows, strict=True)
    arrays = [array_of(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    found = compute_field(field, arrays, len(rows), rule)
    values = {as_comparable(value) for value in found}
    if any(isinstance(value, float) and value != value for value in values):
        return ANY
    return Domain(
        values=frozenset(value for value in values if value is not None), null=None in values
    )


def _map_range(field: SpecField, domain: Domain, source: Source, rule: Rule) -> Domain:
    """For transforms of one column that keep its order, or its NULLs."""
    kind = unwrap_type(source.type)
    if field.transform is Transform.IDENTITY:
        return domain
    if field.transform is Transform.TRUNCATE:
        low, high = (_map_end(field, bound, kind, rule) for bound in (domain.low, domain.high))
        return Domain(low=low, high=high, null=domain.null)
    if field.transform in TIME_PARTS:
        return _map_time_range(field, domain, kind, rule)
    if field.transform is Transform.BUCKET and not domain.null:
        return NOT_NULL
    return ANY


def _compares_with_recorded(field: SpecField, kind: pa.DataType) -> bool:
    """Whether values of the source column compare with shard values of the spec's result type.

    A column may have been promoted since the spec was made; a time may have another unit then.
    """
    said = field.result_type
    if field.transform not in (Transform.IDENTITY, Transform.TRUNCATE) or said in (None, kind):
        return True
    both = (said, kind)
    return (
        all(map(pa.types.is_integer, both)) or all(map(is_text, both)) or all(map(is_bytes, both))
    )


def _map_end(field: SpecField, bound: Bound | None, kind: pa.DataType, rule: Rule) -> Bound | None:
    """The shard value at an end of a range."""
    if bound is None:
        return None
    column = array_of([bound.value], kind)
    value = as_comparable(compute_field(field, [column], 1, rule)[0])
    if value is None or value != value:
        return None
    return Bound(value=value, closed=True)


def _map_time_range(field: SpecField, domain: Domain, kind: pa.DataType, rule: Rule) -> Domain:
    # A time that is out of range for the calendar has NULL for a year.
    utc = getattr(kind, "tz", None) in _UTC
    if field.transform is Transform.YEAR:
        margin = 0 if utc else _ZONE_MARGIN_SECONDS * PER_SECOND[kind.unit]
        low = _map_end(field, _move(domain.low, -margin), kind, rule)
        high = _map_end(field, _move(domain.high, margin), kind, rule)
        return Domain(low=low, high=high)
    if not utc or domain.low is None or domain.high is None:
        return ANY
    first, last = int(domain.low.value), int(domain.high.value)
    step = _step_of(field, kind)
    # A year has every month, a month every day, a day every hour.
    if (last - first) // step > 366:
        return ANY
    column = array_of([*range(first, last, step), last], kind)
    values = {as_comparable(value) for value in compute_field(field, [column], len(column), rule)}
    return Domain(values=frozenset(value for value in values if value is not None))


def _move(bound: Bound | None, by: int) -> Bound | None:
    return bound and Bound(value=int(bound.value) + by, closed=bound.closed)


def _step_of(field: SpecField, kind: pa.DataType) -> int:
    """A day or an hour, in the column's unit: no two samples have a whole month, … between them."""
    if pa.types.is_date32(kind):
        return 1
    seconds = 3_600 if field.transform is Transform.HOUR else _DAY_SECONDS
    return seconds * PER_SECOND[getattr(kind, "unit", "ms")]


# ---- words


def _describe(domains: Sequence[Domain]) -> str:
    return " or ".join(dict.fromkeys(map(_describe_domain, domains[:_SHOWN_MAX]))) + (
        " or …" if len(domains) > _SHOWN_MAX else ""
    )


def _describe_domain(domain: Domain) -> str:
    if domain.values is not None:
        some = [repr(value) for value in sorted(domain.values, key=repr)[:_SHOWN_MAX]]
        more = ["…"] if len(domain.values) > _SHOWN_MAX else []
        return "one of " + ", ".join([*some, *more, *(["NULL"] if domain.null else [])])
    parts = []
    if domain.low:
        parts.append(f"{'>=' if domain.low.closed else '>'} {domain.low.value!r}")
    if domain.high:
        parts.append(f"{'<=' if domain.high.closed else '<'} {domain.high.value!r}")
    if domain.excluded:
        parts.append(f"none of {len(domain.excluded)} values")
    return " and ".join(parts) or "a value"
