"""How large an Arrow IPC stream becomes, told by its headers before anything of it is decoded.

A compressed buffer starts with its size when decoded (8 bytes, little-endian; -1: it is not
compressed after all), and Arrow allocates just that much for it. So a stream of a few kilobytes may
ask for terabytes. Source: Arrow's `Message.fbs` and `Schema.fbs`, and the flatbuffers format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

# Vtable slots: of Message, DictionaryBatch and RecordBatch.
_HEADER, _DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_PREFIX_BYTES = 8
_CONTINUATION = b"\xff\xff\xff\xff"
END_MARKER = _CONTINUATION + b"\0\0\0\0"
# Where Arrow 0.17 said that buffers are compressed; still heeded by its readers.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


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
