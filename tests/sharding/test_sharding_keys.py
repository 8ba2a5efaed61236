"""Shards that a read by key leaves out: never one that may have a row of the key."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.model import ShardField, ShardId, ShardManifest, ShardSpec
from memwal.sharding.evaluate import compute_values, rule_out_shards
from memwal.sharding.spec import encode_value, read_spec
from memwal.store.objects.local import LocalObjects
from memwal.store.shards.manifests import ShardManifests
from tests.sharding.specs import a_field, numbered, sources_for
from tests.support.views import make_shard, make_state, make_view

SCHEMA = pa.schema([("l", pa.int64()), ("s", pa.string()), ("i", pa.int32())])
BUCKET = a_field("bucket", 0, name="bucket", num_buckets=10, result_type="int32")
TEXT = a_field("identity", 1, name="text")


def entry(name: str, value: Any, kind: pa.DataType | None = None) -> tuple[str, bytes]:
    kind = kind or (pa.string() if isinstance(value, str) else pa.int32())
    data = encode_value(pa.scalar(value, kind))
    assert data is not None
    return name, data


def left_out(
    shards: list[tuple[tuple[str, bytes], ...]],
    *specs: ShardSpec | ShardField,
    keys: Any,
    key: tuple[str, ...] = ("l",),
    spec_id: int = 1,
) -> list[int]:
    """The places of the shards that are left out."""
    ids = [ShardId(f"00000000-0000-4000-8000-{number:012d}") for number in range(len(shards))]
    given = (s if isinstance(s, ShardSpec) else ShardSpec(spec_id=1, fields=(s,)) for s in specs)
    state = make_state(shard_specs=tuple(given))
    view = make_view(
        *(
            make_shard(one, (), shard_spec_id=spec_id, shard_field_entries=values)
            for one, values in zip(ids, shards, strict=True)
        ),
        state=state,
        columns=tuple(numbered(SCHEMA)),
        primary_key=key,
    )
    return sorted(ids.index(one) for one in rule_out_shards(view, keys, SCHEMA))


def test_the_specs_example_one_bucket_is_scanned() -> None:
    """`bucket(user_id, 10)` and `user_id = 123`: compute the bucket, scan it, skip all others."""
    one = pa.record_batch({"l": pa.array([123])})
    spec = read_spec(ShardSpec(spec_id=1, fields=(BUCKET,)))
    bucket = compute_values(one, spec, sources_for(SCHEMA))["bucket"][0].as_py()
    shards = [(entry("bucket", n),) for n in range(10)]
    assert left_out(shards, BUCKET, keys=[(123,)]) == [n for n in range(10) if n != bucket]
    assert left_out(shards, BUCKET, keys=[]) == []


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=9)), min_size=1))
def test_no_shard_of_a_key_is_left_out(keys: list[tuple[int, str]]) -> None:
    spec = ShardSpec(spec_id=1, fields=(BUCKET, TEXT))
    columns = zip(*keys, strict=True)
    rows = pa.record_batch(
        [pa.array(v, f.type) for v, f in zip(columns, SCHEMA, strict=False)], names=["l", "s"]
    )
    values = compute_values(rows, read_spec(spec), sources_for(SCHEMA))
    shards = [
        (entry("bucket", b.as_py()), entry("text", t.as_py()))
        for b, t in zip(values["bucket"], values["text"], strict=True)
    ]
    assert left_out(shards, spec, keys=keys, key=("l", "s")) == []
    assert left_out([(entry("text", "ten letters"),)], spec, keys=keys, key=("l", "s")) == [0]


@pytest.mark.parametrize(
    ("values", "spec_id"),
    [
        ((), 1),
        ((entry("bucket", 7),), 0),
        ((entry("bucket", 7),), 2),
        ((entry("other", 7),), 1),
        ((("bucket", b""),), 1),
        ((entry("bucket", 7), entry("bucket", 7)), 1),
        ((("bucket", (7).to_bytes(8, "little")),), 1),
    ],
    ids=["none", "manual", "no spec", "other field", "empty", "twice", "other width"],
)
def test_a_shard_without_a_clear_value_is_kept(values: Any, spec_id: int) -> None:
    assert left_out([values], BUCKET, keys=[(123,)], spec_id=spec_id) == []


@pytest.mark.parametrize(
    "spec",
    [
        a_field("week", 0, name="bucket"),
        a_field("identity", 99, name="bucket", result_type="int32"),
        a_field("identity", 2, name="bucket"),
        a_field("identity", 0, name="bucket", result_type="int32"),
        a_field("identity", 0, name="bucket", result_type="float64"),
    ],
    ids=["unknown transform", "removed column", "outside the key", "promoted", "another type"],
)
def test_a_field_that_can_not_be_followed_keeps_its_shards(spec: ShardField) -> None:
    seven = [(entry("bucket", 7),), (("bucket", (7).to_bytes(8, "little")),)]
    assert left_out(seven, spec, keys=[(123,)]) == []


def test_a_spec_that_rows_can_not_be_routed_by_leaves_nothing_out() -> None:
    """Another writer's rule put the rows where they are, also by the fields that are known."""
    other = a_field("bucket", 99, name="other", num_buckets=8)
    spec = ShardSpec(spec_id=1, fields=(BUCKET, other))
    assert left_out([(entry("bucket", 7),)], spec, keys=[(123,)]) == []


def test_specs_of_one_id_leave_nothing_out() -> None:
    """An id that is there twice identifies neither spec, whichever comes first."""
    other = a_field("identity", 0, name="bucket")
    shards = [(entry("bucket", 7),)]
    assert left_out(shards, BUCKET, keys=[(123,)]) == [0]
    for specs in ((BUCKET, other), (other, BUCKET), (BUCKET, other, other)):
        assert left_out(shards, *specs, keys=[(123,)]) == []


def test_each_shard_is_judged_by_its_own_spec() -> None:
    other = ShardSpec(spec_id=2, fields=(TEXT,))
    shards = [(entry("bucket", 0),), (entry("text", "a"),), (entry("text", "b"),), (("text", b""),)]
    found = left_out(shards, BUCKET, other, keys=[("a",)], key=("s",), spec_id=2)
    assert found == [2]


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
    assert isinstance(manifest, ShardManifest)
    assert (manifest.shard_spec_id, manifest.shard_field_entries) == (1, ())
