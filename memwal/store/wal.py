"""Reads WAL entries: Arrow IPC streams with the writer's epoch in the schema (spec: WAL Entry)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from memwal import layout
from memwal.errors import Corruption
from memwal.model import ShardId
from memwal.ports import ObjectInfo, Objects

_HEAD_BYTES = 4096
_HEAD_BYTES_MAX = 1024 * 1024
_CONTINUATION = b"\xff\xff\xff\xff"


@dataclass(frozen=True, kw_only=True, slots=True)
class WalEntry:
    """One entry. `position` is 1-based; `generation` is None where its writer left it out."""

    position: int
    writer_epoch: int
    generation: int | None
    fence_sentinel: bool
    rows: int
    size_bytes: int
    written_at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WalHead:
    """What an entry's schema says. `generation` is None where its writer left it out."""

    writer_epoch: int
    generation: int | None
    fence_sentinel: bool


class WalEntries:
    """The WAL of a table's shards."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def listed(self, shard_id: ShardId) -> list[tuple[int, ObjectInfo]]:
        """Positions and files, ascending; names that are no entry's are passed over."""
        found = []
        for info in self._objects.list(layout.wal_folder(shard_id)):
            position = layout.parse_wal_entry_name(info.path.rsplit("/", 1)[-1])
            if position is not None:
                found.append((position, info))
        return sorted(found, key=lambda pair: pair[0])

    def read(self, shard_id: ShardId, position: int, info: ObjectInfo) -> WalEntry:
        """One entry's description. Raises Missing, or Corruption for a torn one."""
        data = self._objects.get(info.path)
        try:
            with pa.ipc.open_stream(data) as stream:
                metadata = stream.schema.metadata or {}
                rows = sum(batch.num_rows for batch in stream)
            epoch = int(metadata[b"writer_epoch"])
            generation = metadata.get(b"generation")
            return WalEntry(
                position=position,
                writer_epoch=epoch,
                generation=None if generation is None else int(generation),
                fence_sentinel=metadata.get(b"fence_sentinel") == b"true",
                rows=rows,
                size_bytes=info.size_bytes,
                written_at_nanos=info.modified_at_nanos,
            )
        except (pa.ArrowException, KeyError, ValueError, EOFError) as error:
            raise Corruption(
                f"{self._objects.uri}: shard {shard_id}: {info.path} is not a WAL entry: {error}"
            ) from None

    def head(self, path: str, size_bytes: int) -> WalHead:
        """What an entry's schema says, without its rows. Raises Missing, Corruption."""
        data = self._objects.get_range(path, 0, min(size_bytes, _HEAD_BYTES))
        wanted = _schema_bytes(data)
        if wanted > len(data):
            data = self._objects.get_range(path, 0, min(size_bytes, wanted))
        try:
            metadata = pa.ipc.read_schema(pa.BufferReader(data)).metadata or {}
            generation = metadata.get(b"generation")
            return WalHead(
                writer_epoch=int(metadata[b"writer_epoch"]),
                generation=None if generation is None else int(generation),
                fence_sentinel=_flag(metadata.get(b"fence_sentinel")),
            )
        except (pa.ArrowException, KeyError, ValueError, EOFError, OSError) as error:
            raise Corruption(f"{self._objects.uri}: {path} is not a WAL entry: {error}") from None


def _schema_bytes(data: bytes) -> int:
    """How much of an IPC stream its schema message takes; bounded."""
    if data[:4] != _CONTINUATION or len(data) < 8:
        return 0
    return min(8 + int.from_bytes(data[4:8], "little"), _HEAD_BYTES_MAX)


def _flag(value: bytes | None) -> bool:
    """Anything but an outright no counts: a sentinel that is not seen as one would be deleted."""
    return value is not None and value != b"false"
