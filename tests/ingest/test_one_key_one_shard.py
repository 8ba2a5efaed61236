"""Rows of one key in two shards have no order: an ingest goes to the one that has them, or not."""

from __future__ import annotations

import json
from dataclasses import replace

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.dataset import Index
from typer.testing import CliRunner

import memwal.ingest.routing
from memwal.cli.app import app
from memwal.errors import Refused, Unsupported
from memwal.format._generated import memwal_pb2 as pb
from memwal.ingest import open_writer
from memwal.ingest.routing import Place, ShardValues, derive_id
from memwal.ingest.target import IngestTable
from memwal.model import ShardId
from memwal.read import open_table
from memwal.rows.keyset import find_shared_key
from tests.ingest.test_ingest_exactly_once import ingest, stop_at
from tests.support.ingest_tables import MemWalTable, make, rows_of, wal_rows
from tests.support.staged_ingests import ingest as ingest_staged
from tests.support.staged_ingests import source_of, staged

pytestmark = pytest.mark.integration

BUCKETS = {"bucket_column": "id", "num_buckets": 3}
HAND_MADE = ShardId("0a7cbb0e-3f5e-4a2c-8a37-3f4d0b6d9a55")


def entry_of(value: int) -> ShardValues:
    return ShardValues(spec_id=1, entries=(("bucket", value.to_bytes(8, "little")),))


def put(table: MemWalTable, shard: str, rows: pa.Table, *, closed: bool = True) -> None:
    """Write as pylance's and LanceDB's writers do: the shard says nothing of its values."""
    writer = table.dataset.mem_wal_writer(shard)
    writer.put(rows)
    if closed:
        writer.close()


def merged(table: MemWalTable) -> None:
    done = CliRunner().invoke(app, ["merge", table.uri, "--engine", "local", "--json"])
    assert done.exit_code == 0, done.stdout


def source(tmp_path, rows: pa.Table) -> str:
    path = tmp_path / "source.parquet"
    pq.write_table(rows, path)
    return str(path)


@pytest.mark.parametrize("closed", [True, False], ids=["generation", "WAL only"])
@pytest.mark.parametrize("spec", [BUCKETS, {}, {"unsharded": True}, {"identity_column": "id"}])
def test_rows_in_a_shard_of_which_nobody_knows_the_values(tmp_path, spec, closed) -> None:
    table = make(tmp_path / "t", **spec)
    path = source(tmp_path, rows_of([1], 7))
    put(table, HAND_MADE, rows_of([1], 5), closed=closed)
    before = wal_rows(table)
    for arguments in (["--dry-run"], []):
        done = ingest(table, path, "--json", *arguments)
        assert (done["exit_code"], done["tables"][0]["outcome"]) == (5, "refused")
        told = "rows that are not merged are in 1 shard, and nothing tells for which values"
        assert f"{told} they are ({HAND_MADE})" in done["tables"][0]["error"]
    with pytest.raises(Refused, match=HAND_MADE):
        open_writer(table.uri)
    assert wal_rows(table) == before
    assert not (tmp_path / "t" / "_maintenance" / "ingest").exists()
    # Merged, they are in no one's way; nor is the shard that is named.
    if closed:
        done = ingest(table, path, "--json", "--merge")
        assert (done["exit_code"], done["tables"][0]["merges"]) == (0, 2)
        assert table.dataset.to_table().to_pylist() == rows_of([1], 7).to_pylist()
    done = ingest(table, path, "--json", "--shard", HAND_MADE)
    assert (done["exit_code"], done["tables"][0]["shards"][0]["shard_id"]) == (0, HAND_MADE)
    assert table.read() == {1: (7, "1-7")}


def test_rows_without_a_key_have_no_order_to_keep(tmp_path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([field.remove_metadata() for field in rows_of([]).schema])
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal(**BUCKETS)
    table = MemWalTable(uri=uri, options={})
    put(table, HAND_MADE, rows_of([1], 5).cast(schema))
    assert ingest(table, source(tmp_path, rows_of([1], 7)), "--json")["exit_code"] == 0
    assert open_table(uri).read().read_all().num_rows == 2


def test_a_shard_that_was_opened_for_nothing_is_in_no_one_s_way(tmp_path) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    for _ in range(2):
        table.dataset.mem_wal_writer(HAND_MADE).close()
    assert ingest(table, source(tmp_path, rows_of([1])), "--json")["exit_code"] == 0


@pytest.mark.parametrize("closed", [True, False], ids=["generation", "WAL only"])
def test_an_id_that_was_made_from_a_row_s_value_tells_what_is_in_it(tmp_path, closed) -> None:
    """Shards of an identity spec: as many as there are values, and LanceDB's don't name theirs."""
    table = make(tmp_path / "t", identity_column="id")
    [spec] = table.stores.views.table().mem_wal.shard_specs
    ids = {n: derive_id(table.router().spec, entry_of(n)) for n in (1, 2)}
    assert spec.fields[0].field_id == "bucket" and len(set(ids.values())) == 2
    for n, shard in ids.items():
        put(table, shard, rows_of([n], 5), closed=closed)
    done = ingest(table, source(tmp_path, rows_of([1], 7)), "--json")
    assert [shard["shard_id"] for shard in done["tables"][0]["shards"]] == [ids[1]]
    assert table.read() == {1: (7, "1-7"), 2: (5, "2-5")}


def test_a_manifest_that_can_not_be_read_may_be_of_any_value(tmp_path) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    path = source(tmp_path, rows_of([1]))
    put(table, HAND_MADE, rows_of([1], 5))
    for manifest in (tmp_path / "t" / "_mem_wal" / HAND_MADE / "manifest").iterdir():
        manifest.write_bytes(b"torn")
    done = ingest(table, path, "--json")
    assert done["exit_code"] == 5 and HAND_MADE in done["tables"][0]["error"]


def under_older_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memwal.ingest.routing, "derive_id", lambda spec, values: values.own_id)


def two_ids_of(table: MemWalTable, key: int) -> tuple[Place, ShardId]:
    """Where an older memwal puts a key, and a LanceDB client."""
    [batch] = rows_of([key]).to_batches()
    with pytest.MonkeyPatch.context() as older:
        under_older_ids(older)
        router = table.router()
        [routed] = router.route(batch)
    return routed.place, derive_id(router.spec, routed.place.values)


def put_by_older(table: MemWalTable, place: Place, rows: pa.Table, *, closed: bool = True) -> None:
    writer = table.writers().open(place.shard_id, place.values.spec_id, place.values.entries)
    writer.put(rows)
    if closed:
        writer.close()


@pytest.mark.parametrize("theirs_closed", [True, False], ids=["generation", "WAL only"])
@pytest.mark.parametrize("older_closed", [True, False], ids=["generation", "WAL only"])
def test_a_value_whose_rows_wait_under_an_older_id_and_lancedb_s(
    tmp_path, older_closed, theirs_closed
) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    path = source(tmp_path, rows_of([1], 7))
    place, theirs = two_ids_of(table, 1)
    put_by_older(table, place, rows_of([1], 5), closed=older_closed)
    put(table, theirs, rows_of([1], 6), closed=theirs_closed)
    before = wal_rows(table)
    for arguments in (["--dry-run"], []):
        done = ingest(table, path, "--json", *arguments)
        assert done["exit_code"] == 5
        assert f"wait in shard {place.shard_id} too" in done["tables"][0]["error"]
    with pytest.raises(Refused, match="wait in shard"), open_writer(table.uri) as writer:
        writer.write(rows_of([1], 7))
    assert wal_rows(table) == before


@pytest.mark.parametrize("closed", [True, False], ids=["generation", "WAL only"])
def test_rows_follow_those_that_wait_under_an_older_id(tmp_path, closed) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    place, theirs = two_ids_of(table, 1)
    put(table, theirs, rows_of([1], 5))
    merged(table)
    put_by_older(table, place, rows_of([1], 6), closed=closed)
    done = ingest(table, source(tmp_path, rows_of([1], 7)), "--json")
    assert [shard["shard_id"] for shard in done["tables"][0]["shards"]] == [place.shard_id]
    assert table.read() == {1: (7, "1-7")}


@pytest.mark.parametrize("older_is_broken", [True, False])
def test_a_value_of_which_one_shard_can_not_be_read(tmp_path, older_is_broken) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    path = source(tmp_path, rows_of([1], 7))
    place, theirs = two_ids_of(table, 1)
    put_by_older(table, place, rows_of([1], 5))
    put(table, theirs, rows_of([1], 6))
    broken = place.shard_id if older_is_broken else theirs
    for manifest in (tmp_path / "t" / "_mem_wal" / broken / "manifest").iterdir():
        manifest.write_bytes(b"torn")
    before = sorted((tmp_path / "t" / "_mem_wal").rglob("*"))
    for arguments in (["--dry-run"], []):
        done = ingest(table, path, "--json", *arguments)
        assert done["exit_code"] == 5
        assert f"shard {broken} can't be read" in done["tables"][0]["error"]
    with pytest.raises(Refused, match=broken), open_writer(table.uri) as writer:
        writer.write(rows_of([1], 7))
    # Rows that were staged before it broke, for the shard that can still be read.
    view = table.stores.views.table()
    readable = theirs if older_is_broken else place.shard_id
    with pytest.raises(Refused, match=broken):
        IngestTable.read(table.stores, view, None).check_shards([replace(place, shard_id=readable)])
    assert sorted((tmp_path / "t" / "_mem_wal").rglob("*")) == before


def test_of_two_shards_of_a_value_what_was_opened_for_nothing_holds_no_rows(tmp_path) -> None:
    table = make(tmp_path / "t", **BUCKETS)
    place, theirs = two_ids_of(table, 1)
    put_by_older(table, place, rows_of([1], 5))
    merged(table)
    put(table, theirs, rows_of([1], 6))
    merged(table)
    for shard in (place.shard_id, theirs):
        table.dataset.mem_wal_writer(shard).close()
    done = ingest(table, source(tmp_path, rows_of([1], 7)), "--json")
    assert [shard["shard_id"] for shard in done["tables"][0]["shards"]] == [theirs]
    assert table.read() == {1: (7, "1-7")}


def test_a_shard_for_which_rows_are_staged_and_one_that_came_since(tmp_path, monkeypatch) -> None:
    """The shard of the plan is not made yet: the other is the only one that has the value."""
    table = make(tmp_path / "t", **BUCKETS)
    path = source_of(tmp_path)
    with monkeypatch.context() as older:
        under_older_ids(older)
        staged(table, path, older)
    place, theirs = two_ids_of(table, 1)
    put(table, theirs, rows_of([1], 5), closed=False)
    done = ingest_staged(table, path)
    assert done["exit_code"] == 5
    assert f"go to shard {place.shard_id} wait in shard {theirs} too" in done["error"]
    put(table, theirs, rows_of([1], 5))
    merged(table)
    assert ingest_staged(table, path)["exit_code"] == 0


@pytest.mark.parametrize("progress_seconds", [0.0, 1e9])
def test_an_ingest_that_began_under_older_ids_is_finished_there(
    tmp_path, monkeypatch, stalled, progress_seconds
) -> None:
    """memwal had ids of its own for every spec once. No row is written twice, none is lost."""
    table = make(tmp_path / "t", **BUCKETS)
    ids = [n * 7 % 50 for n in range(300)]
    rows = rows_of(ids).set_column(1, "n", pa.array(range(300)))
    arguments = [source(tmp_path, rows), "--json", "--rows-per-chunk", "40"]
    with monkeypatch.context() as older:
        under_older_ids(older)
        stop_at(older, 20, progress_seconds)
        assert ingest(table, *arguments)["exit_code"] == 1
    begun = {shard for shard, found in wal_rows(table).items() if found}
    assert len(begun) == 3
    # A LanceDB client has written one of these keys meanwhile, to its own shard of that value.
    _, theirs = two_ids_of(table, 0)
    for closed in (False, True):
        put(table, theirs, rows_of([0], -1), closed=closed)
        done = ingest(table, *arguments)
        assert done["exit_code"] == 5
        assert f"wait in shard {theirs} too" in done["tables"][0]["error"]
    merged(table)
    done = ingest(table, *arguments)
    assert (done["exit_code"], done["tables"][0]["resumed"]) == (0, True)
    assert {shard["shard_id"] for shard in done["tables"][0]["shards"]} == begun
    found = wal_rows(table)
    assert sorted(row[2] for shard in begun for row in found[shard]) == list(range(300))


# ---- noticed where the keys of several shards are in hand

OTHER = ShardId("0b7cbb0e-3f5e-4a2c-8a37-3f4d0b6d9a55")


@pytest.fixture
def shared(tmp_path) -> MemWalTable:
    """Key 2 waits in two shards."""
    table = make(tmp_path / "shared", **BUCKETS)
    put(table, HAND_MADE, rows_of([1, 2], 5))
    put(table, OTHER, rows_of([2, 3], 6))
    return table


def warnings_of(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stdout
    return json.loads(done.stdout)["tables"][0]["warnings"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], True),
        (["--filter", "n = 6"], True),
        (["--limit", "3"], True),
        (["--key", "id=2"], True),
        (["--key", "id=1"], False),
    ],
    ids=str,
)
def test_a_read_tells(shared, arguments, told) -> None:
    found = warnings_of("read", shared.uri, *arguments)
    assert len(found) == told
    for text in found:
        assert f"key id=2 waits in two shards, {HAND_MADE} and {OTHER}" in text
    shown = CliRunner().invoke(app, ["read", shared.uri, *arguments]).stdout
    assert ("warning: " in shown) == told


def test_programs_that_read_are_told(shared) -> None:
    with pytest.warns(UserWarning, match="key id=2 waits in two shards"):
        assert open_table(shared.uri).read().read_all().num_rows == 4


def test_a_read_by_a_policy_tells(shared, tmp_path) -> None:
    config = tmp_path / "memwal.toml"
    config.write_text(f'[tables.t]\nuri = "{shared.uri}"\n[tables.t.policy.columns]\nn = "sum"\n')
    empty = source(tmp_path, rows_of([]))
    done = CliRunner().invoke(
        app, ["ingest", "t", empty, "--shard", HAND_MADE, "--config", str(config), "--json"]
    )
    assert done.exit_code == 0, done.stdout
    [found] = warnings_of("read", "t", "--config", str(config))
    assert f"key id=2 waits in two shards, {HAND_MADE} and {OTHER}" in found


def test_a_merge_tells_and_merges_one_by_one(shared) -> None:
    found = warnings_of("merge", shared.uri, "--engine", "local")
    assert [text for text in found if "key id=2 waits in two shards" in text] == found != []
    assert shared.read().keys() == {1, 2, 3}
    assert warnings_of("read", shared.uri) == []


@pytest.mark.parametrize("keys", [["id"], ["id", "name"]], ids=str)
def test_keys_are_compared_between_shards_only(keys) -> None:
    def table(*rows: tuple[int, str]) -> pa.Table:
        return pa.table({"id": [r[0] for r in rows], "name": [r[1] for r in rows]})

    first, second = table((1, "a"), (1, "a"), (2, "b")), table((3, "c"))
    assert find_shared_key({HAND_MADE: [first, first], OTHER: [second]}, keys) is None
    assert find_shared_key({HAND_MADE: [first]}, keys) is None
    found = find_shared_key({HAND_MADE: [first], OTHER: [second, table((2, "c"))]}, keys)
    assert (found is None) == (len(keys) == 2)
    found = find_shared_key({OTHER: [second], HAND_MADE: [table((3, "c"))]}, keys)
    assert found is not None and found.shards == (OTHER, HAND_MADE)
    assert found.key == ("id=3" if len(keys) == 1 else "id=3, name='c'")


def test_a_table_with_two_shard_specs(tmp_path) -> None:
    """pylance opens no writer for it, and says so only when a shard was made."""
    table = make(tmp_path / "t", **BUCKETS)
    add_spec(table)
    path = source(tmp_path, rows_of(range(9)))
    for arguments in (["--dry-run"], [], ["--shard", HAND_MADE]):
        done = ingest(table, path, "--json", *arguments)
        assert (done["exit_code"], done["tables"][0]["outcome"]) == (7, "refused")
        assert "the table has 2 shard specs" in done["tables"][0]["error"]
    assert not (tmp_path / "t" / "_mem_wal").exists()
    assert not (tmp_path / "t" / "_maintenance" / "ingest").exists()


def test_two_shard_specs_where_shards_are_there_already(tmp_path) -> None:
    """What opens a writer all the same is told that it can't be: trying again would be in vain."""
    table = make(tmp_path / "t", **BUCKETS)
    put(table, HAND_MADE, rows_of([1], 5), closed=False)
    add_spec(table)
    with pytest.raises(Unsupported, match="at most one sharding spec"):
        table.writers().open(HAND_MADE)
    done = CliRunner().invoke(app, ["rescue", table.uri, "--idle", "0s", "--yes", "--json"])
    assert done.exit_code == 7, done.stdout


def add_spec(table: MemWalTable) -> None:
    """Give the table a second shard spec: no client does so today, the format lets it."""
    state = table.stores.views.table().mem_wal
    details = pb.MemWalIndexDetails.FromString(state.raw)
    details.shard_specs.add().CopyFrom(details.shard_specs[0])
    details.shard_specs[1].spec_id = 2
    entry = Index(
        uuid=state.index_uuid,
        name="__lance_mem_wal",
        fields=[],
        dataset_version=table.dataset.version,
        fragment_ids=set(),
        index_version=0,
        index_details=("/lance.table.MemWalIndexDetails", details.SerializeToString()),
    )
    operation = lance.LanceOperation.CreateIndex(new_indices=[entry], removed_indices=[])
    lance.LanceDataset.commit(table.dataset, operation, read_version=table.dataset.version)
