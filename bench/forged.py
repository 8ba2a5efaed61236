"""Tables of thousands of shards, or of generations, that are quickly made, with nothing to do.

One is written by pylance, merged and caught up; the others are copies of its files under their own
names, with progress of their own in the MemWAL index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import lance
from lance.dataset import Index

from bench.harness import Bench, run_memwal
from bench.tables import make_base, new_shards, pending
from memwal.format import codec, layout
from memwal.model import ShardId
from memwal.run.stores import open_stores

_SHORT = ("--execute", "--grace", "0s", "--retention", "0s", "--allow-short-retention")
_DETAILS = "/lance.table.MemWalIndexDetails"


def forge(bench: Bench, shards: int, *options: str) -> tuple[Path, ShardId]:
    """A table of so many shards, of which `maintain` with these options has nothing to do; and the
    one that pylance wrote.
    """
    like, *others = map(ShardId, new_shards(shards))
    table = make_idle(bench, [like], *options)
    _copy_shard(table, like, others)
    merged = open_stores(str(table), {}).views.table().mem_wal.merged[like]
    _record_progress(table, dict.fromkeys(others, merged))
    run_memwal("snapshot", table, "--engine", "local")
    return table, like


def make_idle(bench: Bench, shards: Sequence[str], *options: str) -> Path:
    """A table that pylance wrote, merged, caught up and collected: `maintain` with these options
    does nothing more.
    """
    table = bench.new_folder("idle") / "table"
    make_base(table, 1_000, dim=0)
    lance.dataset(str(table)).create_scalar_index("id", "BTREE")
    pending(table, shards, 1, 20, 1_000, dim=0)
    words = ("maintain", table, "--json", "--engine", "local", *_SHORT, *options)
    for _ in range(5):
        if run_memwal(*words).json()["outcome"] == "nothing_to_do":
            return table
    raise RuntimeError("the table never becomes idle")


def _copy_shard(table: Path, like: ShardId, others: Sequence[ShardId]) -> None:
    """Its files under other ids; manifests say whose they are."""
    root = table / layout.MEM_WAL / like
    for file in [file for file in root.rglob("*") if file.is_file()]:
        below = file.relative_to(root)
        version = layout.parse_shard_manifest_name(file.name)
        manifest = None
        if version is not None and below.parent.name == layout.manifest_folder(like)[-8:]:
            manifest = codec.decode_shard_manifest(
                file.read_bytes(), shard_id=like, version=version
            )
        for shard in others:
            target = table / layout.MEM_WAL / shard / below
            target.parent.mkdir(parents=True, exist_ok=True)
            if manifest is None:
                target.hardlink_to(file)
            else:
                data = codec.encode_shard_manifest(replace(manifest, shard_id=shard))
                target.write_bytes(data)


def _record_progress(table: Path, merged: Mapping[ShardId, int]) -> None:
    """Shards are merged and caught up so far, in the MemWAL index of a new version."""
    dataset = lance.dataset(str(table))
    version = int(dataset.version)
    state = open_stores(str(table), {}).views.mem_wal(version)
    details = codec.pb.MemWalIndexDetails.FromString(state.raw)
    caught_up = [index.caught_up_generations for index in details.index_catchup]
    for entries in (details.merged_generations, *caught_up):
        found = {entry.shard_id.uuid: entry for entry in entries}
        for shard, generation in merged.items():
            entry = found.get(UUID(shard).bytes) or entries.add()
            entry.shard_id.uuid, entry.generation = UUID(shard).bytes, generation
    entry = Index(
        uuid=str(uuid4()),
        name=layout.MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=version,
        fragment_ids=set(),
        index_version=0,
        created_at=datetime.now(UTC),
        index_details=(_DETAILS, details.SerializeToString()),
    )
    operation = lance.LanceOperation.CreateIndex(new_indices=[entry], removed_indices=[])
    lance.LanceDataset.commit(dataset, operation, read_version=version, max_retries=0)


def forge_generations(table: Path, shard: ShardId, generations: int) -> str:
    """List so many generations in a shard that has one, all of them merged as that one is.

    Returns the folder of the one. The others' folders, of the same name with their numbers, are
    left to whoever can copy them at little cost.
    """
    stores = open_stores(str(table), {})
    manifest = stores.shard_manifests.latest(shard)
    assert manifest is not None
    (like,) = manifest.flushed_generations
    stem = like.path.removesuffix(str(like.generation))
    listed = tuple(
        replace(like, generation=number, path=f"{stem}{number}")
        for number in range(1, generations + 1)
    )
    stores.shard_manifests.commit(
        manifest,
        replace(manifest, flushed_generations=listed, current_generation=generations + 1),
    )
    _record_progress(table, {shard: generations})
    return layout.generation_folder(shard, like.path, like.generation)
