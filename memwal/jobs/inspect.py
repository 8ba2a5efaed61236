"""`memwal inspect`: what is stored, decoded."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any

from memwal.config import ResolvedTable
from memwal.errors import Missing, Usage
from memwal.format import layout
from memwal.format.replay import Standing, WalEntry, replay
from memwal.model import MemWalState, ShardId, VersionManifest
from memwal.model import ShardManifest as StoredManifest
from memwal.report import Section
from memwal.rows.policy import STORED_KEY, policy_document
from memwal.run.stores import Stores, check_lance_version, open_stores
from memwal.store.shards.listing import list_shards
from memwal.text import iso_time
from memwal.threads import side_by_side

WAL_ENTRIES_SHOWN_MAX = 1000
_READERS_MAX = 16


class IndexState(Section):
    """What the MemWAL index says. `merged_generations` is by shard, `index_catchup` by index."""

    index_uuid: str
    entry_created_at: str | None
    merged_generations: dict[ShardId, int]
    index_catchup: dict[str, dict[ShardId, int]]
    maintained_indexes: list[str]
    maintain_all_indexes: bool | None
    shard_specs: list[dict[str, Any]]
    snapshot: dict[str, str | int | None]
    writer_config_defaults: dict[str, str]


class Version(Section):
    """What `inspect index` and `inspect manifest` both tell of a version."""

    version: int
    committed_at: str | None
    mem_wal: IndexState | None


class IndexDocument(Version):
    """`inspect index`."""

    policy: dict[str, Any] | None


class ManifestDocument(Version):
    """`inspect manifest`. `indexes` has a segment each."""

    branch: str | None
    file_bytes: int
    requests: int
    indexes: list[dict[str, str | int | list[int]]]


class Shard(Section):
    """What `inspect shard` and `inspect wal` both tell of a shard."""

    shard_id: str
    status: str
    writer_epoch: int
    current_generation: int
    merged_generation: int
    replay_after_wal_entry_position: int
    wal_entry_position_last_seen: int


class ShardManifest(Shard):
    """A shard's manifest, beside the table's progress for it."""

    version: int
    path: str
    shard_spec_id: int
    shard_fields: dict[str, str]
    flushed_generations: list[dict[str, str | int | None]]


class ShardWal(Shard):
    """A shard's WAL: the newest entries, and how many were `left_out`."""

    next_position: int
    unflushed: dict[str, int]
    left_out: int
    entries: list[dict[str, Any]]
    problems: list[str]
    warnings: list[str]
    broken: list[str]


class ShardsDocument(Section):
    """`inspect shard`."""

    table: str
    version: int
    shards: list[ShardManifest]


class WalDocument(Section):
    """`inspect wal`."""

    table: str
    version: int
    shards: list[ShardWal]


def run_inspect(
    what: str,
    table: ResolvedTable,
    *,
    shard: str | None = None,
    version: int | None = None,
    untested_lance_allowed: bool = False,
    shown_max: int = WAL_ENTRIES_SHOWN_MAX,
) -> Section:
    """The document for `inspect WHAT TABLE`.

    Raises Usage, NotATable, Corruption, Unsupported.
    """
    check_lance_version(untested_lance_allowed)
    stores = open_stores(table.find_uri(), table.storage_options)
    if what in ("index", "manifest"):
        if version is None:
            version = int(stores.views.table_version())
        try:
            manifest = stores.table_manifests.read(version)
        except Missing as missing:
            raise Usage(str(missing)) from None
        if what == "index":
            stored = stores.tables.base(version).config().get(STORED_KEY)
            return IndexDocument(**_describe_version(manifest), policy=policy_document(stored))
        return _describe_manifest(manifest)
    latest = int(stores.views.table_version())
    merged = stores.views.mem_wal(latest).merged
    manifests = [(m, merged.get(m.shard_id, 0)) for m in _shards(stores, shard, version)]
    if what == "shard":
        shown = [_describe_shard(*manifest) for manifest in manifests]
        return ShardsDocument(table=table.name, version=latest, shards=shown)
    wals = [_wal(stores, *manifest, shown_max) for manifest in manifests]
    return WalDocument(table=table.name, version=latest, shards=wals)


def _shards(stores: Stores, shard: str | None, version: int | None) -> list[StoredManifest]:
    found = list_shards(stores.objects, folders_only=True).shards
    if shard is not None:
        found = [layout.find_shard(shard, found, stores.uri)]
    if version is not None:
        if shard is None:
            raise Usage("--version of a shard manifest needs --shard")
        try:
            return [stores.shard_manifests.read(found[0], version)]
        except Missing as missing:
            raise Usage(str(missing)) from None
    manifests = side_by_side(stores.shard_manifests.latest, found, _READERS_MAX)
    return [m for m in manifests if m is not None]


def _wal(stores: Stores, manifest: StoredManifest, merged: int, shown_max: int) -> ShardWal:
    """Describe a shard's WAL: all entries that no generation covers, and the newest others."""
    listed = stores.wal.list_settled(manifest)
    above = [p for p in listed if p[0] > manifest.replay_after_wal_entry_position]
    covered = listed[: len(listed) - len(above)]
    shown = covered[max(0, len(covered) - max(0, shown_max - len(above))) :]
    return _describe_wal(
        manifest,
        merged,
        stores.wal.describe(manifest.shard_id, [*shown, *above]),
        now_nanos=stores.clock.now_nanos(),
        shown_max=shown_max,
        left_out=len(covered) - len(shown),
    )


# ---- documents


def _describe_version(manifest: VersionManifest) -> dict[str, Any]:
    """The fields of `Version`."""
    return {
        "version": manifest.version,
        "committed_at": iso_time(manifest.timestamp_nanos),
        "mem_wal": _describe_state(manifest.mem_wal),
    }


def _describe_state(state: MemWalState | None) -> IndexState | None:
    if state is None:
        return None
    created, inline = state.created_at_millis, state.inline_snapshots
    return IndexState(
        **asdict(state),
        entry_created_at=iso_time(None if created is None else created * 10**6),
        merged_generations=dict(state.merged),
        snapshot={
            "taken_at": iso_time(state.snapshot_ts_millis * 10**6 or None),
            "num_shards": state.num_shards,
            "inline_bytes": None if inline is None else len(inline),
        },
    )


def _describe_manifest(manifest: VersionManifest) -> ManifestDocument:
    """One `_versions/*.manifest` file, as far as memwal reads it."""
    return ManifestDocument(
        **_describe_version(manifest),
        branch=manifest.branch,
        file_bytes=manifest.file_bytes,
        requests=manifest.requests,
        indexes=[
            {
                "name": entry.name,
                "uuid": entry.uuid,
                "field_ids": list(entry.field_ids),
                "type": entry.type_url.rsplit(".", 1)[-1],
                "dataset_version": entry.dataset_version,
            }
            for entry in manifest.indexes
        ],
    )


def _describe_progress(manifest: StoredManifest, merged: int) -> dict[str, Any]:
    """The fields of `Shard`, and those that it has in common with the stored manifest."""
    return {**asdict(manifest), "status": manifest.status.name, "merged_generation": merged}


def _describe_shard(manifest: StoredManifest, merged: int) -> ShardManifest:
    """One shard manifest, next to the table's progress for that shard."""
    told = _describe_progress(manifest, merged)
    for generation in told["flushed_generations"]:
        generation["state"] = "merged" if generation["generation"] <= merged else "pending"
    return ShardManifest(
        **told,
        path=layout.shard_manifest_path(manifest.shard_id, manifest.version),
        shard_fields={name: value.hex() for name, value in manifest.shard_field_entries},
    )


def _describe_wal(
    manifest: StoredManifest,
    merged: int,
    entries: Sequence[WalEntry],
    *,
    now_nanos: int,
    shown_max: int,
    left_out: int,
) -> ShardWal:
    """A shard's WAL: each entry, what a replay makes of it, and the generation that covers it.

    `entries` has all that no generation covers. The newest `shown_max` are shown; `left_out` counts
    older ones that were not even read.
    """
    decided = replay(manifest, entries)
    ordered = sorted(entries, key=lambda e: e.position)
    listed = {g.generation for g in manifest.flushed_generations}
    shown = ordered[max(0, len(ordered) - shown_max) :]
    return ShardWal(
        **_describe_progress(manifest, merged),
        next_position=decided.tip,
        unflushed={
            "entries": len(decided.unflushed),
            "rows": decided.rows,
            "bytes": decided.size_bytes,
        },
        left_out=left_out + len(ordered) - len(shown),
        entries=[
            _describe_entry(e, decided.standings[e.position], merged, listed, now_nanos)
            for e in shown
        ],
        problems=[*decided.problems, *decided.refused],
        warnings=list(decided.warnings),
        broken=[e.problem for e in ordered if e.problem is not None],
    )


def _describe_entry(
    entry: WalEntry, standing: Standing, merged: int, listed: Set[int], now_nanos: int
) -> dict[str, Any]:
    covered = standing is Standing.COVERED
    generation = entry.generation if covered else None
    return {
        "position": entry.position,
        "writer_epoch": entry.writer_epoch,
        "generation": entry.generation,
        "fence_sentinel": entry.fence_sentinel,
        "rows": entry.rows,
        "bytes": entry.size_bytes,
        "written_at": iso_time(entry.written_at_nanos),
        "age_seconds": round(max(0, now_nanos - entry.written_at_nanos) / 1e9, 1),
        "standing": standing.value,
        "covered": covered,
        "covered_by_generation": generation,
        "covered_by_state": None
        if generation is None
        else _judge_generation(generation, merged, listed),
    }


def _judge_generation(generation: int, merged: int, listed: Set[int]) -> str:
    """`gone` is a generation that was dropped from the manifest without having been merged."""
    if generation <= merged:
        return "merged"
    return "pending" if generation in listed else "gone"
