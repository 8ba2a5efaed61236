"""The shard snapshot on real tables: rows come back, progress is never lowered."""

from __future__ import annotations

import json
import uuid
from datetime import date, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.errors import LeaseHeld, Refused
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.plan import (
    SnapshotLimits,
    SnapshotTableReport,
    Storage,
    collect_manifests,
    resolve_specs,
)
from memwal.jobs.snapshot.store import snapshot_schema, to_lance_bytes, to_table
from memwal.model import (
    ColumnInfo,
    FlushedGeneration,
    ShardField,
    ShardId,
    ShardManifest,
    ShardSpec,
)
from memwal.run.stores import open_stores
from memwal.sharding.spec import encode_value
from memwal.store.records.lease import StoredLeases
from tests.support import snapshot_files
from tests.support.builders import Put, Table, check_versions, make_table
from tests.support.nursery import run_memwal
from tests.support.s3server import S3Server
from tests.support.views import make_state, make_view

pytestmark = pytest.mark.integration


def small_table(place: object, options: dict[str, str] | None = None, shards: int = 2) -> Table:
    table = make_table(place, rows=range(10), shards=shards, options=options)
    for number, shard in enumerate(table.shards):
        table.flush(shard, Put([100 + 10 * number, 101 + 10 * number], number))
        table.flush(shard, Put([100 + 10 * number], 50 + number))
    return table


def refresh(table: Table, **settings: object) -> SnapshotTableReport:
    return snapshot_files.refresh(table.stores, **settings)


def stored_rows(table: Table) -> object:
    return snapshot_files.stored_rows(table.stores)


def manifest_rows(table: Table) -> tuple[object, ...]:
    return tuple(map(snapshot_files.row_of, collect_manifests(table.stores.views.table())))


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "local":
        return small_table(tmp_path / "t")
    server: S3Server = request.getfixturevalue("s3_server")
    return small_table(f"s3://{server.make_bucket()}/t", server.storage_options)


def test_inline_rows_come_back(table: Table) -> None:
    before = int(table.dataset.version)
    result = refresh(table)
    assert (result.outcome, result.storage, result.num_shards) == ("done", "inline", 2)
    assert stored_rows(table) == manifest_rows(table)
    state = table.stores.views.mem_wal(int(table.dataset.version))
    assert state.num_shards == 2
    assert state.snapshot_ts_millis > 0
    check_versions(table, before)
    assert refresh(table).outcome == "nothing_to_do"
    # Everything else still works on the table.
    assert {m.outcome for m in table.merge_all()} == {"done"}
    table.flush(table.shards[0], Put([7], 7))
    assert refresh(table).outcome == "done"
    assert stored_rows(table) == manifest_rows(table)
    check_versions(table, before)


def test_external_file_above_the_threshold(table: Table) -> None:
    limits = SnapshotLimits(inline_shards_max=1)
    assert refresh(table, limits=limits).storage == "external"
    state = table.stores.views.mem_wal(int(table.dataset.version))
    assert state.inline_snapshots is None
    assert table.stores.objects.exists(f"_indices/{state.index_uuid}/index.lance")
    assert stored_rows(table) == manifest_rows(table)
    assert refresh(table, limits=limits).outcome == "nothing_to_do"
    # A merge renews the uuid: the file lost its entry, which reads as absent, not as an error.
    table.merge_all()
    assert stored_rows(table) is None
    table.dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert refresh(table, limits=limits).outcome == "done"
    assert stored_rows(table) == manifest_rows(table)


def test_a_merge_between_read_and_commit_is_repaired(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    before = int(table.dataset.version)
    merged: list[str] = []

    def steps(step: str) -> None:
        if step == "commit" and not merged:
            merged.extend(m.outcome for m in table.merge_all())

    result = refresh(table, steps=steps)
    assert merged == ["done", "done"]
    assert result.repairs == 1
    assert table.progress() == dict.fromkeys(table.shards, 2)
    state = table.stores.views.mem_wal(int(table.dataset.version))
    assert state.num_shards == 2
    assert stored_rows(table) == manifest_rows(table)
    # While progress was too low, readers read generations once more: the same rows.
    truth = table.truth()
    for version in (v for v in table.versions() if v > before):
        assert table.lsm_rows(version).keys() == truth.keys()
    assert table.base_rows().keys() == truth.keys()


@pytest.mark.parametrize("landed", [False, True])
def test_a_user_s_restore_is_not_undone(tmp_path: Path, landed: bool) -> None:
    """Before its commit, which Lance refuses then, or after it, before the repair."""
    table = small_table(tmp_path / "t")
    before, unmerged = int(table.dataset.version), table.base_rows()
    done: list[object] = []

    def steps(step: str) -> None:
        if step == "commit" and not done:
            done.extend(table.merge_all())
        if step == ("repair" if landed else "commit") and len(done) == 2:
            done.append(lance.dataset(table.uri, version=before).restore())

    result = refresh(table, steps=steps)
    assert (result.outcome, len(done)) == ("done", 3)
    assert table.progress() == {}
    assert table.base_rows() == unmerged
    assert table.lsm_rows().keys() == table.truth().keys()
    assert stored_rows(table) == manifest_rows(table)


def test_merges_that_keep_landing_are_all_kept(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t", shards=3)
    waiting = list(table.shards)

    def steps(step: str) -> None:
        if step == "commit" and waiting:
            shard = waiting.pop()
            assert table.merger().run(shard, MergeRequest()).outcome == "done"

    result = refresh(table, steps=steps)
    assert result.repairs >= 1
    assert not waiting
    assert table.progress() == dict.fromkeys(table.shards, 2)


def test_a_lost_lease_stops_it_before_the_commit(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    stores = table.stores
    leases = StoredLeases(stores.objects, stores.clock)
    claim = leases.acquire("snapshot")
    leases.break_("test")
    version = int(table.dataset.version)
    with pytest.raises(LeaseHeld):
        refresh(table, before_commit=lambda: leases.check(claim.token))
    assert int(table.dataset.version) == version


def test_a_broken_shard_is_not_hidden(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    stores = table.stores
    latest = stores.shard_manifests.versions(table.shards[0])[-1]
    folder = tmp_path / "t" / "_mem_wal" / table.shards[0] / "manifest"
    newest = max(folder.glob("*.binpb"), key=lambda p: int(p.stem[::-1], 2))
    newest.write_bytes(newest.read_bytes()[:10])
    version = int(table.dataset.version)
    with pytest.raises(Refused, match=table.shards[0]):
        refresh(table)
    assert int(table.dataset.version) == version
    assert latest > 0


def test_garbage_where_a_snapshot_should_be_is_replaced(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    stores = table.stores
    version = stores.views.table_version()
    snapshot_files.store_of(stores).commit(
        version=version,
        state=stores.views.mem_wal(version),
        index_uuid=str(uuid.uuid4()),
        data=b"not a Lance file",
        storage=Storage.INLINE,
        num_shards=2,
        taken_at_millis=1,
        merged={},
    )
    assert refresh(table).outcome == "done"
    assert stored_rows(table) == manifest_rows(table)
    assert refresh(table).outcome == "nothing_to_do"


def run_command(*arguments: str) -> tuple[int, dict]:
    done = run_memwal(*arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def test_the_stored_columns_are_the_spec_s() -> None:
    """Names, types and values, written down here, of the file that a snapshot is."""
    generation = FlushedGeneration(generation=7, path="0a1b2c3d_gen_7")
    manifest = ShardManifest(
        shard_id=ShardId("00112233-4455-4677-8899-aabbccddeeff"), version=2, shard_spec_id=3,
        writer_epoch=4, replay_after_wal_entry_position=5, wal_entry_position_last_seen=6,
        current_generation=8, flushed_generations=(generation,),
    )  # fmt: skip
    stored = snapshot_files.from_lance_bytes(to_lance_bytes(to_table([manifest], [])))
    flushed = pa.list_(pa.struct([("generation", pa.uint64()), ("path", pa.string())]))
    assert stored.schema.equals(
        pa.schema(
            [
                ("shard_id", pa.binary(16)),
                ("version", pa.uint64()),
                ("shard_spec_id", pa.uint32()),
                ("writer_epoch", pa.uint64()),
                ("replay_after_wal_entry_position", pa.uint64()),
                ("wal_entry_position_last_seen", pa.uint64()),
                ("current_generation", pa.uint64()),
                ("flushed_generations", flushed),
            ]
        )
    )
    (row,) = stored.to_pylist()
    assert list(row.values()) == [
        bytes.fromhex("00112233445546778899aabbccddeeff"), 2, 3, 4, 5, 6, 8,
        [{"generation": 7, "path": "0a1b2c3d_gen_7"}],
    ]  # fmt: skip


def test_a_column_for_each_field_of_the_shard_spec(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field(
                "id",
                pa.int64(),
                nullable=False,
                metadata={"lance-schema:unenforced-primary-key": "true"},
            )
        ]
    )
    dataset = lance.write_dataset(pa.table({"id": [1]}, schema=schema), str(tmp_path / "b"))
    dataset.initialize_mem_wal(bucket_column="id", num_buckets=4)
    stores = open_stores(str(tmp_path / "b"), {})
    specs = stores.views.mem_wal(stores.views.table_version()).shard_specs
    field = snapshot_schema(specs).field("region_field_bucket")
    assert str(field.type) == "int32"
    for number, values in enumerate([(("bucket", b"\3\0\0\0"),), ()]):
        shard = ShardId(f"00000000-0000-4000-8000-{number:012}")
        first = ShardManifest(
            shard_id=shard, version=1, writer_epoch=1, current_generation=1, shard_spec_id=1,
            shard_field_entries=values,
        )  # fmt: skip
        stores.shard_manifests.commit(None, first)
    assert snapshot_files.refresh(stores).outcome == "done"
    stored = snapshot_files.stored_rows(stores)
    assert stored is not None
    assert {row["shard_id"][-1]: row["region_field_bucket"] for row in stored} == {0: 3, 1: None}
    assert {row["shard_spec_id"] for row in stored} == {1}


def test_shard_values_have_the_types_of_the_spec() -> None:
    day = pa.scalar(date(2026, 2, 3))
    fields = (
        ShardField(field_id="day", source_ids=(2,), transform="identity"),
        ShardField(field_id="year", source_ids=(2,), transform="year"),
        ShardField(field_id="said", source_ids=(1,), transform="identity", result_type="utf8"),
        ShardField(field_id="gone", source_ids=(9,), transform="identity"),
    )
    columns = (
        ColumnInfo(field_id=0, name="id", type_text="int64", nullable=False),
        ColumnInfo(
            field_id=1,
            name="at",
            type_text="struct<day: date32[day]>",
            nullable=True,
            children=(ColumnInfo(field_id=2, name="day", type_text="date32[day]", nullable=True),),
        ),
    )
    values = {"day": encode_value(day), "year": encode_value(pa.scalar(2026, pa.int32()))}
    manifest = ShardManifest(
        shard_id=ShardId(str(uuid.uuid4())),
        version=1,
        writer_epoch=1,
        current_generation=1,
        shard_spec_id=1,
        shard_field_entries=(*values.items(), ("said", b"abc"), ("gone", b"\1\2")),
    )
    state = make_state(shard_specs=(ShardSpec(spec_id=1, fields=fields),))
    view = make_view(state=state, columns=columns)
    stored = to_table([manifest], resolve_specs(view)).select(range(8, 12))
    assert {f.name.removeprefix("region_field_"): str(f.type) for f in stored.schema} == {
        "day": "date32[day]", "year": "int32", "said": "string", "gone": "binary",
    }  # fmt: skip
    assert [column.to_pylist() for column in stored] == [
        [date(2026, 2, 3)], [2026], ["abc"], [b"\1\2"],
    ]  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    code, dry = run_command("snapshot", table.uri, "--dry-run")
    assert (code, dry["outcome"], dry["dry_run"]) == (0, "done", True)
    code, report = run_command("snapshot", table.uri)
    (found,) = report["tables"]
    assert (code, found["storage"], found["num_shards"], found["repairs"]) == (0, "inline", 2, 0)
    assert found["version_after"] == found["version_before"] + 1
    (again,) = run_command("snapshot", table.uri)[1]["tables"]
    assert (again["outcome"], again["storage"]) == ("nothing_to_do", "inline")
    code, status = run_command("status", table.uri)
    assert status["tables"][0]["snapshot"]["num_shards"] == 2
    assert status["tables"][0]["lease"]["state"] == "released"
    code, refused = run_command("snapshot", table.uri, "--no-lease")
    assert (code, refused["outcome"]) == (5, "refused")
    table.flush(table.shards[0], Put([3], 3))
    StoredLeases(table.stores.objects, table.stores.clock, holder="ann@host:1").acquire("merge")
    code, held = run_command("snapshot", table.uri)
    assert (code, held["outcome"]) == (4, "held")
    assert "ann@host:1" in held["tables"][0]["error"]
    code, merged = run_command("merge", table.uri)
    assert (code, merged["outcome"]) == (4, "held")
    assert table.progress() == {}
    code, broken = run_command("lease", "break", table.uri, "--reason", "ann is gone")
    assert (code, broken["tables"][0]["lease"]["state"]) == (0, "broken")
    code, merged = run_command("merge", table.uri)
    assert (code, merged["outcome"]) == (0, "done")
