"""Damages to a real table: what is done to it, and which keys can't come back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import ShardId
from memwal.store.tables.indexes import replace_mem_wal_entry
from tests.support.builders import Delete, Put, Table, apply, make_table, unlist_generation

Damage = Callable[[Table, ShardId], object]


def make_damaged_ground(folder: object, **how: Any) -> Table:
    """Two shards: generation 1 of each is merged, 2 and 3 are pending; all of their WAL is there.

    The first one's WAL has three more puts, of keys 200 to 202, at positions 9 to 11.
    """
    table = make_table(folder, rows=range(20), shards=2, indexed=True, **how)
    for place, shard in enumerate(table.shards):
        first = 10 * place
        table.flush(shard, Put([first + 1, first + 2, first + 100], 5000), Delete([first + 3]))
    table.merge_all()
    for place, shard in enumerate(table.shards):
        first = 10 * place
        table.flush(shard, Put([first + 1, first + 101], 6000))
        table.flush(shard, Put([first + 2, first + 102], 7000), Delete([first + 100]))
    return table


def put_tail(table: Table, shard: ShardId) -> object:
    """Three puts that no generation has; returns the writer, which stays open."""
    writer, done = table.writer(shard), {}
    for number in range(3):
        apply(table, writer, table.dataset.schema, Put([200 + number], 9000 + number), done)
    table.effects[shard].append(done)
    return writer


def manifest_files(table: Table, shard: ShardId) -> list[Path]:
    """The shard's manifests, newest first."""
    versions = sorted(table.stores.shard_manifests.versions(shard), reverse=True)
    return [Path(table.uri, layout.shard_manifest_path(shard, v)) for v in versions]


def folder_of(table: Table, shard: ShardId, number: int) -> Path:
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    (path,) = (g.path for g in manifest.flushed_generations if g.generation == number)
    return Path(table.uri, layout.generation_folder(shard, path, number))


def wal_file(table: Table, shard: ShardId, position: int) -> Path:
    return Path(table.uri, layout.wal_entry_path(shard, position))


def tear(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _lower_progress(table: Table, shard: ShardId) -> None:
    stores = table.stores
    view = stores.views.table()
    details = pb.MemWalIndexDetails()
    details.ParseFromString(view.mem_wal.raw)
    del details.merged_generations[:]
    replace_mem_wal_entry(
        stores.tables,
        version=view.version,
        index_uuid=stores.clock.new_id(),
        created_at_millis=view.mem_wal.created_at_millis or 0,
        details=details.SerializeToString(),
    )


def _remove_manifests(table: Table, shard: ShardId, keep: int, count: int) -> None:
    for path in manifest_files(table, shard)[keep : keep + count]:
        path.unlink()


def _point_hints_astray(table: Table, shard: ShardId) -> None:
    Path(table.uri, layout.version_hint_path(shard)).write_text("x")
    hint = Path(table.uri, layout.TABLE_HINT)
    hint.write_text("{")


WHOLE: dict[str, Damage] = {
    "manifest cut": lambda t, s: tear(manifest_files(t, s)[0], 9),
    "manifest gone": lambda t, s: _remove_manifests(t, s, 0, 1),
    "three manifests gone": lambda t, s: _remove_manifests(t, s, 0, 3),
    "hints": _point_hints_astray,
    "progress lowered": _lower_progress,
}
"""All rows come back from these."""

LEFT: dict[str, tuple[Damage, str]] = {
    "all manifests gone": (lambda t, s: _remove_manifests(t, s, 0, 99), "rows of WAL entries 1 to"),
    "all manifests cut": (
        lambda t, s: [tear(path, 5) for path in manifest_files(t, s)],
        "rows of WAL entries 1 to",
    ),
    "a manifest gone between others": (lambda t, s: _remove_manifests(t, s, 3, 1), "since that"),
    "data of a pending generation gone": (
        lambda t, s: shutil.rmtree(folder_of(t, s, 2) / "data"),
        "generation 2 of shard",
    ),
    "merged generation gone": (lambda t, s: shutil.rmtree(folder_of(t, s, 1)), ""),
    "generation not listed": (lambda t, s: unlist_generation(t, s, 2), "since that"),
    "WAL entry in the middle torn": (lambda t, s: tear(wal_file(t, s, 10), 300), "those behind"),
    "WAL entry in the middle gone": (lambda t, s: wal_file(t, s, 10).unlink(), "those behind"),
    "WAL entry and manifest": (
        lambda t, s: (tear(wal_file(t, s, 10), 300), tear(manifest_files(t, s)[0], 9)),
        "rows of WAL entries 1 to",
    ),
    "flushed since, and no WAL": (
        lambda t, s: (wal_file(t, s, 7).unlink(), _remove_manifests(t, s, 0, 3)),
        "rows of WAL entries 1 to",
    ),
    "index cut": (lambda t, s: tear(next(Path(t.uri, "_indices").rglob("*.lance")), 100), ""),
    "base file gone": (
        lambda t, s: next(Path(t.uri, "data").iterdir()).unlink(),
        "reads that need",
    ),
}
"""A repair leaves these as they are; what it names as lost."""
