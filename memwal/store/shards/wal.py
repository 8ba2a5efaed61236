"""Reads WAL entries: Arrow IPC streams with the writer's epoch in the schema (spec: WAL Entry).

The headers tell how large a stream becomes, before anything of it is decoded. A compressed buffer
starts with its size when decoded (8 bytes, little-endian; -1: it is not compressed after all), and
Arrow allocates just that much for it. So a stream of a few kilobytes may ask for terabytes. Source:
Arrow's `Message.fbs` and `Schema.fbs`, and the flatbuffers format.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from shlex import quote
from threading import Lock

import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, Refused
from memwal.format import layout
from memwal.format.replay import WalEntry, is_flushed, select_above
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.ports import Objects
from memwal.store.shards.listing import wal_entries
from memwal.threads import side_by_side

# Vtable slots: of Message, DictionaryBatch and RecordBatch.
_HEADER, _DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_PREFIX_BYTES = 8
_CONTINUATION = b"\xff\xff\xff\xff"
END_MARKER = _CONTINUATION + b"\0\0\0\0"
# Where Arrow 0.17 said that buffers are compressed; still heeded by its readers.
_OLD_COMPRESSION = b"ARROW:experimental_compression"

_HEAD_BYTES = 4096
_HEAD_BYTES_MAX = 1024 * 1024
_NUMBER = re.compile(rb"[0-9]{1,20}")
_UNREADABLE = (pa.ArrowException, KeyError, ValueError, EOFError, OSError, OverflowError)
_LISTINGS_MAX = 5
_FIELD_ID = b"lance:field_id"


def count_decoded_bytes(data: bytes) -> int:
    """Bytes of memory that the batches and dictionaries of a stream take, all together.

    Raises ValueError or pa.ArrowException for what is no such stream.
    """
    return sum(_message_bytes(message) for message in _messages(data))


def is_cut_off(data: bytes) -> bool:
    """Whether these are the first bytes of a stream that was longer; none and only zeros, too.

    False for one that merely lacks its end marker, as Arrow permits, and for damage elsewhere.
    """
    if data.endswith(END_MARKER) or data[:4] != _CONTINUATION[: len(data)]:
        return not data.strip(b"\0")
    try:
        return not list(_messages(data))
    except (pa.ArrowException, OSError, EOFError):
        return True


def _messages(data: bytes) -> Iterator[pa.ipc.Message]:
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _message_bytes(message: pa.ipc.Message) -> int:
    if message.type not in ("record batch", "dictionary"):
        return 0
    metadata, body = message.metadata.to_pybytes(), message.body
    try:
        batch = _at(metadata, _follow(metadata, 0), _HEADER)
        if batch is not None:
            batch = _follow(metadata, batch)
        if batch is not None and message.type == "dictionary":
            batch = _at(metadata, batch, _DICTIONARY_DATA)
            batch = None if batch is None else _follow(metadata, batch)
        if batch is None:
            raise ValueError("a message without its batch")
        if _at(metadata, batch, _COMPRESSION) is None and _OLD_COMPRESSION not in metadata:
            return int(body.size)
        return sum(_buffer_bytes(body, *place) for place in _buffers(metadata, batch))
    except struct.error as error:
        raise ValueError(f"a message that ends too early: {error}") from None


def _buffers(metadata: bytes, batch: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each buffer in the body."""
    place = _at(metadata, batch, _BUFFERS)
    if place is None:
        return
    vector = _follow(metadata, place)
    (count,) = struct.unpack_from("<I", metadata, vector)
    for index in range(count):
        yield struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)


def _buffer_bytes(body: pa.Buffer, offset: int, length: int) -> int:
    if offset < 0 or length < 0 or offset + length > body.size:
        raise ValueError("a buffer outside its message")
    if length < _PREFIX_BYTES:
        return length
    (size,) = struct.unpack("<q", body.slice(offset, _PREFIX_BYTES).to_pybytes())
    return length if size < 0 else int(size)


def _follow(metadata: bytes, place: int) -> int:
    """Where an offset leads."""
    (offset,) = struct.unpack_from("<I", metadata, place)
    return place + int(offset)


def _at(metadata: bytes, table: int, slot: int) -> int | None:
    """Where a table's field is stored; None when it is left out."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - int(back)
    if vtable < 0:
        raise ValueError("a table without its fields")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if size < 4 + 2 * (slot + 1):
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * slot)
    return table + int(offset) if offset else None


_BLOB_TYPE, _NO_TYPE = b"lance.blob.v2", b"lance-blob-v2"  # as long, and known to nobody


@dataclass(frozen=True, kw_only=True, slots=True)
class WalLimits:
    """Bounds on reading a WAL.

    `entry_bytes_max` is for one stored entry, `decoded_bytes_max` for its rows in memory, which may
    be compressed. Entries are read side by side, up to `entries_in_flight_max` and as long as about
    `bytes_in_flight_max` are on the way. `rows_bytes_max` is for the folded rows of one shard in
    memory.
    """

    entry_bytes_max: int = 1024 * 1024 * 1024
    decoded_bytes_max: int = 1024 * 1024 * 1024
    entries_in_flight_max: int = 8
    bytes_in_flight_max: int = 64 * 1024 * 1024
    rows_bytes_max: int = 1024 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class WalHead:
    """What an entry's schema says. `generation` is None where its writer left it out.

    `fields` are its columns, with their field ids where its writer left them.
    """

    writer_epoch: int
    generation: int | None
    fence_sentinel: bool
    fields: tuple[tuple[int | None, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredEntry:
    """An entry's bytes, or as many as the limit allows, and how many there are."""

    shard_id: ShardId
    position: int
    data: bytes
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReadEntry:
    """An entry with its rows. `schema` is the one that its writer had, field ids included."""

    entry: WalEntry
    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]


class CutOff(Corruption):
    """Only the first bytes of an entry are stored, or none."""


class WalEntries:
    """The WAL of a table's shards."""

    def __init__(self, objects: Objects, limits: WalLimits | None = None) -> None:
        self._objects = objects
        self.limits = limits or WalLimits()
        self._one_large = Lock()

    @property
    def uri(self) -> str:
        """The table's address, for errors."""
        return self._objects.uri

    def list_entries(self, shard_id: ShardId) -> list[tuple[int, StoredFile]]:
        """Positions and files, ascending; names that are no entry's are passed over."""
        return wal_entries(shard_id, self._objects.list(layout.wal_folder(shard_id)))

    def list_settled(self, manifest: ShardManifest) -> list[tuple[int, StoredFile]]:
        """The same as `list_entries`, without holes that only the listing has.

        A listing is no snapshot: a live writer's entries may come up without an earlier one. So a
        position that seems to be missing is asked for, and the listing repeated if it is there.
        """
        listed = self.list_entries(manifest.shard_id)
        for _ in range(_LISTINGS_MAX):
            positions = {position for position, _ in listed}
            tip = manifest.replay_after_wal_entry_position + 1
            while tip in positions:
                tip += 1
            if tip > max(positions, default=0) or not self.exists(manifest.shard_id, tip):
                break
            listed = self.list_entries(manifest.shard_id)
        return listed

    def count_unflushed(self, manifest: ShardManifest) -> int:
        """About how many entries hold rows in no generation: by a listing, and the last one."""
        above = select_above(manifest, self.list_entries(manifest.shard_id))
        if above and is_flushed(
            manifest, self.head(above[-1][1].path, above[-1][1].size_bytes).generation
        ):
            return 0
        return len(above)

    def find_unflushed(self, manifest: ShardManifest) -> int | None:
        """The first position whose rows are in no generation, or that can't be read."""
        for position, info in self.list_entries(manifest.shard_id):
            if position <= manifest.replay_after_wal_entry_position:
                continue
            try:
                head = self.head(info.path, info.size_bytes)
            except Missing:
                continue
            except MemWalError:
                return position
            if not head.fence_sentinel and not is_flushed(manifest, head.generation):
                return position
        return None

    def read_heads(self, manifest: ShardManifest) -> dict[str, WalHead]:
        """What the entries that a replay takes say of themselves, by path.

        What can't be read is left out: the replay itself reports it.
        """

        def look(pair: tuple[int, StoredFile]) -> WalHead | None:
            try:
                return self.head(pair[1].path, pair[1].size_bytes)
            except MemWalError:
                return None

        covered = manifest.replay_after_wal_entry_position
        above = [pair for pair in self.list_entries(manifest.shard_id) if pair[0] > covered]
        found = side_by_side(look, above, self.limits.entries_in_flight_max)
        return {file.path: head for (_, file), head in zip(above, found, strict=True) if head}

    def exists(self, shard_id: ShardId, position: int) -> bool:
        """Whether a position holds an entry."""
        return self._objects.exists(layout.wal_entry_path(shard_id, position))

    def read(self, shard_id: ShardId, position: int, info: StoredFile) -> WalEntry:
        """One listed entry's description; its rows are decoded, and let go batch by batch.

        Raises as `rows`.
        """
        entry, _ = self._decode(self._read_stored(shard_id, position), lambda batch: None)
        return replace(entry, size_bytes=info.size_bytes, written_at_nanos=info.modified_at_nanos)

    def describe(
        self, shard_id: ShardId, listed: Sequence[tuple[int, StoredFile]]
    ) -> list[WalEntry]:
        """The listed entries, read in threads. What is wrong with one is its `problem`.

        An entry that is gone by now is left out: it was collected.
        """

        def describe_one(pair: tuple[int, StoredFile]) -> WalEntry | None:
            position, info = pair
            try:
                return self.read(shard_id, position, info)
            except Missing:
                return None
            except (Corruption, Refused) as error:
                return WalEntry(
                    position=position,
                    size_bytes=info.size_bytes,
                    written_at_nanos=info.modified_at_nanos,
                    refused=isinstance(error, Refused),
                    torn=isinstance(error, CutOff),
                    problem=str(error).removeprefix(f"{self._objects.uri}: shard {shard_id}: "),
                )

        largest = max((info.size_bytes for _, info in listed), default=1)
        found = side_by_side(describe_one, listed, self.readers_for(largest))
        return [entry for entry in found if entry is not None]

    def readers_for(self, entry_bytes: int) -> int:
        """How many entries of a size may be on the way at once."""
        fitting = self.limits.bytes_in_flight_max // max(1, entry_bytes)
        return max(1, min(self.limits.entries_in_flight_max, fitting))

    def rows(self, shard_id: ShardId, position: int) -> ReadEntry:
        """One entry with its rows, every batch checked in full.

        Raises Missing; CutOff for an entry that is torn, Corruption for one that is not Arrow, or
        without an epoch; Refused for one above a limit.
        """
        return self.decode(self._read_stored(shard_id, position))

    def decode(self, stored: StoredEntry) -> ReadEntry:
        """An entry's rows. Raises as `rows`, but not Missing."""
        batches: list[pa.RecordBatch] = []
        entry, schema = self._decode(stored, batches.append)
        return ReadEntry(entry=entry, schema=schema, batches=tuple(batches))

    def read_stored(self, shard_id: ShardId, start: int, count: int) -> list[StoredEntry | None]:
        """The entries at `count` positions, read side by side; None where there is none."""

        def read(position: int) -> StoredEntry | None:
            try:
                return self._read_stored(shard_id, position)
            except Missing:
                return None

        return side_by_side(read, range(start, start + count), count)

    def _read_stored(self, shard_id: ShardId, position: int) -> StoredEntry:
        path = layout.wal_entry_path(shard_id, position)
        data, size = self._objects.get_tail(path, self.limits.entry_bytes_max)
        return StoredEntry(shard_id=shard_id, position=position, data=data, size_bytes=size)

    def _decode(
        self, stored: StoredEntry, take: Callable[[pa.RecordBatch], object]
    ) -> tuple[WalEntry, pa.Schema]:
        """What an entry is, and its schema; `take` gets each batch."""
        data = stored.data
        path = layout.wal_entry_path(stored.shard_id, stored.position)
        where = f"{self._objects.uri}: shard {stored.shard_id}: position {stored.position} ({path})"
        rows = batches = 0
        try:
            with self._turn(where, stored), pa.ipc.open_stream(_with_plain_blobs(data)) as stream:
                schema = stream.schema
                head = _head(schema)
                for batch in stream:
                    batch.validate(full=True)
                    rows, batches = rows + batch.num_rows, batches + 1
                    take(batch)
            if head.fence_sentinel and rows:
                raise ValueError(f"a fence sentinel with {rows} rows")
        except _UNREADABLE as error:
            if not is_cut_off(data):
                raise Corruption(
                    "MW-W02", f"{where} is not a WAL entry: {_first_line(error)}"
                ) from None
            drop = f"memwal rescue {quote(self.uri)} --shard {stored.shard_id} --drop-torn"
            raise CutOff(
                "MW-W03",
                f"{where} is not a WAL entry: it is cut off after {stored.size_bytes} bytes. If no "
                f"rows are behind it, `{drop}` puts it aside",
            ) from None
        entry = WalEntry(
            position=stored.position,
            size_bytes=stored.size_bytes,
            written_at_nanos=0,
            writer_epoch=head.writer_epoch,
            generation=head.generation,
            fence_sentinel=head.fence_sentinel,
            rows=rows,
            batches=batches,
            fields=head.fields,
            ended=data.endswith(END_MARKER),
        )
        return entry, schema

    def _turn(self, where: str, stored: StoredEntry) -> AbstractContextManager[object]:
        """A context for decoding an entry, which lets in one large entry at a time.

        Raises Refused for an entry above a limit.
        """
        limits = self.limits
        if stored.size_bytes > len(stored.data):
            raise Refused(
                "MW-W04",
                f"{where} is an entry of {stored.size_bytes} bytes; at most "
                f"{limits.entry_bytes_max} are read",
            )
        size = count_decoded_bytes(stored.data)
        if size > limits.decoded_bytes_max:
            raise Refused(
                "MW-W04",
                f"{where} unfolds from {stored.size_bytes} to {size} bytes; at most "
                f"{limits.decoded_bytes_max} are decoded",
            )
        small = limits.bytes_in_flight_max // limits.entries_in_flight_max
        return self._one_large if size > max(small, stored.size_bytes) else nullcontext()

    def head(self, path: str, size_bytes: int) -> WalHead:
        """What an entry's schema says, without its rows. Raises Missing, Corruption."""
        data = self._objects.get_range(path, 0, min(size_bytes, _HEAD_BYTES))
        wanted = min(size_bytes, _schema_bytes(data))
        if wanted > len(data):
            data = self._objects.get_range(path, 0, wanted)
        try:
            return _head(pa.ipc.read_schema(pa.BufferReader(_with_plain_blobs(data))))
        except MemWalError:
            raise
        except _UNREADABLE as error:
            raise Corruption(
                "MW-W02", f"{self._objects.uri}: {path} is not a WAL entry: {error}"
            ) from None


def _schema_bytes(data: bytes) -> int:
    """How much of an IPC stream its schema message takes; bounded."""
    if data[:4] != _CONTINUATION or len(data) < 8:
        return 0
    return min(8 + int.from_bytes(data[4:8], "little"), _HEAD_BYTES_MAX)


def _with_plain_blobs(data: bytes) -> bytes:
    """The entry with its blob columns as the plain structs that they are stored as.

    pylance gives them the name of its blob type, which does not take the fields that its writer
    has put there (14.0.2): pyarrow would refuse the schema, once lance is imported.
    """
    end = _schema_bytes(data)
    if _BLOB_TYPE not in data[:end]:
        return data
    return data[:end].replace(_BLOB_TYPE, _NO_TYPE) + data[end:]


def _head(schema: pa.Schema) -> WalHead:
    """Raises KeyError or ValueError for a schema that is no entry's."""
    metadata = schema.metadata or {}
    if b"writer_epoch" not in metadata:
        raise ValueError("its schema names no writer_epoch")
    generation = metadata.get(b"generation")
    return WalHead(
        writer_epoch=_number("writer_epoch", metadata[b"writer_epoch"]),
        generation=None if generation is None else _number("generation", generation),
        fence_sentinel=_flag(metadata.get(b"fence_sentinel")),
        fields=tuple((field_id_of(f), f.name) for f in schema if f.name != layout.TOMBSTONE),
    )


def _number(name: str, text: bytes) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > layout.U64_MAX:
        raise ValueError(f"{name} is {text[:40]!r}")
    return int(text)


def _flag(value: bytes | None) -> bool:
    """Anything but an outright no counts: a sentinel that is not seen as one would be deleted."""
    return value is not None and value != b"false"


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200] or type(error).__name__


def field_id_of(field: pa.Field) -> int | None:
    """The field id that pylance leaves in a column of an entry. Raises Refused for a forged one."""
    text = (field.metadata or {}).get(_FIELD_ID)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 10:
        raise Refused(
            "MW-W08", f"column {field.name!r} has the field id {text[:40]!r}, which is no number"
        )
    return int(text)
