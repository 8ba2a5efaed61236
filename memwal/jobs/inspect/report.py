"""The documents of `inspect`: what is stored, decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from memwal.format import layout
from memwal.format.replay import Standing, WalEntry, replay
from memwal.grid import Column, build_table, format_count, format_size, numbers, words
from memwal.model import MemWalState, ShardId, VersionManifest
from memwal.model import ShardManifest as StoredManifest
from memwal.report import Section
from memwal.text import format_age, iso_time

_SHARDS_MAX = 50
_STYLE = {"covered": "dim", "unflushed": "yellow", "sentinel": "", "unreached": "red",
          "forged": "red", "lost": "red", "torn": "red", "too large": "red"}  # fmt: skip


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
    """`inspect shard`. `shard_id` is that of `--key`, whether a writer has made it or not."""

    table: str
    version: int
    shard_id: str | None = None
    shards: list[ShardManifest]


class WalDocument(Section):
    """`inspect wal`."""

    table: str
    version: int
    shards: list[ShardWal]


def describe_index(manifest: VersionManifest, policy: dict[str, Any] | None) -> IndexDocument:
    """MemWALIndexDetails of one table version, and the table's row-merge policy."""
    return IndexDocument(**_describe_version(manifest), policy=policy)


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
    created = state.created_at_millis
    return IndexState(
        index_uuid=state.index_uuid,
        entry_created_at=iso_time(None if created is None else created * 10**6),
        merged_generations=dict(state.merged),
        index_catchup={name: dict(by) for name, by in state.index_catchup.items()},
        maintained_indexes=list(state.maintained_indexes),
        maintain_all_indexes=state.maintain_all_indexes,
        shard_specs=[asdict(spec) for spec in state.shard_specs],
        snapshot={
            "taken_at": iso_time(state.snapshot_ts_millis * 10**6 or None),
            "num_shards": state.num_shards,
            "inline_bytes": None if state.inline_snapshots is None else len(state.inline_snapshots),
        },
        writer_config_defaults=dict(state.writer_config_defaults),
    )


def describe_manifest(manifest: VersionManifest) -> ManifestDocument:
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


def describe_shard(manifest: StoredManifest, merged: int) -> ShardManifest:
    """One shard manifest, next to the table's progress for that shard."""
    return ShardManifest(
        **_describe_progress(manifest, merged),
        version=manifest.version,
        path=layout.shard_manifest_path(manifest.shard_id, manifest.version),
        shard_spec_id=manifest.shard_spec_id,
        shard_fields={name: value.hex() for name, value in manifest.shard_field_entries},
        flushed_generations=[
            {**asdict(g), "state": "merged" if g.generation <= merged else "pending"}
            for g in manifest.flushed_generations
        ],
    )


def _describe_progress(manifest: StoredManifest, merged: int) -> dict[str, Any]:
    """The fields of `Shard`."""
    return {
        "shard_id": manifest.shard_id,
        "status": manifest.status.name,
        "writer_epoch": manifest.writer_epoch,
        "current_generation": manifest.current_generation,
        "merged_generation": merged,
        "replay_after_wal_entry_position": manifest.replay_after_wal_entry_position,
        "wal_entry_position_last_seen": manifest.wal_entry_position_last_seen,
    }


def describe_wal(
    manifest: StoredManifest,
    merged: int,
    entries: Sequence[WalEntry],
    *,
    now_nanos: int,
    shown_max: int,
    left_out: int = 0,
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


ENTRIES: tuple[Column[Mapping[str, Any]], ...] = (
    numbers("position", lambda entry: str(entry["position"])),
    numbers("epoch", lambda entry: _format_number(entry["writer_epoch"])),
    numbers("generation", lambda entry: _format_number(entry["generation"])),
    numbers("rows", lambda entry: _format_number(entry["rows"])),
    numbers("bytes", lambda entry: format_size(entry["bytes"])),
    numbers("age", lambda entry: format_age(entry["age_seconds"])),
    words("what", lambda entry: _format_standing(entry)),
    numbers("covered by", lambda entry: _format_covering(entry)),
)


def show_wal(document: Mapping[str, Any], console: Console) -> None:
    """Print the document of `inspect wal`: a table of entries for each shard."""
    head = Text(str(document["table"]), style="bold")
    console.print(head.append(f"  version {document['version']}", style="dim"))
    if not document["shards"]:
        console.print(Text("  no shards", style="dim"))
    for shard in document["shards"][:_SHARDS_MAX]:
        _show_shard(shard, console)
    if (more := len(document["shards"]) - _SHARDS_MAX) > 0:
        console.print(Text(f"and {more:,} more shards: --shard shows one, --json all", style="dim"))


def _show_shard(shard: Mapping[str, Any], console: Console) -> None:
    console.print(Text(f"shard {shard['shard_id']}  {shard['status']}", style="bold"))
    unflushed = shard["unflushed"]
    told = (
        f"  epoch {shard['writer_epoch']}, generation {shard['current_generation']} is next, "
        f"{shard['merged_generation']} merged, covered up to position "
        f"{shard['replay_after_wal_entry_position']}"
    )
    left = (
        f"  in no generation: {format_count(unflushed['rows'])} rows in "
        f"{unflushed['entries']} entries, {format_size(unflushed['bytes'])}"
    )
    console.print(Text(told))
    console.print(Text(left, style="yellow" if unflushed["entries"] else "dim"))
    if shard["left_out"]:
        console.print(Text(f"  {shard['left_out']} older entries are not shown", style="dim"))
    if shard["entries"]:
        console.print(build_table(shard["entries"], ENTRIES))
    for name, style in (("problems", "red"), ("warnings", "yellow")):
        for text in shard[name]:
            console.print(Text(f"  {name[:-1]}: {text}", style=style))
    for text in (t for t in shard["broken"] if t not in shard["problems"]):
        console.print(Text(f"  broken: {text}", style="red"))


def _format_standing(entry: Mapping[str, Any]) -> Text:
    sentinel = " (sentinel)" if entry["fence_sentinel"] and entry["covered"] else ""
    return Text(entry["standing"] + sentinel, style=_STYLE[entry["standing"]])


def _format_covering(entry: Mapping[str, Any]) -> str:
    by = entry["covered_by_generation"]
    return "-" if by is None else f"{by} ({entry['covered_by_state']})"


def _format_number(value: int | None) -> str:
    return "-" if value is None else str(value)
