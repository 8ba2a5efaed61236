"""Shard specs: what is understood, what is refused and why, and shard values as bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Unsupported
from memwal.model import ShardField, ShardSpec
from memwal.sharding.spec import (
    Source,
    decode_value,
    encode_value,
    find_source,
    parse_type,
    read_spec,
)
from tests.sharding.specs import a_field, numbered, sources_for


def read(*fields: ShardField, spec_id: int = 1) -> Any:
    return read_spec(ShardSpec(spec_id=spec_id, fields=fields))


# ---- what a spec may say


@pytest.mark.parametrize(
    ("field", "result_type"),
    [
        (a_field("identity", 3), None),
        (a_field("bucket", 3, num_buckets=4, result_type="int32"), pa.int32()),
        (a_field("identity", 3, result_type="utf8"), pa.string()),
        (a_field("unsharded"), pa.int32()),
    ],
    ids=lambda value: str(getattr(value, "transform", value)),
)
def test_every_transform_and_its_result_type(field: ShardField, result_type: Any) -> None:
    (found,) = read(field).fields
    assert found.transform == field.transform
    assert (found.result_type, found.source_id) == (result_type, 3 if field.source_ids else None)
    assert (found.num_buckets or 4) == 4


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (a_field("year", 1), "pylance has no 'year', only identity, bucket, unsharded"),
        (a_field(None, 1, expression="col0 % 2"), "pylance has no 'col0 % 2'"),
        (a_field("identity"), "identity does not take 0 source columns"),
        (a_field("bucket", 1, 2, num_buckets=4), "bucket does not take 2 source columns"),
        (a_field("unsharded", 1), "unsharded does not take 1 source columns"),
        (a_field("bucket", 1), "num_buckets is None instead of a whole number"),
        (a_field("bucket", 1, num_buckets=2**31), "is not within 1 and 2147483647"),
        (
            a_field("bucket", 1, num_buckets=2, result_type="utf8"),
            "bucket gives int32, the spec says",
        ),
        (a_field("identity", 1, result_type="bogus"), "unknown result type 'bogus'"),
        (a_field("identity", 1, name=""), "field id '' is empty or twice"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_field(field: ShardField, why: str) -> None:
    with pytest.raises(Unsupported, match="shard spec 1") as refused:
        read(field)
    assert why in str(refused.value)


def test_ids_are_positive_and_fields_have_names_of_their_own() -> None:
    with pytest.raises(Unsupported, match="shard spec id 0 is not positive"):
        read(a_field("identity", 1), spec_id=0)
    with pytest.raises(Unsupported, match="has no fields"):
        read()
    with pytest.raises(Unsupported, match="'f' is empty or twice"):
        read(a_field("identity", 1), a_field("identity", 2))


# ---- columns


def test_sources_are_found_by_field_id_also_in_structs() -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("st", pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.int8())]))])),
        ]
    )
    sources = sources_for(schema)
    assert [(s.name, str(s.type)) for _, s in sorted(sources.items())][2:] == [
        ("st.x", "string"),
        ("st.y", "struct<z: int8>"),
        ("st.y.z", "int8"),
    ]
    assert [c.field_id for c in numbered(schema)] == [0, 1]
    (field,) = read(a_field("identity", 4)).fields
    assert find_source(field, sources) == Source(field_id=4, path=("st", "y", "z"), type=pa.int8())


def test_a_source_is_named_or_found_by_its_id() -> None:
    sources = sources_for(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    for field, name in (
        (a_field("bucket", 1, num_buckets=4), "b"),
        (a_field("bucket", 1, num_buckets=4, column="a"), "a"),
        (a_field("bucket", 9, num_buckets=4), None),
    ):
        (found,) = read(field).fields
        source = find_source(found, sources)
        assert (source and source.name) == name


# ---- types and bytes

VALUES = [
    pa.scalar(2**64 - 1, pa.uint64()),
    pa.scalar(1.5, pa.float16()),
    pa.scalar(False),
    pa.scalar("é"),
    pa.scalar("x", pa.string_view()),
    pa.scalar(b"\0\xff"),
    pa.scalar(b"ab", pa.binary(2)),
    pa.scalar(-5, pa.date32()),
    pa.scalar(86_400_000, pa.date64()),
    pa.scalar(5, pa.timestamp("ns", "UTC")),
    pa.scalar(7, pa.time32("ms")),
    pa.scalar(-7, pa.duration("us")),
    pa.scalar(Decimal("-1.50"), pa.decimal128(10, 2)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.type}-{value}")
def test_values_and_types_come_back(value: pa.Scalar) -> None:
    data = encode_value(value)
    assert data is not None
    back = decode_value(data, value.type)
    assert (back.type, back) == (value.type, value)
    assert parse_type(str(value.type), "here") == value.type


def test_bytes_are_the_arrow_values_own() -> None:
    assert encode_value(pa.scalar(5, pa.int32())) == b"\x05\0\0\0"
    assert encode_value(pa.scalar("é")) == b"\xc3\xa9"
    assert encode_value(pa.scalar(True)) == b"\x01"
    assert encode_value(pa.scalar(None, pa.int32())) is None


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (b"\x05\0\0", pa.int32(), "3 bytes instead of 4"),
        (b"\xff", pa.string(), "not UTF-8"),
        (b"\x02", pa.bool_(), "is b'\\x02'"),
        (b"", pa.list_(pa.int8()), "cannot have the type list"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(data: bytes, kind: pa.DataType, why: str) -> None:
    with pytest.raises(Unsupported) as refused:
        decode_value(data, kind)
    assert why in str(refused.value)


@given(st.binary(max_size=40), st.sampled_from([value.type for value in VALUES]))
def test_any_bytes_are_a_value_or_refused(data: bytes, kind: pa.DataType) -> None:
    try:
        value = decode_value(data, kind)
    except Unsupported:
        return
    assert encode_value(value) == data


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("boolean", pa.bool_()),
        ("utf8", pa.string()),
        ("float32", pa.float32()),
        ("date32:day", pa.date32()),
        ("timestamp:ns:America/New_York", pa.timestamp("ns", "America/New_York")),
        ("time64:us", pa.time64("us")),
        ("decimal:128:10:2", pa.decimal128(10, 2)),
        ("fixed_size_binary:16", pa.binary(16)),
    ],
)
def test_lances_names_of_types(name: str, kind: pa.DataType) -> None:
    assert parse_type(name, "here") == kind


@given(st.text(max_size=30) | st.sampled_from(["time32[ns]", "decimal128(99, 2)", "timestamp[m]"]))
def test_a_name_is_a_type_or_refused(name: str) -> None:
    try:
        found = parse_type(name, "here")
    except Unsupported as refused:
        assert repr(name) in str(refused)
    else:
        assert isinstance(found, pa.DataType)
