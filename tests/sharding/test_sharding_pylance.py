"""Shard values against `lance.mem_wal.evaluate_sharding_spec`, for every type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import mmh3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.mem_wal import evaluate_sharding_spec
from lance.schema import LanceSchema

from memwal.errors import Unsupported, Usage
from memwal.model import ShardField, ShardSpec
from memwal.sharding.evaluate import check_spec, compute_values
from memwal.sharding.spec import read_spec
from memwal.store.objects.local import LocalObjects
from memwal.store.tables.manifests import TableManifests
from tests.sharding.specs import a_field, a_spec, as_description, one_column, sources_for

FLOATS = [0.0, -0.0, 1.25, -1.25, float("nan"), float("inf"), float("-inf"), 5.0]
DAY = 86_400
# Its murmur mixes each byte of a tail as a block of its own; long ones are hashed in another way.
TEXTS = st.text(max_size=60) | st.text("aé🙂", min_size=60, max_size=150)


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    top = 2 ** (bits - signed)
    return st.integers(-top if signed else 0, top - 1)


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((pa.type_for_alias(f"int{bits}"), integers(bits, True)) for bits in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{bits}"), integers(bits, False)) for bits in (8, 16, 32, 64)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.sampled_from(FLOATS) | st.floats(width=32)),
    (pa.float64(), st.sampled_from(FLOATS) | st.floats()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.date32(), st.dates()),
    (pa.time32("s"), st.integers(0, DAY - 1)),
    (pa.time32("ms"), st.integers(0, DAY * 10**3 - 1)),
    (pa.time64("us"), st.integers(0, DAY * 10**6 - 1)),
    (pa.time64("ns"), st.integers(0, DAY * 10**9 - 1)),
    *(
        (pa.timestamp(unit, zone), st.integers(-(2**62), 2**62) | st.integers(-1_000, 1_000))
        for unit, zone in (("s", None), ("ms", "UTC"), ("us", "America/New_York"), ("ns", None))
    ),
]
REFUSED = [
    pa.array([1.5, None], pa.float64()).cast(pa.float16()),
    pa.array(["a", None], pa.string_view()),
    pa.array([b"a", None]),
    pa.array([b"a", None], pa.large_binary()),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array([dt.date(2020, 1, 1), None], pa.date64()),
    pa.array([1, None], pa.duration("us")),
    pa.array([Decimal("1.5"), None]),
    pa.array([Decimal("1.5"), None], pa.decimal256(40, 1)),
    pa.array(["a", None]).dictionary_encode(),
    pa.nulls(2),
]


def pylance_values(batch: pa.RecordBatch, *fields: ShardField) -> pa.RecordBatch:
    spec = ShardSpec(spec_id=1, fields=fields)
    schema = LanceSchema.from_pyarrow(batch.schema)
    return evaluate_sharding_spec(batch, as_description(spec), schema)


def check_same(array: pa.Array, *fields: ShardField) -> pa.RecordBatch:
    """That both give the same; returns it."""
    batch, sources = one_column(array)
    spec = a_spec(*fields)
    ours, theirs = compute_values(batch, spec, sources), pylance_values(batch, *fields)
    for field in fields:
        assert same(ours[field.field_id], theirs[field.field_id])
    return ours


def same(left: pa.Array, right: pa.Array) -> bool:
    """Equal, NaN counting as equal to itself."""
    if pa.types.is_floating(left.type):
        return left.type == right.type and str(left.to_pylist()) == str(right.to_pylist())
    return bool(left.equals(right))


BUCKET = a_field("bucket", 0, num_buckets=16)


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda value: str(value)[:30])
@settings(max_examples=12)
@given(data=st.data())
def test_buckets_and_identity_are_pylances(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    items = data.draw(st.lists(st.none() | values, max_size=12))
    array = pa.array(items, kind)
    start = data.draw(st.integers(0, len(items)))
    count = data.draw(st.sampled_from([1, 2, 7, 16, 1_024, 2**31 - 1]))
    fields = (
        a_field("bucket", 0, name="b", num_buckets=count),
        a_field("identity", 0, name="i"),
        a_field("unsharded", name="u"),
    )
    check_same(array, *fields)
    # A slice keeps the whole buffers, at an offset.
    check_same(array.slice(start), *fields)
    assert check_same(pa.nulls(5, kind), BUCKET)["f"].to_pylist() == [0] * 5


def test_the_smallest_hash_is_in_a_bucket() -> None:
    """Hashes of -2**31, of which there is no absolute value."""
    for value, kind in (
        *((-2_089_875_627, pa.int32()), (6_018_035_362_574_630_912, pa.int64())),
        ("woRoU/6w", pa.string()),
    ):
        assert check_same(pa.array([value], kind), BUCKET)["f"].to_pylist() == [0]


@pytest.mark.parametrize("array", REFUSED, ids=lambda array: str(array.type))
def test_types_that_pylance_refuses_are_refused(array: pa.Array) -> None:
    batch, sources = one_column(array)
    with pytest.raises(ValueError, match="Unsupported bucket sharding column type"):
        pylance_values(batch, BUCKET)
    for check in (check_spec, lambda *given: compute_values(batch, *given)):
        with pytest.raises(Unsupported, match="as a bucket column"):
            check(a_spec(BUCKET), sources)


@pytest.mark.parametrize(
    "field",
    [
        a_field("year", 0),
        a_field("multi_bucket", 0, num_buckets=4),
        a_field("truncate", 0, width=1),
        a_field(None, 0, expression="col0", result_type="timestamp[us]"),
    ],
    ids=lambda field: field.transform,
)
def test_transforms_that_pylance_does_not_have_are_refused(field: ShardField) -> None:
    batch, _ = one_column(pa.array([0], pa.timestamp("us")))
    with pytest.raises(ValueError, match="Unsupported MemWAL sharding transform"):
        pylance_values(batch, field)
    with pytest.raises(Unsupported, match="pylance has no"):
        a_spec(field)


def test_a_members_column_comes_nested() -> None:
    nested = pa.record_batch({"st": pa.array([{"a": 5}, None], pa.struct([("a", pa.int32())]))})
    field = a_field("bucket", 1, num_buckets=16)
    flat = pa.record_batch({"st.a": pa.array([5, None], pa.int32())})
    schema = LanceSchema.from_pyarrow(nested.schema)
    stored = ShardSpec(spec_id=1, fields=(field,))
    theirs = evaluate_sharding_spec(flat, as_description(stored), schema)["f"].to_pylist()
    ours = compute_values(nested, a_spec(field), sources_for(nested.schema))
    assert ours["f"].to_pylist() == theirs


def test_pylances_column_parameter_goes_before_the_source_id() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array([7, 8])})
    field = a_field("bucket", 0, num_buckets=16, column="b")
    ours = compute_values(batch, a_spec(field), sources_for(batch.schema))
    assert ours["f"].to_pylist() == pylance_values(batch, field)["f"].to_pylist()
    without = compute_values(batch, a_spec(BUCKET), sources_for(batch.schema))
    assert ours != without


def test_a_missing_column_is_an_error_as_it_is_to_pylance() -> None:
    batch, sources = one_column(pa.array([1]))
    with pytest.raises(Usage, match="no column 'k'"):
        compute_values(batch.rename_columns(["x"]), a_spec(BUCKET), sources)


def test_a_removed_source_is_refused() -> None:
    batch, sources = one_column(pa.array([1]))
    field = a_field("bucket", 9, num_buckets=4)
    with pytest.raises(ValueError, match="source id 9 was not mapped"):
        pylance_values(batch, field)
    with pytest.raises(Unsupported, match="names a column that does not exist"):
        compute_values(batch, a_spec(field), sources)


@pytest.mark.parametrize("text", ["0", "-1", "2147483648", " 4", "4.0", "", "1_0"])
def test_bucket_counts_that_pylance_refuses_are_refused(text: str) -> None:
    field = a_field("bucket", 0, num_buckets=text)
    with pytest.raises(ValueError, match="num_buckets"):
        pylance_values(pa.record_batch({"k": pa.array([1])}), field)
    with pytest.raises(Unsupported, match="num_buckets"):
        read_spec(ShardSpec(spec_id=1, fields=(field,)))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "transform", "result_type"),
    [
        ({"bucket_column": "k", "num_buckets": 4}, "bucket", "int32"),
        ({"identity_column": "s"}, "identity", "string"),
        ({"unsharded": True}, "unsharded", "int32"),
    ],
)
def test_specs_that_pylance_stores_are_read_from_the_table(
    tmp_path: Path, arguments: dict[str, Any], transform: str, result_type: str
) -> None:
    rows = pa.table({"k": pa.array(range(20)), "s": ["x"] * 20})
    lance.write_dataset(rows, tmp_path / "t").initialize_mem_wal(**arguments)
    dataset = lance.dataset(tmp_path / "t")
    (described,) = dataset.mem_wal_index_details()["sharding_specs"]
    state = TableManifests(LocalObjects(tmp_path / "t")).read(dataset.version).mem_wal
    assert state is not None
    (stored,) = state.shard_specs
    assert as_description(stored) == described
    (field,) = read_spec(stored).fields
    assert (field.transform, str(field.result_type)) == (transform, result_type)
    batch, sources = rows.to_batches()[0], sources_for(rows.schema)
    theirs = evaluate_sharding_spec(batch, described, dataset.lance_schema)
    assert compute_values(batch, read_spec(stored), sources).columns == theirs.columns


@pytest.mark.parametrize(("kind", "size"), [(pa.int32(), 4), (pa.int64(), 8), (pa.date32(), 4)])
def test_a_bucket_is_the_murmur3_of_the_little_endian_value(kind: pa.DataType, size: int) -> None:
    """By another library than pylance: rows that were routed once stay where they are."""
    numbers = [0, 1, -1, 4711, 2**31 - 1, -(2**31)]
    rows, sources = one_column(
        pa.array(numbers, pa.int64() if size == 8 else pa.int32()).cast(kind)
    )
    spec = a_spec(a_field("bucket", 0, num_buckets=16))
    found = compute_values(rows, spec, sources).column(0).to_pylist()
    hashes = (mmh3.hash(n.to_bytes(size, "little", signed=True)) for n in numbers)
    assert found == [(h & 0x7FFFFFFF) % 16 for h in hashes]
