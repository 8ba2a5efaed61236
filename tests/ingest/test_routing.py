from __future__ import annotations

import pyarrow as pa
import pytest
from ingest_tables import make, rows_of
from lance.mem_wal import evaluate_sharding_spec

from memwal.errors import Refused
from memwal.ingest.routing import Router, ShardValues, unlabelled
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus
from memwal.sharding.spec import Source, read_spec, spec_of

SOURCES = {0: Source(field_id=0, path=("id",), type=pa.int64())}
IDENTITY = {"field_id": "who", "source_ids": [0], "transform": "identity"}
HALF = bytes([1, 0, 0, 0, 0, 0, 0, 0])


def router(*manifests: ShardManifest) -> Router:
    spec = read_spec(spec_of({"spec_id": 3, "fields": [IDENTITY]}))
    return Router(spec=spec, sources=SOURCES, manifests=manifests)


def manifest(shard: int, **facts: object) -> ShardManifest:
    given = {"version": 1, "writer_epoch": 1, "current_generation": 1, **facts}
    shard_id = ShardId(f"00000000-0000-4000-8000-{shard:012}")
    return ShardManifest(shard_id=shard_id, **given)


def batch(*ids: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def test_ids_follow_from_spec_and_values() -> None:
    # Written down: two builds that disagree would split a value's rows over two shards.
    known = ShardValues(spec_id=1, entries=(("bucket", b"\3\0\0\0"),))
    assert known.shard_id == "1a2fc679-7eca-541c-b664-e54554e1c0e0"
    ids = {
        known.shard_id,
        ShardValues(spec_id=2, entries=known.entries).shard_id,
        ShardValues(spec_id=1, entries=(("bucket", b"\4\0\0\0"),)).shard_id,
        ShardValues(spec_id=1, entries=(("other", b"\3\0\0\0"),)).shard_id,
        ShardValues(spec_id=1, entries=(*known.entries, ("other", b""))).shard_id,
        ShardValues(spec_id=1).shard_id,
    }
    assert len(ids) == 6
    two = (("a", b"\1"), ("b", b"\2"))
    assert (
        ShardValues(spec_id=1, entries=two).shard_id
        == ShardValues(spec_id=1, entries=two[::-1]).shard_id
    )


@pytest.mark.parametrize(("text", "rule"), [("random()", 1), ("col0 + date_part('day', now())", 2)])
def test_an_expression_by_which_a_row_could_go_anywhere_is_refused(text: str, rule: int) -> None:
    said = {"field_id": "e", "source_ids": [0], "expression": text, "result_type": "float64"}
    spec = read_spec(spec_of({"spec_id": 3, "fields": [said]}))
    with pytest.raises(Refused, match=f"breaks rule {rule}"):
        Router(spec=spec, sources=SOURCES)


def test_a_sound_expression_is_routed_by_whatever_number_type_it_gives() -> None:
    said = {"field_id": "e", "source_ids": [0], "expression": "col0 % 2", "result_type": "int32"}
    spec = read_spec(spec_of({"spec_id": 3, "fields": [said]}))
    found = Router(spec=spec, sources=SOURCES).route(batch(1, 2, 3))
    assert [routed.indices.to_pylist() for routed in found] == [[0, 2], [1]]


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


def test_shards_that_do_not_say_what_they_hold() -> None:
    flushed = (FlushedGeneration(generation=1, path="0badcafe_gen_1"),)
    pending = manifest(1, flushed_generations=flushed)
    in_wal = manifest(2, wal_entry_position_last_seen=4)
    labelled = manifest(3, flushed_generations=flushed, shard_field_entries=(("who", HALF),))
    every = [pending, in_wal, labelled, manifest(4)]
    assert unlabelled(every, {}) == [pending.shard_id, in_wal.shard_id]
    assert unlabelled(every, {pending.shard_id: 1}) == [in_wal.shard_id]


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
