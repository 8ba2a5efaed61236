"""Shard pruning: never a shard with a matching row, and not too many of the others."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwal.model import ShardField, ShardId, ShardManifest, ShardSpec
from memwal.sharding import engine
from memwal.sharding.evaluate import Rule, compute_values
from memwal.sharding.predicate import predicate_of
from memwal.sharding.pruning import Verdict, prune, shard_filter
from memwal.sharding.spec import read_spec
from memwal.sharding.values import Value, as_comparable, encode_value
from memwal.store.objects.local import LocalObjects
from memwal.store.shards.manifests import ShardManifests
from tests.sharding.specs import a_field, a_spec, sources_for

MICROS = 1_000_000
_TIMES = [
    *("1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "2019-12-31T23:59:59"),
    *("2020-01-01T00:00:00", "2020-02-29T12:30:00", "2020-12-31T18:00:00"),
    *("2021-01-01T05:30:00", "2021-06-15T06:00:01"),
]
_STAMPS = [int(dt.datetime.fromisoformat(t + "+00:00").timestamp() * MICROS) for t in _TIMES]
# Column -> its values, and the same values as SQL for filters.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-(2**31), -25, -11, -10, -9, -1, 0, 1, 9, 10, 11, 25, 2**31 - 1]),
    "l": (pa.int64(), [-(2**63), -7, 0, 3, 123, 2**53, 2**53 + 1, 2**63 - 1]),
    "s": (pa.string(), ["", "a", "ab", "abc", "abd", "b", "é", "éa", "z", "it's"]),
    "b": (pa.bool_(), [True, False]),
    "f": (pa.float64(), [-15.5, -0.0, 0.0, 0.1, 9.99, 10.0, 1e300, math.nan, math.inf]),
    "g": (pa.float32(), [-15.5, 0.0, 0.1, 0.30000001192092896, 10.0, math.nan]),
    "m": (pa.decimal128(10, 2), [Decimal(n) / 100 for n in (-1550, -1, 0, 10, 999, 1000)]),
    "d": (pa.date32(), [stamp // (86_400 * MICROS) for stamp in _STAMPS]),
    "t": (pa.timestamp("us"), _STAMPS),
    "z": (pa.timestamp("us", "UTC"), _STAMPS),
    "y": (pa.timestamp("us", "America/New_York"), _STAMPS),
}
NAMES = list(COLUMNS)
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
SOURCES = sources_for(SCHEMA)


@cache
def rows() -> pa.RecordBatch:
    """Every value of every column, NULLs, and many meetings between the columns."""
    chance, arrays = random.Random(20_251_121), []
    for kind, values in COLUMNS.values():
        # Every value at least twice, in an order of its own.
        picked = (2 * [*values, None] + chance.choices([*values, None], k=260))[:260]
        chance.shuffle(picked)
        stored = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        is_time = pa.types.is_temporal(kind)
        arrays.append(pa.array(picked, stored).cast(kind) if is_time else pa.array(picked, kind))
    return pa.record_batch(arrays, schema=SCHEMA)


@cache
def table() -> lance.LanceDataset:
    numbered = rows().append_column("row", pa.array(range(len(rows())), pa.int64()))
    return lance.write_dataset(pa.table(numbered), "memory://pruning")


def of(column: str) -> int:
    return NAMES.index(column)


SPECS: dict[str, tuple[ShardField, ...]] = {
    **{f"identity {name}": (a_field("identity", of(name)),) for name in NAMES},
    **{f"truncate {name}": (a_field("truncate", of(name), width=10),) for name in "ilfgm"},
    "truncate s": (a_field("truncate", of("s"), width=2),),
    **{
        f"{part} {name}": (a_field(part, of(name)),)
        for part in ("year", "month", "day", "hour")
        for name in "dtzy"
    },
    **{f"bucket {name}": (a_field("bucket", of(name), num_buckets=5),) for name in NAMES},
    "multi_bucket": (a_field("multi_bucket", of("i"), of("s"), num_buckets=7),),
    "expression": (a_field(None, of("i"), expression="col0 % 7", result_type="int64"),),
    "two columns": (
        a_field(None, of("i"), of("s"), expression="concat(col0, col1)", result_type="utf8"),
    ),
    "random": (a_field(None, of("i"), expression="random() * 0 + col0", result_type="float64"),),
    "coalesce": (a_field(None, of("i"), expression="coalesce(col0, 5)", result_type="int64"),),
    "calendar": (
        a_field("year", of("t"), name="y"),
        a_field("month", of("t"), name="m"),
        a_field("bucket", of("s"), name="b", num_buckets=3),
    ),
}


@cache
def shards_of(name: str, rule: Rule | None) -> tuple[tuple[Value | None, ...], ...]:
    """Each row's shard values."""
    spec = a_spec(*SPECS[name])
    found = compute_values(rows(), spec, SOURCES, rule=rule)
    return tuple(tuple(as_comparable(v) for v in row) for row in zip(*found.columns, strict=True))


# ---- filters as text


@cache
def literals(column: str) -> list[str]:
    kind, values = COLUMNS[column]
    if pa.types.is_boolean(kind):
        return ["true", "false"]
    if pa.types.is_string(kind):
        return ["'" + text.replace("'", "''") + "'" for text in [*values, "aa", "c"]]
    if pa.types.is_date(kind):
        return [f"DATE '{time[:10]}'" for time in _TIMES]
    if pa.types.is_timestamp(kind):
        return [f"TIMESTAMP '{time}'" if kind.tz is None else f"'{time}Z'" for time in _TIMES]
    known = [v for v in values if math.isfinite(v) and v > -(2**63)]
    return [str(value) for value in [*known, *range(-30, 31, 3)]]


@st.composite
def leaves(draw: st.DrawFn, columns: Sequence[str]) -> str:
    column = draw(st.sampled_from([*(4 * list(columns)), *NAMES[:3]]))
    one, two, three = (draw(st.sampled_from(literals(column))) for _ in range(3))
    op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
    no = draw(st.sampled_from(["", "NOT "]))
    return draw(
        st.sampled_from(
            [
                *(f"{column} {op} {one}", f"{column} = {one}", f"{one} {op} {column}"),
                f"{column} {no}IN ({one}, {two}, {three})",
                *(f"{column} {no}BETWEEN {one} AND {two}", f"{column} IS {no}NULL"),
                *("s LIKE 'a%'", "abs(i) = 9", "b", "i % 2 = 0", "b IS NOT TRUE"),
            ]
        )
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str]:
    """A spec's name, and a filter that is mostly about its columns."""
    name = draw(st.sampled_from(list(SPECS)))
    columns = [NAMES[number] for field in SPECS[name] for number in field.source_ids]
    both = st.sampled_from(["AND", "AND", "OR"])
    text = st.recursive(
        leaves(columns),
        lambda inner: st.one_of(
            st.tuples(inner, both, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            inner.map(lambda part: f"NOT ({part})"),
        ),
        max_leaves=5,
    )
    return name, draw(text)


def matching(text: str, reader: str) -> list[int] | None:
    """Numbers of the rows for which the filter is TRUE, to Lance or to DataFusion."""
    try:
        if reader == "lance":
            return list(table().to_table(columns=["row"], filter=text)["row"].to_pylist())
        found = engine.evaluate(text, rows(), engine._FILTER_SETTINGS)
    except (ValueError, OSError, RuntimeError):
        return None
    return [row for row, value in enumerate(found.to_pylist()) if value]


READERS = [pytest.param("lance", marks=pytest.mark.integration), "datafusion"]


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=80)
@given(case=cases(), by_pylance=st.booleans())
@example(case=("identity s", "NOT (s IN ('') AND s IN ('a'))"), by_pylance=False)
@example(case=("identity i", "NOT (i IN (9) AND NOT (i IN (9)))"), by_pylance=False)
@example(case=("truncate i", "i > -10 AND i < 10"), by_pylance=False)
@example(case=("identity f", "f < 0.0"), by_pylance=False)
@example(case=("identity f", "f > 5"), by_pylance=False)
@example(case=("bucket g", "g = 0.1"), by_pylance=True)
@example(case=("identity l", "l > 9007199254740992.0"), by_pylance=False)
@example(case=("bucket i", "i IS NULL"), by_pylance=True)
@example(case=("coalesce", "NOT (i = 5 OR i IS NULL)"), by_pylance=False)
@example(case=("year y", "y >= '2020-01-01T00:00:00Z'"), by_pylance=False)
@example(
    case=("calendar", "t >= TIMESTAMP '2020-12-31T00:00:00' AND t < TIMESTAMP '2021-01-02'"),
    by_pylance=False,
)
def test_no_shard_with_a_matching_row_is_left_out(
    reader: str, case: tuple[str, str], by_pylance: bool
) -> None:
    """Against brute force by two readers, under both rules."""
    name, text = case
    only_bucket = name.startswith(("bucket", "identity"))
    rule = Rule.PYLANCE if by_pylance and only_bucket else Rule.SPEC
    try:
        shards = shards_of(name, rule)
    except Exception:
        assert rule is Rule.PYLANCE  # a type that pylance does not hash
        return
    matched = matching(text, reader)
    if matched is None:
        return
    spec = a_spec(*SPECS[name])
    found = shard_filter(predicate_of(text, SCHEMA), spec, SOURCES, rule=rule)
    fields = [field.field_id for field in spec.fields]
    for row in matched:
        why = found.refute(dict(zip(fields, shards[row], strict=True)))
        assert why is None, f"row {row} {rows().slice(row, 1).to_pylist()}: {why}"


# ---- what is left out


def shard_ids(name: str, text: str) -> tuple[set[Any], set[Any]]:
    """Shard values that are kept, and those left out; of one-field specs the bare value."""
    spec = a_spec(*SPECS[name])
    found = shard_filter(predicate_of(text, SCHEMA), spec, SOURCES)
    fields = [field.field_id for field in spec.fields]
    kept, left_out = set(), set()
    for values in set(shards_of(name, None)):
        out = found.refute(dict(zip(fields, values, strict=True)))
        (left_out if out else kept).add(values[0] if len(values) == 1 else values)
    return kept, left_out


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("identity i", "i IN (9, 10, 77)", {9, 10}),
        ("identity i", "i BETWEEN 9 AND 11", {9, 10, 11}),
        ("identity i", "i IS NULL OR i = 9", {None, 9}),
        ("identity i", "i NOT IN (-25, -11, -10, -9, -1, 0, 1) AND i < 9", {-(2**31)}),
        ("identity b", "b IS NOT TRUE", {False, None}),
        ("identity s", "s >= 'abd' AND s < 'z'", {"abd", "b", "it's"}),
        ("truncate i", "i = -19", {-10}),
        ("truncate i", "i > -10 AND i < 10", {0}),
        ("truncate i", "i IN (5, 25)", {0, 20}),
        ("truncate i", "i > 25", {20, 2_147_483_640}),
        ("truncate s", "s = 'abcdef'", {"ab"}),
        ("truncate s", "s > 'abc' AND s <= 'b'", {"ab", "b"}),
        ("truncate m", "m >= 9.99 AND m < 12", {Decimal("0.00"), Decimal("10.00")}),
        ("year t", "t >= TIMESTAMP '2020-01-01' AND t < TIMESTAMP '2021-01-01'", {2020, 2021}),
        ("year t", "t <= TIMESTAMP '2020-12-31T23:59:59' AND t > TIMESTAMP '2020-01-01'", {2020}),
        ("year d", "d < DATE '1970-01-01'", {1969, 1970}),
        ("month t", "t BETWEEN TIMESTAMP '2020-12-15' AND TIMESTAMP '2021-01-15'", {12, 1}),
        ("day d", "d BETWEEN '2020-02-28' AND '2020-03-01'", {29, 1}),
        (
            "hour t",
            "t BETWEEN TIMESTAMP '2020-01-01T17:00:00' AND TIMESTAMP '2020-01-01T18:30:00'",
            {18},
        ),
        ("hour y", "y = '2020-02-29T12:30:00Z'", {7}),
        ("expression", "i IN (25, 11)", {4}),
        ("coalesce", "i IS NULL", {5}),
        (
            "calendar",
            "t BETWEEN TIMESTAMP '2020-12-15' AND TIMESTAMP '2020-12-31T23:59:59' AND s = 'ab'",
            {(2020, 12, 2), (None, None, 2)},
        ),
        ("multi_bucket", "i = 9 AND s IN ('a', 'b')", None),
        ("bucket i", "i = 9 OR i = 10", None),
        ("bucket i", "i BETWEEN 9 AND 10", None),
    ],
)
def test_the_shards_that_are_kept(name: str, text: str, kept: set[Any] | None) -> None:
    found, left_out = shard_ids(name, text)
    if kept is None:
        kept = {shards_of(name, None)[row][0] for row in matching(text, "datafusion") or ()}
    if name.split()[0] in ("year", "month", "day", "hour"):
        # A time outside the calendar has NULL for a year, so that a range says nothing of it.
        found -= {None}
    assert found == {value for value in kept if value in found | left_out}
    assert found and left_out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bucket i", "i > 9"),
        ("multi_bucket", "i = 9"),
        ("expression", "i > 9"),
        ("random", "i = 9"),
        ("identity i", "s = 'a'"),
        ("identity i", "i = 9 OR s = 'a'"),
        ("hour y", "y >= '2020-02-29T12:30:00Z' AND y < '2020-02-29T13:30:00Z'"),
        ("month t", "t >= TIMESTAMP '2020-12-15T00:00:00'"),
        ("identity i", "no such column = 1"),
    ],
)
def test_what_says_nothing_about_the_shard_value_leaves_no_shard_out(name: str, text: str) -> None:
    kept, left_out = shard_ids(name, text)
    assert kept
    assert left_out - {None} == set()


def test_local_time_may_go_back_into_the_old_year() -> None:
    """Phoenix, 1944: at one minute past midnight it was 23:01 of the year before."""
    kind = pa.timestamp("s", "America/Phoenix")
    stamps = ["1944-01-01T06:00:30+00:00", "1944-01-01T06:15:00+00:00"]
    seconds = [int(dt.datetime.fromisoformat(t).timestamp()) for t in stamps]
    column = pa.record_batch({"y": pa.array(seconds, kind)})
    sources = sources_for(column.schema)
    spec = a_spec(a_field("year", 0))
    assert compute_values(column, spec, sources)["f"].to_pylist() == [1944, 1943]
    after = predicate_of("y >= '1944-01-01T06:00:30Z'", column.schema)
    found = shard_filter(after, spec, sources)
    assert found.refute({"f": 1943}) is None
    assert found.refute({"f": 1942})


def test_a_name_that_two_columns_share_says_nothing() -> None:
    schema = pa.schema([("st.x", pa.int64()), ("st", pa.struct([("x", pa.int64())]))])
    sources = sources_for(schema)
    assert [source.name for source in sources.values()].count("st.x") == 2
    found = shard_filter(predicate_of("st.x = 1", schema), a_spec(a_field("identity", 0)), sources)
    assert found.refute({"f": 2}) is None


# ---- shards as their manifests describe them

I32 = pa.int32()


def a_shard(number: int, *values: tuple[str, bytes], spec_id: int = 1) -> ShardManifest:
    return ShardManifest(
        shard_id=ShardId(f"00000000-0000-4000-8000-{number:012d}"),
        version=1,
        writer_epoch=1,
        current_generation=1,
        shard_spec_id=spec_id,
        shard_field_entries=values,
    )


def entry(name: str, value: Any, kind: pa.DataType = I32) -> tuple[str, bytes]:
    data = encode_value(pa.scalar(value, kind))
    assert data is not None
    return name, data


def stored(*fields: ShardField, spec_id: int = 1) -> ShardSpec:
    return ShardSpec(spec_id=spec_id, fields=fields)


BUCKETS = stored(a_field("bucket", of("l"), name="bucket", num_buckets=10, result_type="int32"))


def pruned(
    text: str, shards: Sequence[ShardManifest], *specs: ShardSpec, key: Sequence[str] | None = None
) -> tuple[Verdict, ...]:
    return prune(predicate_of(text, SCHEMA), shards, specs or (BUCKETS,), SOURCES, key=key)


def kept(verdicts: Sequence[Verdict], *, can_match: bool = True) -> list[ShardId]:
    return [verdict.shard_id for verdict in verdicts if verdict.can_match is can_match]


def test_the_specs_example_one_bucket_is_scanned() -> None:
    """`bucket(user_id, 10)` and `user_id = 123`: compute the bucket, scan it, skip all others."""
    one = pa.record_batch({"l": pa.array([123])})
    bucket = compute_values(one, read_spec(BUCKETS), SOURCES)["bucket"][0].as_py()
    shards = [a_shard(n, entry("bucket", n)) for n in range(10)]
    found = pruned("l = 123", shards)
    assert kept(found) == [shards[bucket].shard_id]
    for verdict in found:
        told = f"bucket = {bucket} can match" if verdict.can_match else f"needs one of {bucket}"
        assert told in verdict.reason
    (never,) = pruned("l = 1 AND l = 2", shards[:1])
    assert (never.can_match, never.reason) == (False, "the filter is true for no row")


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        (a_shard(1), "records no shard values"),
        (a_shard(1, entry("bucket", 7), spec_id=0), "made by hand"),
        (a_shard(1, entry("bucket", 7), spec_id=2), "there is no shard spec 2"),
        (a_shard(1, entry("other", 7)), "records no shard values"),
        (a_shard(1, ("bucket", b"")), "records no shard values"),
        (a_shard(1, ("bucket", b"\x07")), "records no shard values"),
        (a_shard(1, entry("bucket", 7), entry("bucket", 7)), "records no shard values"),
    ],
    ids=["none", "manual", "no spec", "other field", "empty", "torn", "twice"],
)
def test_a_shard_without_a_clear_value_is_kept(shard: ShardManifest, reason: str) -> None:
    (found,) = pruned("l = 123", [shard])
    assert found.can_match
    assert reason in found.reason


@pytest.mark.parametrize(
    "field",
    [
        a_field("week", of("l"), name="bucket"),
        a_field("identity", 99, name="bucket", result_type="int32"),
    ],
    ids=["unknown transform", "removed column"],
)
def test_a_spec_that_can_not_be_followed_keeps_its_shards(field: ShardField) -> None:
    assert kept(pruned("l = 123", [a_shard(1, entry("bucket", 7))], stored(field)))


def test_specs_of_one_id_prune_nothing() -> None:
    """An id that is there twice identifies neither spec, whichever comes first."""
    other = stored(a_field("identity", of("l"), name="bucket"))
    shard = a_shard(1, entry("bucket", 7))
    assert kept(pruned("l = 123", [shard], BUCKETS)) == []
    for specs in ((BUCKETS, other), (other, BUCKETS), (BUCKETS, other, other)):
        (found,) = pruned("l = 123", [shard], *specs)
        assert (found.can_match, found.reason) == (True, "there are two shard specs 1")


def test_each_shard_is_judged_by_its_own_spec() -> None:
    other = stored(a_field("identity", of("s"), name="text"), spec_id=2)
    shards = [
        a_shard(1, entry("bucket", 0)),
        a_shard(2, entry("text", "a", pa.string()), spec_id=2),
        a_shard(3, entry("text", "b", pa.string()), spec_id=2),
        a_shard(4, ("text", b""), spec_id=2),
    ]
    found = pruned("s = 'a'", shards, BUCKETS, other)
    assert kept(found, can_match=False) == [shards[2].shard_id]


def test_a_promoted_column_is_compared_with_the_recorded_type() -> None:
    now_wide = stored(a_field("identity", of("l"), name="n", result_type="int32"))
    shards = [a_shard(n, entry("n", n)) for n in (3, 4)]
    assert kept(pruned("l = 3", shards, now_wide)) == [shards[0].shard_id]
    assert kept(pruned("l > 3", shards, now_wide)) == [shards[1].shard_id]
    other_unit = stored(a_field("identity", of("t"), name="n", result_type="timestamp[s]"))
    second = a_shard(1, entry("n", 1, pa.timestamp("s")))
    for text in ("t = TIMESTAMP '1970-01-01T00:00:01'", "t > TIMESTAMP '1970-01-01T00:00:00.5'"):
        assert kept(pruned(text, [second], other_unit))


def test_fields_over_other_columns_are_not_used_in_a_read_by_key() -> None:
    """A newer version of a row, or its tombstone, may be in the shard that would be left out."""
    spec = stored(
        a_field("identity", of("i"), name="value", result_type="int32"),
        a_field("bucket", of("l"), name="bucket", num_buckets=10),
    )
    shards = [a_shard(n, entry("value", n), entry("bucket", 4)) for n in range(3)]
    for key, left in ((None, 1), (["l"], 3), (["l", "i"], 1), ([], 3)):
        assert len(kept(pruned("i = 1", shards, spec, key=key))) == left


@pytest.mark.integration
def test_pylances_shards_record_nothing_and_stay(tmp_path: Any) -> None:
    """Its manifests have a spec id and no values."""
    key = pa.field(
        "k", pa.int64(), nullable=False, metadata={b"lance-schema:unenforced-primary-key": b"true"}
    )
    data = pa.table({"k": pa.array([1, 2])}, schema=pa.schema([key]))
    dataset = lance.write_dataset(data, tmp_path / "t")
    dataset.initialize_mem_wal(bucket_column="k", num_buckets=4)
    shard = "00000000-0000-4000-8000-000000000001"
    with lance.dataset(tmp_path / "t").mem_wal_writer(shard) as writer:
        writer.put(data)
    manifest = ShardManifests(LocalObjects(tmp_path / "t")).latest(ShardId(shard))
    assert manifest is not None
    assert (manifest.shard_spec_id, manifest.shard_field_entries) == (1, ())
    schema = pa.schema([("k", pa.int64())])
    spec = stored(a_field("bucket", 0, name="bucket", num_buckets=4))
    found = prune(predicate_of("k = 1", schema), [manifest], [spec], sources_for(schema))
    assert kept(found) == [manifest.shard_id]
