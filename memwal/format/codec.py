"""Protobuf bytes <-> model. Pure, and the only importer of the generated code.

Decoders raise Corruption with what is wrong; callers add the table, shard and file. Encoders start
from the bytes that were read (`raw`), so that fields this build does not know survive.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast
from uuid import UUID

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from memwal.errors import Corruption, Unsupported
from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import (
    Backup,
    BackupMark,
    BackupObject,
    BackupShard,
    FlushedGeneration,
    IndexEntry,
    MemWalState,
    ShardField,
    ShardId,
    ShardManifest,
    ShardSpec,
    ShardStatus,
    VersionFacts,
    VersionHeader,
    VersionManifest,
)

MAGIC = b"LANC"
FOOTER_BYTES = 16
_LENGTH_BYTES = 4
_BACKUP_FORMAT = 1
_SHA256_BYTES = 32

M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], data: bytes) -> M:
    """A message of that kind. Raises Corruption for what is none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise Corruption(
            "MW-M01", f"not a {kind.DESCRIPTOR.name} message ({len(data)} bytes)"
        ) from None
    return message


def _name_unknown(message: Message) -> tuple[str, ...]:
    """The fields that this build does not know, in the message and in those within it."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() == message.ByteSize():  # nearly always, and all of it is native code
        return ()
    return tuple(dict.fromkeys(_walk_unknown(message)))


def _walk_unknown(message: Message) -> Iterator[str]:
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        yield f"{message.DESCRIPTOR.name}.{unknown.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in [value] if isinstance(value, Message) else value:
            yield from _walk_unknown(part)


def _parse_shard_id(message: pb.UUID) -> ShardId:
    if len(message.uuid) != 16:
        raise Corruption("MW-M01", f"a shard id has {len(message.uuid)} bytes instead of 16")
    return ShardId(str(UUID(bytes=message.uuid)))


# ---- shard manifests


def decode_shard_manifest(data: bytes, *, shard_id: ShardId, version: int) -> ShardManifest:
    """A shard manifest, checked against the folder and file name that it was read from.

    Raises Corruption when it is torn, names another shard or version, or lists a generation whose
    path is forged, or that is there with two paths (invariant 10).
    """
    if not data:
        raise Corruption("MW-M01", "is empty")
    message = parse_message(pb.ShardManifest, data)
    if message.version != version:
        raise Corruption("MW-M01", f"holds version {message.version} instead of {version}")
    found = _parse_shard_id(message.shard_id)
    if found != shard_id:
        raise Corruption("MW-M01", f"belongs to shard {found}")
    try:
        status = ShardStatus(message.status)
    except ValueError:
        raise Unsupported("MW-M10", f"has an unknown shard status {message.status}") from None
    return ShardManifest(
        shard_id=found,
        flushed_generations=_parse_generations(message.flushed_generations),
        shard_field_entries=_parse_field_entries(message),
        status=status,
        raw=data,
        unknown_fields=_name_unknown(message),
        **{name: getattr(message, name) for name in _MANIFEST_FIELDS},
    )


_MANIFEST_FIELDS = (
    *("version", "writer_epoch", "current_generation", "shard_spec_id"),
    *("replay_after_wal_entry_position", "wal_entry_position_last_seen"),
)
_SIZES = ("in_memory_bytes", "physical_rows", "primary_key_bytes")


def _parse_generations(entries: Iterable[pb.FlushedGeneration]) -> tuple[FlushedGeneration, ...]:
    """The listed generations, sorted by number.

    A generation that is listed twice with the same path counts once: pylance 14.0.2 writes such a
    manifest when the reply to a manifest's create was lost. Its flush takes the create for failed,
    and adds its generation to the manifest that lists it already. Raises Corruption when one number
    is listed with two paths, or a path is forged.
    """
    found: dict[int, FlushedGeneration] = {}
    for entry in entries:
        layout.check_generation_path(entry.path, entry.generation)
        known = found.get(entry.generation)
        if known is not None and known.path != entry.path:
            raise Corruption("MW-M01", f"lists generation {entry.generation} twice")
        found[entry.generation] = FlushedGeneration(
            generation=entry.generation,
            path=entry.path,
            **{name: _read_optional(entry, name) for name in _SIZES},
        )
    return tuple(found[number] for number in sorted(found))


def _parse_field_entries(message: pb.ShardManifest) -> tuple[tuple[str, bytes], ...]:
    return tuple((e.field_id, e.value) for e in message.shard_field_entries)


def _read_optional(message: Message, name: str) -> Any:
    """A field's value; None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def encode_shard_manifest(manifest: ShardManifest) -> bytes:
    """The bytes of a manifest, on top of `manifest.raw`, unknown fields included.

    Entries that `raw` already had are kept byte by byte, so that fields of theirs that this build
    does not know survive too.
    """
    message = parse_message(pb.ShardManifest, manifest.raw)
    message.shard_id.uuid = UUID(manifest.shard_id).bytes
    for name in _MANIFEST_FIELDS:
        setattr(message, name, getattr(manifest, name))
    message.status = cast("pb.ShardManifest.Status", int(manifest.status))
    before = {(g.generation, g.path): g for g in message.flushed_generations}
    kept = []
    for generation in manifest.flushed_generations:
        entry = pb.FlushedGeneration()
        old = before.get((generation.generation, generation.path))
        if old is not None:
            entry.CopyFrom(old)
        entry.generation = generation.generation
        entry.path = generation.path
        for name in _SIZES:
            value = getattr(generation, name)
            if value is not None:
                setattr(entry, name, value)
        kept.append(entry)
    del message.flushed_generations[:]
    message.flushed_generations.extend(kept)
    if manifest.shard_field_entries != _parse_field_entries(message):
        del message.shard_field_entries[:]
        for field_id, value in manifest.shard_field_entries:
            message.shard_field_entries.add(field_id=field_id, value=value)
    return message.SerializeToString()


def decode_version_hint(data: bytes) -> int | None:
    """The version in `version_hint.json`, or None: a hint that can't be read is no error."""
    try:
        version = json.loads(data)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    # Not isinstance: true is an int, too.
    return version if type(version) is int and 0 < version <= layout.U64_MAX else None


# ---- table manifests


def decode_footer(tail: bytes) -> int:
    """The file offset of the Manifest message, from a manifest file's last 16 bytes or more."""
    footer = tail[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or footer[-4:] != MAGIC:
        raise Corruption("MW-M01", "does not end like a Lance manifest")
    position = struct.unpack("<q", footer[:8])[0]
    if position < 0:
        raise Corruption("MW-M01", f"points at offset {position}")
    return int(position)


def message_length(data: bytes) -> int:
    """The u32 length in front of a message in a manifest file."""
    if len(data) < _LENGTH_BYTES:
        raise Corruption("MW-M01", "is cut off")
    return int(struct.unpack("<I", data[:_LENGTH_BYTES])[0])


def index_section_offset(manifest_block: bytes) -> int | None:
    """The index section's file offset, from the block that starts at the footer's position.

    None when the version has no index.
    """
    message = parse_message(pb.Manifest, unframe(manifest_block))
    return message.index_section if message.HasField("index_section") else None


def decode_version_manifest(
    manifest_block: bytes, index_block: bytes | None, *, version: int, file_bytes: int
) -> VersionManifest:
    """One table version, from its manifest block and its index block (None without indexes).

    Both blocks start with their u32 length; bytes after the message are ignored. Raises Corruption
    when the blocks are torn or the file holds another version.
    """
    message, section = _parse_version(manifest_block, index_block, version)
    entries = _find_mem_wal(section)
    return VersionManifest(
        version=version,
        timestamp_nanos=_timestamp_nanos(message),
        mem_wal=_parse_state(entries[0]) if entries else None,
        indexes=tuple(_parse_index(m) for m in section.indices if m not in entries),
        branch=message.branch if message.HasField("branch") else None,
        config=dict(message.config),
        file_bytes=file_bytes,
        transaction_file=message.transaction_file,
    )


def decode_version_header(
    manifest_block: bytes, index_block: bytes | None, *, version: int
) -> VersionHeader:
    """The same as `decode_version_manifest`, without index details, which grow with the shards."""
    message, section = _parse_version(manifest_block, index_block, version)
    return VersionHeader(
        version=version,
        timestamp_nanos=_timestamp_nanos(message),
        has_mem_wal=bool(_find_mem_wal(section)),
    )


def decode_commit_time(manifest_block: bytes, *, version: int) -> int:
    """The version's commit time, in nanoseconds since the epoch, by the committer's clock."""
    return _timestamp_nanos(_parse_version(manifest_block, None, version)[0])


def decode_version_facts(manifest_block: bytes, manifest: VersionManifest) -> VersionFacts:
    """Adds a decoded manifest's primary key and row count, read from its block without Lance."""
    message = parse_message(pb.TableManifest, unframe(manifest_block))
    positions = {f.name: f.unenforced_primary_key_position for f in message.fields if _is_key(f)}
    return VersionFacts(
        manifest=manifest,
        primary_key=tuple(sorted(positions, key=positions.__getitem__)),
        rows=sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in message.fragments),
    )


def _is_key(field: pb.TableField) -> bool:
    is_marked = field.unenforced_primary_key or field.unenforced_primary_key_position > 0
    return is_marked and field.parent_id < 0


def _parse_version(
    manifest_block: bytes, index_block: bytes | None, version: int
) -> tuple[pb.Manifest, pb.IndexSection]:
    message = parse_message(pb.Manifest, unframe(manifest_block))
    if message.version != version:
        raise Corruption("MW-M01", f"holds table version {message.version} instead of {version}")
    section = pb.IndexSection()
    if index_block is not None:
        section = parse_message(pb.IndexSection, unframe(index_block))
    return message, section


def _find_mem_wal(section: pb.IndexSection) -> list[pb.IndexMetadata]:
    entries = [m for m in section.indices if m.name == layout.MEM_WAL_INDEX_NAME]
    if len(entries) > 1:
        raise Corruption("MW-M03", f"has {len(entries)} entries named {layout.MEM_WAL_INDEX_NAME}")
    return entries


def _timestamp_nanos(message: pb.Manifest) -> int:
    return message.timestamp.seconds * 10**9 + message.timestamp.nanos


def unframe(block: bytes) -> bytes:
    """The message behind its u32 length. Raises Corruption for one that is cut off."""
    length = message_length(block)
    body = block[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if len(body) < length:
        raise Corruption("MW-M01", "is cut off")
    return body


def _parse_index_uuid(message: pb.IndexMetadata) -> str:
    if len(message.uuid.uuid) != 16:
        raise Corruption(
            "MW-M03",
            f"index {message.name!r} has a uuid of {len(message.uuid.uuid)} bytes instead of 16",
        )
    return str(UUID(bytes=message.uuid.uuid))


def _parse_index(message: pb.IndexMetadata) -> IndexEntry:
    return IndexEntry(
        uuid=_parse_index_uuid(message),
        name=message.name,
        field_ids=tuple(message.fields),
        type_url=message.index_details.type_url,
        dataset_version=message.dataset_version,
        created_at_millis=_read_optional(message, "created_at"),
        fragment_bitmap=message.fragment_bitmap or None,
    )


def _parse_state(message: pb.IndexMetadata) -> MemWalState:
    details = parse_message(pb.MemWalIndexDetails, message.index_details.value)
    return MemWalState(
        index_uuid=_parse_index_uuid(message),
        created_at_millis=_read_optional(message, "created_at"),
        merged=_parse_progress(details.merged_generations),
        index_catchup=_parse_catchup(details.index_catchup),
        maintained_indexes=tuple(details.maintained_indexes),
        maintain_all_indexes=_read_optional(details, "maintain_all_indexes"),
        shard_specs=tuple(_parse_spec(spec) for spec in details.shard_specs),
        snapshot_ts_millis=details.snapshot_ts_millis,
        num_shards=details.num_shards,
        inline_snapshots=_read_optional(details, "inline_snapshots"),
        writer_config_defaults=dict(details.writer_config_defaults),
        raw=message.index_details.value,
        unknown_fields=_name_unknown(details),
    )


def _parse_progress(entries: Iterable[pb.MergedGeneration]) -> dict[ShardId, int]:
    progress: dict[ShardId, int] = {}
    for entry in entries:
        shard = _parse_shard_id(entry.shard_id)
        if shard in progress:
            raise Corruption("MW-M03", f"records progress of shard {shard} twice")
        progress[shard] = entry.generation
    return progress


def _parse_catchup(
    entries: Iterable[pb.IndexCatchupProgress],
) -> dict[str, dict[ShardId, int]]:
    catchup: dict[str, dict[ShardId, int]] = {}
    for entry in entries:
        if entry.index_name in catchup:
            raise Corruption("MW-M03", f"records catch-up of index {entry.index_name!r} twice")
        catchup[entry.index_name] = _parse_progress(entry.caught_up_generations)
    return catchup


def _parse_spec(message: pb.ShardSpec) -> ShardSpec:
    return ShardSpec(
        spec_id=message.spec_id,
        fields=tuple(
            ShardField(
                field_id=f.field_id,
                source_ids=tuple(f.source_ids),
                transform=_read_optional(f, "transform"),
                expression=_read_optional(f, "expression"),
                result_type=f.result_type,
                parameters=dict(f.parameters),
            )
            for f in message.fields
        ),
    )


def encode_snapshot(
    state: MemWalState,
    *,
    taken_at_millis: int,
    num_shards: int,
    inline: bytes | None,
    merged: Mapping[ShardId, int],
    left_out: Container[ShardId] = (),
) -> bytes:
    """MemWalIndexDetails with a new shard snapshot, on top of `state.raw`, unknown fields included.

    `merged` raises progress where it is higher than the state's (the repair of a lowered entry);
    it never lowers any (invariant 3). Shards that are `left_out` lose all progress.
    """
    details = parse_message(pb.MemWalIndexDetails, state.raw)
    details.snapshot_ts_millis = taken_at_millis
    details.num_shards = num_shards
    if inline is None:
        details.ClearField("inline_snapshots")
    else:
        details.inline_snapshots = inline
    for entries in (
        details.merged_generations,
        *(index.caught_up_generations for index in details.index_catchup),
    ):
        kept = [entry for entry in entries if _parse_shard_id(entry.shard_id) not in left_out]
        del entries[:]
        entries.extend(kept)
    known = {_parse_shard_id(entry.shard_id): entry for entry in details.merged_generations}
    for shard, generation in merged.items():
        entry = known.get(shard)
        if entry is None:
            entry = details.merged_generations.add()
            entry.shard_id.uuid = UUID(shard).bytes
        entry.generation = max(entry.generation, generation)
    return details.SerializeToString()


def forget_indexes(state: MemWalState, names: Container[str]) -> bytes:
    """MemWalIndexDetails without these maintained indexes and their progress."""
    found = parse_message(pb.MemWalIndexDetails, state.raw)
    kept = [name for name in found.maintained_indexes if name not in names]
    caught_up = [entry for entry in found.index_catchup if entry.index_name not in names]
    del found.maintained_indexes[:]
    del found.index_catchup[:]
    found.maintained_indexes.extend(kept)
    found.index_catchup.extend(caught_up)
    return found.SerializeToString()


# ---- backups


def encode_backup(backup: Backup) -> bytes:
    """The bytes of a backup's document."""
    message = pb.Backup(format=_BACKUP_FORMAT)
    for name in _BACKUP_FIELDS:
        setattr(message, name, getattr(backup, name))
    for shard in backup.shards:
        entry = message.shards.add()
        entry.shard_id.uuid = UUID(shard.shard_id).bytes
        for name in _BACKUP_SHARD_FIELDS:
            setattr(entry, name, getattr(shard, name))
    return message.SerializeToString(deterministic=True)


def decode_backup(data: bytes, *, name: str) -> Backup:
    """A backup's document, checked against its file's name.

    Raises Corruption for what is none or of another format, and for what names another backup or
    leads out of the table.
    """
    message = parse_message(pb.Backup, data)
    _check_backup_format(message.format)
    if message.name != name:
        raise Corruption("MW-A01", f"names backup {message.name!r}")
    manifest = _check_path(message.manifest_path)
    folder, _, file = manifest.rpartition("/")
    number = layout.parse_table_manifest_name(file)
    if folder != layout.VERSIONS or number != message.version:
        raise Corruption("MW-A01", f"has {manifest!r} as the manifest of version {message.version}")
    return Backup(
        shards=tuple(
            BackupShard(
                shard_id=_parse_shard_id(shard.shard_id),
                **{name: getattr(shard, name) for name in _BACKUP_SHARD_FIELDS},
            )
            for shard in message.shards
        ),
        **{name: getattr(message, name) for name in _BACKUP_FIELDS},
    )


def encode_backup_objects(objects: Iterable[BackupObject]) -> bytes:
    """The bytes of a backup's list, sorted by path."""
    message = pb.BackupObjects()
    for found in sorted(objects, key=lambda o: o.path):
        message.objects.add(path=found.path, size_bytes=found.size_bytes, sha256=found.sha256)
    return message.SerializeToString(deterministic=True)


def decode_backup_objects(data: bytes) -> tuple[BackupObject, ...]:
    """A backup's list. Raises Corruption for a path that is named twice or leads elsewhere."""
    found = tuple(
        BackupObject(path=_check_path(entry.path), size_bytes=entry.size_bytes, sha256=entry.sha256)
        for entry in parse_message(pb.BackupObjects, data).objects
    )
    if any(len(entry.sha256) != _SHA256_BYTES for entry in found):
        raise Corruption("MW-A01", "has a digest that is none")
    if len({entry.path for entry in found}) < len(found):
        raise Corruption("MW-A01", "names an object twice")
    return found


_BACKUP_PIN = re.compile(r"(?:memwal-backup-[0-9a-f]{8})?")
"""A pin is deleted when its run was killed: no other checkpoint may be named in its place."""


def encode_backup_mark(mark: BackupMark) -> bytes:
    """The bytes of the mark of a backup under way."""
    message = pb.BackupMark(format=_BACKUP_FORMAT, paths=mark.paths)
    for name in _BACKUP_MARK_FIELDS:
        setattr(message, name, getattr(mark, name))
    return message.SerializeToString(deterministic=True)


def decode_backup_mark(data: bytes) -> BackupMark:
    """The mark of a backup under way. Raises Corruption for what is none."""
    message = parse_message(pb.BackupMark, data)
    _check_backup_format(message.format)
    if not _BACKUP_PIN.fullmatch(message.pin):
        raise Corruption("MW-F05", f"{message.pin!r} is no name of a backup's pin")
    return BackupMark(
        paths=tuple(_check_path(path) for path in message.paths),
        **{name: getattr(message, name) for name in _BACKUP_MARK_FIELDS},
    )


_BACKUP_FIELDS = (
    "name",
    "source",
    "made_at_nanos",
    "version",
    "version_at_nanos",
    "manifest_path",
    "num_objects",
    "num_bytes",
    "objects_sha256",
    "memwal_version",
    "mem_wal_since_nanos",
)
_BACKUP_SHARD_FIELDS = (
    "manifest_version",
    "writer_epoch",
    "replay_after_wal_entry_position",
    "current_generation",
    "merged_generation",
    "wal_first",
    "wal_last",
)
_BACKUP_MARK_FIELDS = ("source", "name", "begun_at_nanos", "pin")


def _check_backup_format(found: int) -> None:
    if found != _BACKUP_FORMAT:
        raise Corruption("MW-A01", f"has format {found} instead of {_BACKUP_FORMAT}")


def _check_path(path: str) -> str:
    """The path, if a backup may hold an object of that name (invariant 10)."""
    if not layout.is_backed_up(path):
        raise Corruption("MW-A01", f"names {path!r}, which is no part of a table")
    return path


def edit_field(
    raw: bytes,
    *,
    field_id: int,
    parent_id: int,
    name: str | None = None,
    nullable: bool | None = None,
) -> bytes:
    """A field of a table's schema with other properties; None: as they are."""
    message = parse_message(pb.TableField, raw)
    message.id, message.parent_id = field_id, parent_id
    if name is not None:
        message.name = name
    if nullable is not None:
        message.nullable = nullable
    return message.SerializeToString()
