from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from lance.mem_wal import evaluate_sharding_spec

from memwal.errors import Refused, Unsupported, Usage
from memwal.ingest.routing import (
    Place,
    Router,
    ShardValues,
    choose_spec,
    derive_id,
    list_ids,
)
from memwal.model import ShardField, ShardId, ShardManifest, ShardSpec, ShardStatus
from memwal.sharding.spec import Source, Spec, read_spec
from tests.support.ingest_tables import make, rows_of

SOURCES = {0: Source(field_id=0, path=("id",), type=pa.int64())}
IDENTITY = ShardField(field_id="who", source_ids=(0,), transform="identity")
HALF = bytes([1, 0, 0, 0, 0, 0, 0, 0])


def router(*manifests: ShardManifest, **given: object) -> Router:
    spec = read_spec(ShardSpec(spec_id=3, fields=(IDENTITY,)))
    return Router(spec=spec, sources=SOURCES, manifests=manifests, **{"key": ("id",), **given})


def manifest(shard: int | ShardId, **facts: object) -> ShardManifest:
    given = {"version": 1, "writer_epoch": 1, "current_generation": 1, **facts}
    shard_id = ShardId(f"00000000-0000-4000-8000-{shard:012}") if shard in range(99) else shard
    return ShardManifest(shard_id=shard_id, **given)


def of_one(**facts: object) -> dict[str, object]:
    """What a manifest says whose shard is for id 1."""
    return {"shard_spec_id": 3, "shard_field_entries": (("who", HALF),), **facts}


def batch(*ids: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def test_ids_of_our_own_follow_from_spec_and_values() -> None:
    # Written down: two builds that disagree would split a value's rows over two shards.
    known = ShardValues(spec_id=1, entries=(("bucket", b"\3\0\0\0"),))
    assert known.own_id == "1a2fc679-7eca-541c-b664-e54554e1c0e0"
    ids = {
        known.own_id,
        ShardValues(spec_id=2, entries=known.entries).own_id,
        ShardValues(spec_id=1, entries=(("bucket", b"\4\0\0\0"),)).own_id,
        ShardValues(spec_id=1, entries=(("other", b"\3\0\0\0"),)).own_id,
        ShardValues(spec_id=1, entries=(*known.entries, ("other", b""))).own_id,
        ShardValues(spec_id=1).own_id,
    }
    assert len(ids) == 6
    two = (("a", b"\1"), ("b", b"\2"))
    assert (
        ShardValues(spec_id=1, entries=two).own_id
        == ShardValues(spec_id=1, entries=two[::-1]).own_id
    )


def spec_with(*fields: ShardField) -> Spec:
    return read_spec(ShardSpec(spec_id=1, fields=fields))


BUCKET = replace(IDENTITY, transform="bucket", parameters={"num_buckets": "4"})
UNSHARDED = replace(IDENTITY, transform="unsharded", source_ids=())


@pytest.mark.parametrize(
    ("field", "value", "shard_id"),
    [
        (BUCKET, b"\0\0\0\0", "4a388480-a25b-59a8-b058-24217f980256"),
        (IDENTITY, b"a", "81e4f11a-aed9-5327-9633-84f7b1fa80f4"),
        (UNSHARDED, b"\0\0\0\0", "aa48498d-ac91-59e2-8452-69f46010ace2"),
    ],
    ids=["bucket", "identity", "unsharded"],
)
def test_ids_are_those_of_lancedb_s_clients(field, value, shard_id) -> None:
    """The ids that LanceDB 0.40 gave its shards (see also test_lancedb.py)."""
    spec = spec_with(field)
    values = ShardValues(spec_id=1, entries=(("who", value),))
    assert derive_id(spec, values) == shard_id
    # Of specs by which it doesn't route, and of NULL, our own.
    null = ShardValues(spec_id=1)
    if field is not UNSHARDED:
        assert derive_id(spec, null) == null.own_id
    both = spec_with(field, replace(IDENTITY, field_id="more"))
    assert derive_id(both, values) == derive_id(None, values) == values.own_id
    listed = {values.own_id, shard_id} if field is not IDENTITY else set()
    assert {*listed, null.own_id} <= list_ids(spec)


@pytest.mark.parametrize(("specs", "wanted"), [([], None), ([5], 5), ([1, 2], Unsupported)])
def test_one_spec_at_most(specs, wanted) -> None:
    made = [ShardSpec(spec_id=n, fields=(IDENTITY,)) for n in specs]
    if wanted is Unsupported:
        with pytest.raises(Unsupported, match="the table has 2 shard specs"):
            choose_spec(made)
    else:
        found = choose_spec(made)
        assert (None if found is None else found.spec_id) == wanted


def test_a_spec_that_pylance_does_not_route_by_takes_no_rows() -> None:
    with pytest.raises(Unsupported, match="pylance has no 'col0 % 2'"):
        choose_spec(
            [
                ShardSpec(
                    spec_id=3, fields=(replace(IDENTITY, transform=None, expression="col0 % 2"),)
                )
            ]
        )
    removed = read_spec(ShardSpec(spec_id=3, fields=(replace(IDENTITY, source_ids=(9,)),)))
    with pytest.raises(Unsupported, match="names a column that does not exist"):
        Router(spec=removed, sources=SOURCES).route(batch(1))


def test_rows_go_by_their_values_in_order() -> None:
    found = router().route(batch(7, None, 7, 1, None))
    assert [routed.indices.to_pylist() for routed in found] == [[0, 2], [1, 4], [3]]
    assert [dict(routed.place.values.entries) for routed in found] == [
        {"who": (7).to_bytes(8, "little")},
        {},
        {"who": (1).to_bytes(8, "little")},
    ]
    assert all(routed.place.values.spec_id == 3 for routed in found)
    assert router().route(batch()) == []


def test_a_shard_that_says_it_holds_the_values_is_used() -> None:
    theirs = manifest(7, shard_spec_id=3, shard_field_entries=(("who", HALF),))
    other = manifest(8, shard_spec_id=2, shard_field_entries=(("who", HALF),))
    [routed] = router(theirs, other).route(batch(1))
    assert routed.place.shard_id == theirs.shard_id
    with pytest.raises(Refused, match="all say that they hold"):
        router(theirs, manifest(9, shard_spec_id=3, shard_field_entries=(("who", HALF),))).route(
            batch(1)
        )


def test_a_sealed_shard_takes_nothing() -> None:
    sealed = manifest(
        7, shard_spec_id=3, shard_field_entries=(("who", HALF),), status=ShardStatus.SEALED
    )
    with pytest.raises(Refused, match="SEALED"):
        router(sealed).route(batch(1))


OF_ONE = ShardValues(spec_id=3, entries=(("who", HALF),))
OURS = derive_id(router().spec, OF_ONE)


def chosen(*manifests: ShardManifest, **given: object) -> ShardId:
    [routed] = router(*manifests, **given).route(batch(1))
    return routed.place.shard_id


def test_of_two_shards_of_one_value_the_one_with_rows_is_used() -> None:
    older, there = manifest(7, **of_one()), manifest(OURS, shard_spec_id=3)
    assert chosen() == OURS
    assert chosen(older) == older.shard_id
    assert chosen(older, there) == OURS
    assert chosen(older, there, waiting={older.shard_id}) == older.shard_id
    # An ingest that was stopped goes on where it has rows.
    assert chosen(older, there, written={older.shard_id}) == older.shard_id


def test_a_key_that_comes_with_the_values_of_two_shards_is_refused() -> None:
    rows = pa.record_batch({"id": [1, 2, 1, 2], "k": ["a", "b", "b", "b"]})
    with pytest.raises(Refused, match="in these rows, key k='b' has two values of id, by which"):
        router(key=("k",)).route(rows)
    assert len(router(key=("k", "id")).route(rows)) == 2
    assert len(router(key=("k",)).route(rows.slice(2, 1))) == 1


def test_a_row_that_deletes_needs_the_value_that_its_key_has() -> None:
    rows = pa.record_batch({"id": pa.array([1, None], pa.int64()), "k": ["a", "b"]})
    gone = pa.array([False, True])
    with pytest.raises(Usage, match="a row that deletes has no 'id', by which rows go to shards"):
        router(key=("k",)).route(rows, gone)
    assert len(router(key=("k",)).route(rows, pa.array([True, False]))) == 2
    assert len(router(key=("k",)).route(rows)) == 2
    assert len(router(key=("k", "id")).route(rows, gone)) == 2


@pytest.mark.parametrize("written", [False, True])
def test_a_value_whose_rows_wait_in_two_shards_is_refused(written: bool) -> None:
    there, older = manifest(OURS, shard_spec_id=3), manifest(7, **of_one())
    waiting = {OURS} if written else {OURS, older.shard_id}
    with pytest.raises(Refused, match=rf"wait in shard ({OURS}|{older.shard_id}) too"):
        chosen(there, older, waiting=waiting, written={older.shard_id} if written else ())


def test_shards_are_contested_whose_values_another_holds_too() -> None:
    there, older, again = manifest(OURS), manifest(7, **of_one()), manifest(8, **of_one())
    others = (
        manifest(9, **of_one(shard_spec_id=2)),
        manifest(10, shard_spec_id=3, shard_field_entries=(("who", b"other"),)),
        manifest(11, shard_spec_id=3),
    )
    for alone in (there, older):
        assert router(alone, *others).find_contested() == set()
    assert router(there, older, *others).find_contested() == {OURS, older.shard_id}
    assert router(older, again, *others).find_contested() == {older.shard_id, again.shard_id}
    # Rows may be staged for a shard that was not made before another one came.
    staged = Place(shard_id=older.shard_id, values=OF_ONE)
    assert router(there, *others).find_contested([staged]) == {OURS, older.shard_id}
    # Without a key, rows may wait anywhere.
    assert router(there, older, key=()).find_contested([staged]) == set()


def test_a_shard_with_another_value_s_id_is_refused() -> None:
    with pytest.raises(Refused, match="but its id is that of"):
        chosen(manifest(OURS, shard_spec_id=3, shard_field_entries=(("who", b"other"),)))


@pytest.mark.integration
@pytest.mark.parametrize(
    "spec",
    [
        {"bucket_column": "id", "num_buckets": 8},
        {"bucket_column": "note", "num_buckets": 5},
        {"identity_column": "n"},
        {"unsharded": True},
        {},
    ],
    ids=str,
)
def test_values_are_those_of_pylance(tmp_path, spec) -> None:
    table = make(tmp_path / "t", **spec)
    rows = pa.concat_tables([rows_of(range(50), n) for n in range(3)]).combine_chunks()
    [batch] = rows.to_batches()
    found = table.router().route(batch)
    assert sorted(i for r in found for i in r.indices.to_pylist()) == list(range(150))
    specs = table.dataset.mem_wal_index_details()["sharding_specs"]
    if not specs:
        assert [routed.place.values for routed in found] == [ShardValues(spec_id=0)]
        return
    theirs = evaluate_sharding_spec(batch, specs[0], table.dataset.lance_schema).to_pylist()
    groups = {tuple({str(theirs[i]) for i in r.indices.to_pylist()}) for r in found}
    assert all(len(group) == 1 for group in groups)
    assert len(groups) == len(found) == len({str(value) for value in theirs})
