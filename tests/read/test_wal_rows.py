"""The unflushed rows of shards, against what pylance's writers acknowledged and replay."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import Corruption, Refused
from memwal.format import layout
from memwal.model import ShardId, ShardView, TableView
from memwal.read.store.wal_rows import Moved, StoredWalRows, UnflushedRows
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries, WalLimits
from tests.support import builders, wal_tables
from tests.support.builders import Delete, Put, Rows, Table
from tests.support.wal_tables import abandon, entry_file, rewrite

pytestmark = pytest.mark.integration


def reader(table: Table, limits: WalLimits | None = None) -> StoredWalRows:
    stores = table.stores
    return StoredWalRows(
        wal=WalEntries(stores.objects, limits),
        manifests=ShardManifests(stores.objects),
        field_ids=stores.views.field_ids,
    )


def schema_of(table: Table) -> Callable[[TableView], pa.Schema]:
    return lambda view: table.at(view.version).schema


def unflushed(table: Table, shard: ShardId | None = None, **options: Any) -> UnflushedRows:
    """The rows of one shard, in a view of now."""
    limits = options.pop("limits", None)
    view = options.pop("view", None) or table.stores.views.table()
    found = next(s for s in view.shards if s.shard_id == (shard or table.shards[0]))
    schema = table.at(view.version).schema
    return reader(table, limits).read_unflushed(view, found, schema, **options)


def overlaid(table: Table) -> Rows:
    """Base, the generations of one view, and its unflushed rows on top, by brute force."""
    view, unflushed_rows = reader(table).read_settled(table.stores.views.table, schema_of(table))
    rows = table.base_rows(view.version)
    for shard in view.shards:
        opened = [table.stores.tables.generation(shard.shard_id, g) for g in shard.pending]
        newest = unflushed_rows[shard.shard_id].rows
        for source in (*(dataset.to_table() for dataset in opened), newest):
            for row in source.to_pylist():
                key = tuple(row[name] for name in table.kind.names)
                if row.pop(layout.TOMBSTONE, False):
                    rows.pop(key, None)
                else:
                    rows[key] = row
    return rows


def test_nothing_is_unflushed_where_nobody_wrote_or_all_was_flushed(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    table.flush(shard, Put([1], 10))
    found = unflushed(table)
    assert (found.entries, found.rows_read, len(found.rows)) == (0, 0, 0)
    assert (found.first_position, found.last_position) == (2, 1)
    assert found.rows.schema.names == [*table.dataset.schema.names, layout.TOMBSTONE]


@pytest.mark.parametrize("kind", ["int64", "utf8", "binary", "utf8+int32", "bool+uint64"])
def test_newest_wins_tombstones_included(tmp_path: Path, kind: str) -> None:
    table = builders.make_table(tmp_path / "t", kind, rows=range(6))
    (shard,) = table.shards
    table.flush(shard, Put([0, 1, 6], 100), Delete([2]))
    abandon(table, shard, Put([1, 2, 2], 200), Delete([3]), Put([3, 7], 300), Delete([7, 0]))

    found = unflushed(table)

    assert (found.entries, found.rows_read) == (4, 8)
    assert sorted(map(str, found.rows.to_pylist())) == sorted(
        str(
            {**dict.fromkeys(table.dataset.schema.names), **(row or {}), layout.TOMBSTONE: not row}
            | dict(zip(table.kind.names, key, strict=True))
        )
        for key, row in table.effects[shard][-1].items()
    )
    assert found.rows[layout.TOMBSTONE].null_count == 0
    builders.same_rows(overlaid(table), table.truth(), "overlaid")


@pytest.mark.parametrize("seed", range(3))
def test_random_sessions_that_end_with_and_without_a_flush(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    # Small MemTables are frozen in mid-session, and flushed behind the writer's back.
    options = [{}, {"max_memtable_rows": 4}][seed % 2]
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2)
    fresh = builders.numbers()
    for turn in range(6):
        # One key, one shard: even keys here, odd ones there.
        for parity, shard in enumerate(table.shards):
            keys = [2 * chance.randrange(15) + parity for _ in range(6)]
            ops = [Put(keys[:3], next(fresh)), Delete(keys[3:5]), Put(keys[5:], next(fresh))]
            chance.shuffle(ops)
            if chance.random() < 0.5:
                # The next writer replays what the last one left, and goes on in its generation.
                abandon(table, shard, *ops, **options)
            else:
                table.flush(shard, *ops)
        builders.same_rows(overlaid(table), table.truth(), f"turn {turn}")
    # What a replay of pylance's own makes of the rest is the same.
    for shard in table.shards:
        with table.writer(shard, **options):
            pass
    builders.same_rows(table.lsm_rows(), table.truth(), "replayed")
    assert all(unflushed(table, shard).entries == 0 for shard in table.shards)


def test_columns_are_projected_with_the_key(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    abandon(table, table.shards[0], Put([1, 2], 10))
    found = unflushed(table, columns=["text"])
    assert found.rows.schema.names == ["k", "text", layout.TOMBSTONE]


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None]),
    "f16": (pa.float16(), [1.5, None]),
    "large": (pa.large_string(), ["a", None]),
    "blob": (pa.large_binary(), [b"a", None]),
    "fixed": (pa.binary(3), [b"abc", None]),
    "date": (pa.date32(), [1, None]),
    "ts": (pa.timestamp("us"), [1, None]),
    "tz": (pa.timestamp("ns", "UTC"), [1, None]),
    "time": (pa.time64("us"), [1, None]),
    "dur": (pa.duration("us"), [1, None]),
    "dec": (pa.decimal128(10, 2), [1, None]),
    "dec256": (pa.decimal256(50, 2), [1, None]),
    "dict": (pa.dictionary(pa.int32(), pa.string()), ["x", None]),
    "list": (pa.list_(pa.int64()), [[1, None], None]),
    "large_list": (pa.large_list(pa.string()), [["a"], None]),
    "structs": (pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())])), [[{"a": 1}], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    "fsl": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None]),
}


def test_every_type_comes_back_as_it_was_put(tmp_path: Path) -> None:
    columns = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    table = builders.make_table(tmp_path / "t", rows=[1], columns=columns)
    (shard,) = table.shards
    for at, key in enumerate((1, 2)):
        arrays = {n: pa.array([values[at]], kind) for n, (kind, values) in TYPES.items()}
        extra = {name: array.to_pylist()[0] for name, array in arrays.items()}
        abandon(table, shard, Put([key], 10, extra))
    found = unflushed(table).rows
    assert found.schema.names == [*table.dataset.schema.names, layout.TOMBSTONE]
    builders.same_rows(overlaid(table), table.truth(), "overlaid")


# ---- the table changes while rows are in the WAL


def _readd(dataset: Any) -> None:
    dataset.drop_columns(["n"])
    dataset.add_columns(pa.field("n", pa.int64()))


SCHEMA_CHANGES: dict[str, Callable[[Any], None]] = {
    "added": lambda dataset: dataset.add_columns(pa.field("late", pa.int64())),
    "dropped": lambda dataset: dataset.drop_columns(["text"]),
    "dropped and added again": _readd,
}


@pytest.mark.parametrize("change", SCHEMA_CHANGES)
def test_entries_of_an_older_schema_are_read_as_pylance_replays_them(
    tmp_path: Path, change: str
) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1, 2], 10))
    SCHEMA_CHANGES[change](table.dataset)

    ours = unflushed(table).rows.drop_columns([layout.TOMBSTONE])

    with table.writer(shard):  # replays and flushes
        pass
    assert ours.schema.names == table.dataset.schema.names
    assert table.keyed(ours) == table.lsm_rows()


def test_entries_without_field_ids_go_by_name(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1, 2], 10))
    strip_field_ids(table, shard, 1)
    builders.same_rows(overlaid(table), table.truth(), "overlaid")
    table.dataset.drop_columns(["text"])
    with pytest.raises(Refused, match="column 'text' has no field id, and the table has no column"):
        unflushed(table)


def strip_field_ids(table: Table, shard: ShardId, position: int) -> None:
    path = entry_file(table, shard, position)
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        found = stream.read_all()
    bare = pa.schema([f.remove_metadata() for f in found.schema], found.schema.metadata)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, bare) as written:
        written.write_table(pa.Table.from_arrays(found.columns, schema=bare))


# ---- input that is wrong


def _cut(table: Table, shard: ShardId) -> None:
    path = entry_file(table, shard, 2)
    path.write_bytes(path.read_bytes()[:-500])


def _flip(table: Table, shard: ShardId) -> None:
    """A string's offsets point outside of its data."""
    path = entry_file(table, shard, 2)
    data = bytearray(path.read_bytes())
    at = data.find(b"text 2") - 64
    data[at : at + 8] = b"\xff\xff\xff\x7f\xff\xff\xff\x7f"
    path.write_bytes(bytes(data))


BROKEN: dict[str, tuple[Callable[[Table, ShardId], object], str]] = {
    "cut": (_cut, "position 2.* is not a WAL entry"),
    "empty": (lambda t, s: entry_file(t, s, 2).write_bytes(b""), "position 2.* is not a WAL entry"),
    "noise": (
        lambda t, s: entry_file(t, s, 2).write_bytes(bytes(range(256)) * 8),
        "position 2.* is not a WAL entry",
    ),
    "offsets": (_flip, "position 2.* is not a WAL entry"),
    "no epoch": (
        lambda t, s: rewrite(t, s, 2, writer_epoch=None),
        "position 2.* is not a WAL entry: its schema names no writer_epoch",
    ),
    "bad epoch": (
        lambda t, s: rewrite(t, s, 2, writer_epoch="1_0"),
        "position 2.* is not a WAL entry: writer_epoch is b'1_0'",
    ),
    "huge epoch": (
        lambda t, s: rewrite(t, s, 2, writer_epoch=2**64),
        "position 2.* is not a WAL entry: writer_epoch is",
    ),
    "epoch never stored": (
        lambda t, s: rewrite(t, s, 2, writer_epoch=9),
        "position 2 has writer epoch 9, above the manifest's 1",
    ),
    "generation out of turn": (
        lambda t, s: rewrite(t, s, 2, generation=7),
        "position 2 has generation 7, where 1 to 2 may follow",
    ),
    "sentinel with rows": (
        lambda t, s: rewrite(t, s, 2, fence_sentinel="true"),
        "position 2.* a fence sentinel with 1 rows",
    ),
    "hole": (
        lambda t, s: entry_file(t, s, 2).unlink(),
        "position 2 is missing, but one above it is stored",
    ),
    "hole at the start": (
        lambda t, s: entry_file(t, s, 1).unlink(),
        "position 1 is missing, but one above it is stored",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_wal_is_corruption_that_names_table_shard_and_position(
    tmp_path: Path, name: str
) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, *(Put([key], 10 * key) for key in range(1, 5)))
    break_it, text = BROKEN[name]
    break_it(table, shard)
    with pytest.raises(Corruption, match=text) as caught:
        unflushed(table)
    assert table.uri in str(caught.value)
    assert shard in str(caught.value)


def test_the_last_position_that_was_seen_must_be_there(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    manifests = table.stores.shard_manifests
    current = manifests.latest(shard)
    assert current is not None
    manifests.commit(current, replace(current, wal_entry_position_last_seen=3))
    with pytest.raises(Corruption, match="position 2 is missing, but 3 was written"):
        unflushed(table)


def test_null_keys_are_refused(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    path = entry_file(table, shard, 1)
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        found = stream.read_all()
    loose = found.schema.set(0, found.schema.field(0).with_nullable(True))
    nulls = found.set_column(0, loose.field(0), pa.nulls(1, pa.int64())).cast(loose)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, loose) as written:
        written.write_table(nulls)
    with pytest.raises(Refused, match="1 rows have NULL in the key column 'k'"):
        unflushed(table)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (WalLimits(rows_bytes_max=200), "more than 200 bytes of unflushed rows"),
        (WalLimits(entry_bytes_max=500), "at most 500 are read"),
    ],
)
def test_limits_are_kept(tmp_path: Path, limits: WalLimits, text: str) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    abandon(table, table.shards[0], Put(range(20), 10))
    with pytest.raises(Refused, match=text):
        unflushed(table, limits=limits)


def test_narrow_rows_are_refused_where_what_they_leave_out_is_wide(tmp_path: Path) -> None:
    """A key column and nothing else: a few bytes a row become as many as the table's row has."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    file = entry_file(table, shard, 1)
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        keys = stream.read_all().select(["k"])
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, keys.schema) as written:
        written.write_table(pa.concat_tables([keys] * 10_000).combine_chunks())
    assert unflushed(table).rows_read == 10_000
    with pytest.raises(Refused, match="more than 200000 bytes of unflushed rows"):
        unflushed(table, limits=WalLimits(rows_bytes_max=200_000))


def test_rows_are_folded_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many versions of few keys take the memory of few rows."""
    monkeypatch.setattr("memwal.read.store.wal_rows._FOLD_BYTES", 4000)
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, *(Put(range(10), 100 * turn) for turn in range(1, 21)))
    found = unflushed(table, limits=WalLimits(rows_bytes_max=6000))
    assert (found.rows_read, len(found.rows)) == (200, 10)
    builders.same_rows(overlaid(table), table.truth(), "overlaid")


def test_a_table_without_a_key_gives_every_row(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    abandon(table, table.shards[0], Put([1, 1], 10), Put([1], 20))
    view = replace(table.stores.views.table(), primary_key=())
    assert [row["n"] for row in unflushed(table, view=view).rows.to_pylist()] == [10, 11, 20]


# ---- writers that go on meanwhile


def test_a_flush_meanwhile_hides_nothing(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    writer = abandon(table, shard, Put([1, 2], 10), Delete([2]), Put([3], 30))
    view = table.stores.views.table()
    writer.close()
    # The view lists no generation; its entries are still there.
    found = unflushed(table, view=view)
    assert (found.entries, len(found.rows)) == (3, 3)
    assert unflushed(table).entries == 0


def test_rows_that_were_collected_meanwhile_need_a_fresh_view(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    writer = abandon(table, shard, Put([1, 2], 10), Put([3], 30))
    stale = table.stores.views.table()
    writer.close()
    abandon(table, shard, Put([4], 40))
    entry_file(table, shard, 1).unlink()  # as the garbage job does, once it is merged
    with pytest.raises(Moved):
        unflushed(table, view=stale)

    views = iter([stale, table.stores.views.table()])
    view, found = reader(table).read_settled(lambda: next(views), schema_of(table))
    assert view.shards[0].manifest.replay_after_wal_entry_position == 2
    assert [row["k"] for row in found[shard].rows.to_pylist()] == [table.kind.key(4)[0]]

    with pytest.raises(Moved):
        reader(table).read_settled(lambda: stale, schema_of(table))


def test_entries_put_between_two_requests_are_no_hole(tmp_path: Path) -> None:
    """The first request finds nothing, the one beside it finds the next entry."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10), Put([2], 20))
    view = table.stores.views.table()
    stores = table.stores

    class Late(WalEntries):
        def read_stored(self, shard_id: ShardId, start: int, count: int) -> Any:
            found = super().read_stored(shard_id, start, count)
            return [None, *found[1:]] if start == 1 else found

    rows = StoredWalRows(
        wal=Late(stores.objects),
        manifests=stores.shard_manifests,
        field_ids=stores.views.field_ids,
    )
    found = rows.read_unflushed(view, view.shards[0], table.dataset.schema)
    assert found.entries == 2


def test_a_claim_meanwhile_brings_a_newer_epoch(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    view = table.stores.views.table()
    abandon(table, shard, Put([2], 20))
    assert view.shards[0].manifest.writer_epoch == 1
    assert unflushed(table, view=view).entries == 2


def test_all_that_was_acknowledged_before_is_read(tmp_path: Path) -> None:
    """Strong consistency beside a writer that flushes all the time."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    schema = table.dataset.schema
    seen: builders.Effects = {}
    with table.writer(shard, max_memtable_rows=3) as writer:
        for n in range(1, 15):
            builders.apply(table, writer, schema, Put([n % 7, n % 4], 100 * n), seen)
            if n % 5 == 0:
                builders.apply(table, writer, schema, Delete([n % 7]), seen)
            truth = {**table.base, **seen}
            builders.same_rows(
                overlaid(table),
                {k: row for k, row in truth.items() if row is not None},
                f"after {n}",
            )


def test_helpers_leave_no_flush_behind(tmp_path: Path) -> None:
    """What `abandon` leaves is what a killed process leaves: no generation, no new manifest."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    copy = tmp_path / "copy"
    shutil.copytree(table.uri, copy)
    moved = Table(uri=str(copy), kind=table.kind, shards=table.shards, effects=table.effects)
    view: ShardView = moved.stores.views.table().shards[0]
    assert (view.manifest.version, view.pending) == (1, ())
    assert unflushed(moved).entries == 1
    assert wal_tables.entry_file(moved, shard, 1).exists()


def test_an_entry_of_a_flushed_generation_counts_for_nothing(tmp_path: Path) -> None:
    """pylance may understate the replay position: then the entry's generation tells."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    table.flush(shard, Put([1, 2], 10))
    view = table.stores.views.table()
    (found,) = view.shards
    understated = replace(found.manifest, replay_after_wal_entry_position=0)
    view = replace(view, shards=(replace(found, manifest=understated),))
    rows = unflushed(table, view=view)
    assert (rows.entries, rows.rows_read, len(rows.rows)) == (0, 0, 0)


def test_a_tip_that_was_written_since_is_no_hole(tmp_path: Path) -> None:
    """Between the look at the tip and the manifest, a writer puts there and tells of it."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    view = table.stores.views.table()
    rows = reader(table)

    class Busy(ShardManifests):
        def latest(self, shard_id: ShardId) -> Any:
            found = super().latest(shard_id)
            if not entry_file(table, shard, 2).exists():
                shutil.copy(entry_file(table, shard, 1), entry_file(table, shard, 2))
            return found and replace(found, wal_entry_position_last_seen=2)

    busy = replace(rows, manifests=Busy(table.stores.objects))
    found = busy.read_unflushed(view, view.shards[0], table.dataset.schema)
    assert found.entries == 1
