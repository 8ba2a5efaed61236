"""What a newer Lance may store is refused by name where it would be lost, and else kept.

On real tables, with real bytes in the places where a branch of Lance adds columns and fields.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from memwal.cli import app as cli_app
from memwal.format import codec, layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.jobs.merge.plan import MergeLimits
from memwal.model import ShardId
from memwal.store.tables.indexes import replace_mem_wal_entry
from tests.support import builders, wal_tables
from tests.support.builders import Delete, Put, Table

pytestmark = pytest.mark.integration

UNSUPPORTED, PARTLY = 7, 6
ROW_ID = "__wal_row_id"
# Field 100, three bytes.
FIELD = b"\xa2\x06\x03new"
COLLECT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention")


def memwal(command: str, table: Table, *arguments: str) -> Result:
    local = () if command in ("read", "rescue", "status", "ingest") else ("--engine", "local")
    return CliRunner().invoke(cli_app.app, [command, table.uri, *arguments, *local])


def check_refused(result: Result, *words: str) -> None:
    """The whole command is refused, for a reason that names these."""
    assert result.exit_code == UNSUPPORTED, result.output
    told = " ".join(result.stderr.split())
    for word in words:
        assert word in told, told


def stored_files(table: Table) -> dict[str, bytes]:
    root = Path(table.uri) / "_mem_wal"
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


# ---- a column of a generation


def add_generation(table: Table, shard: ShardId, *names: str) -> None:
    """A flushed row of key 7 with more columns than the table has."""
    schema = table.dataset.schema
    for name in names:
        schema = schema.append(pa.field(name, pa.uint64()))
    row = table.row(7, 5) | dict.fromkeys(names, 77)
    generation = builders.hand_written(table, shard, [row], schema=schema)
    builders.list_generations(table, shard, generation)


def test_a_column_of_a_generation_that_only_a_newer_lance_knows_is_refused(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4), shards=2)
    bad, good = table.shards
    table.flush(good, Put([11], 500))
    add_generation(table, bad, ROW_ID)
    before = stored_files(table)
    done = memwal("merge", table, "--json")
    assert done.exit_code == PARTLY
    shards = {s["shard_id"]: s for s in json.loads(done.stdout)["tables"][0]["shards"]}
    assert shards[good]["outcome"] == "done"
    assert all(word in shards[bad]["error"] for word in (bad, "_gen_1", ROW_ID, "MW-K11"))
    check_refused(memwal("merge", table, "--shard", bad), table.uri, bad, "_gen_1", ROW_ID)
    check_refused(memwal("read", table), bad, "_gen_1", ROW_ID)
    assert stored_files(table) == before
    assert memwal("garbage", table, *COLLECT).exit_code == 0
    assert before.items() >= {k: v for k, v in stored_files(table).items() if bad in k}.items()


MINE = pa.field("_mine", pa.uint64())


# ---- a column of a WAL entry


def add_column(table: Table, shard: ShardId, position: int, name: str, field_id: int) -> None:
    """Write an entry of the WAL again, with one more column."""
    file = wal_tables.entry_file(table, shard, position)
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        batches = list(stream)
        metadata = {"lance:field_id": str(field_id)}
        schema = stream.schema.append(pa.field(name, pa.uint64(), metadata=metadata))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as written:
        for batch in batches:
            more = pa.array(range(len(batch)), pa.uint64())
            written.write_batch(pa.RecordBatch.from_arrays([*batch.columns, more], schema=schema))
    file.write_bytes(out.getvalue())


def rescue(table: Table) -> Result:
    return memwal("rescue", table, "--yes", "--idle", "0s")


def ingest(table: Table, tmp_path: Path) -> Result:
    source = tmp_path / "rows.parquet"
    rows = pa.Table.from_pylist([table.row(9, 6)], schema=table.dataset.schema)
    pq.write_table(rows, source)
    return memwal("ingest", table, str(source), "--shard", table.shards[0])


def test_a_column_of_a_wal_entry_that_only_a_newer_lance_knows_is_refused(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    (shard,) = table.shards
    wal_tables.abandon(table, shard, Put([7, 8], 5))
    add_column(table, shard, 1, ROW_ID, 9)
    before = stored_files(table)
    entry = layout.wal_entry_path(shard, 1)
    check_refused(memwal("read", table, "--with-wal"), shard, "position 1", ROW_ID, "MW-K11")
    check_refused(rescue(table), shard, entry, ROW_ID, "MW-K11")
    check_refused(ingest(table, tmp_path), shard, entry, ROW_ID, "MW-K11")
    assert stored_files(table) == before


def test_a_wal_entry_with_a_column_of_the_tables_own_is_rescued(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4), columns=[MINE])
    (shard,) = table.shards
    wal_tables.abandon(table, shard, Put([7], 5, {"_mine": 1}))
    assert rescue(table).exit_code == 0
    assert memwal("merge", table).exit_code == 0
    builders.check_merged(table)


# ---- fields of the MemWAL index


def nest(raw: bytes) -> bytes:
    """An unknown field in an entry of the progress, and in a new shard spec."""
    details = pb.MemWalIndexDetails.FromString(raw)
    details.shard_specs.append(pb.ShardSpec.FromString(FIELD))
    return details.SerializeToString()


def add_to_index(table: Table, change: Callable[[bytes], bytes] = lambda raw: raw + FIELD) -> None:
    version = int(table.dataset.version)
    state = table.stores.views.mem_wal(version)
    replace_mem_wal_entry(
        table.stores.tables,
        version=version,
        index_uuid=str(uuid.uuid4()),
        created_at_millis=state.created_at_millis or 0,
        details=change(state.raw),
    )


def index_bytes(table: Table) -> bytes:
    return table.stores.views.mem_wal(int(table.dataset.version)).raw


@pytest.mark.parametrize("job", ["merge", "index-catchup", "compaction"])
def test_fields_of_the_index_that_lance_would_drop_are_refused(job: str, tmp_path: Path) -> None:
    # Where no index is behind, a compaction has nothing else to commit.
    table = builders.make_table(tmp_path / "t", rows=range(4), indexed=job != "compaction")
    for key in (7, 8):
        table.flush(table.shards[0], Put([key], 5))
        assert memwal("merge", table).exit_code == 0
    if job == "merge":
        table.flush(table.shards[0], Put([9], 5))
    add_to_index(table)
    version = int(table.dataset.version)
    words = (table.uri, f"version {version}", "MemWalIndexDetails.100", "MW-M10")
    check_refused(memwal(job, table), *words)
    if job == "merge":
        check_refused(memwal(job, table, "--dry-run"), *words)
    assert FIELD in index_bytes(table)
    assert int(table.dataset.version) == version


def test_fields_that_come_to_the_index_while_a_merge_runs_are_not_dropped(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    for key in (7, 8):
        table.flush(table.shards[0], Put([key], 5))

    def step(name: str) -> None:
        if name == "committed":
            add_to_index(table)

    limits = MergeLimits(generations_per_commit_max=1)
    (report,) = table.merge_all(steps=step, limits=limits)
    assert (report.outcome, report.to_generation) == ("partial", 1)
    assert "MW-M10" in (report.error or "")
    assert FIELD in index_bytes(table)


def test_a_table_with_unknown_fields_is_read_and_its_state_shown(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    table.flush(table.shards[0], Put([7], 5), Delete([1]))
    add_to_index(table, nest)
    assert memwal("read", table).exit_code == 0
    status = memwal("status", table)
    assert status.exit_code == 0
    assert "ShardSpec.100" in status.stdout and "MW-M10" in status.stdout
    check_refused(memwal("merge", table), "ShardSpec.100")


def test_fields_of_the_index_are_kept_by_what_memwal_rewrites_itself(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    table.flush(table.shards[0], Put([7], 5))
    assert memwal("merge", table).exit_code == 0
    add_to_index(table)
    assert memwal("snapshot", table).exit_code == 0
    assert FIELD in index_bytes(table)
    assert memwal("garbage", table, *COLLECT).exit_code == 0
    assert FIELD in index_bytes(table)


# ---- fields of a shard's manifest


def add_to_manifest(table: Table, shard: ShardId) -> None:
    """Unknown fields in the manifest, in its generations and in its field entries."""
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    message = pb.ShardManifest.FromString(manifest.raw + FIELD)
    for generation in message.flushed_generations:
        generation.MergeFromString(FIELD)
    message.shard_field_entries.add(field_id="bucket", value=b"\1").MergeFromString(FIELD)
    path = layout.shard_manifest_path(shard, manifest.version)
    (Path(table.uri) / path).write_bytes(message.SerializeToString())


def test_fields_of_a_manifest_that_a_writer_would_drop_are_refused(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    (shard,) = table.shards
    table.flush(shard, Put([7], 5))
    wal_tables.abandon(table, shard, Put([8], 5))
    add_to_manifest(table, shard)
    before = stored_files(table)
    words = (shard, "/manifest/", "ShardManifest.100", "FlushedGeneration.100", "MW-M10")
    check_refused(rescue(table), *words)
    check_refused(ingest(table, tmp_path), *words)
    assert stored_files(table) == before
    assert memwal("merge", table).exit_code == 0
    assert stored_files(table) == before


def test_fields_of_a_manifest_are_kept_when_garbage_rewrites_it(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(4))
    (shard,) = table.shards
    table.flush(shard, Put([7], 5))
    assert memwal("merge", table).exit_code == 0
    table.flush(shard, Put([8], 5))
    add_to_manifest(table, shard)
    assert memwal("garbage", table, *COLLECT).exit_code == 0
    after = table.stores.shard_manifests.latest(shard)
    assert after is not None
    assert [g.generation for g in after.flushed_generations] == [2]
    assert after.raw.count(FIELD) == 3
    places = ("ShardManifest", "FlushedGeneration", "ShardFieldEntry")
    assert after.unknown_fields == tuple(f"{place}.100" for place in places)
    # Other values for the entries take their unknown fields along: they belonged to the old ones.
    changed = codec.encode_shard_manifest(replace(after, shard_field_entries=(("bucket", b"\2"),)))
    assert changed.count(FIELD) == 2
