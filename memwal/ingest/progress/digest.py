"""Digests of rows by their values, independent of files, buffers and Arrow chunks. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGEST_BYTES = 12
_DIGESTS: int = 256**_DIGEST_BYTES
_VECTORS = (pa.float32(), pa.float64(), pa.int8(), pa.uint8())
Bytes = Any


def digest_rows(before: str, rows: pa.Table, *more: pa.Array | None) -> str:
    """The digest `before` extended by these rows; `more` are further columns of them."""
    digest = hashlib.blake2b(before.encode(), digest_size=_DIGEST_BYTES)
    for column in (*rows.columns, *more):
        for part in _list_bytes(column):
            digest.update(part)
    return digest.hexdigest()


def digest_each(rows: pa.Table) -> int:
    """A digest that does not depend on the rows' order: digests of two tables can be added up.

    NULLs are left out, so that the digest stays the same when the table gets new columns.
    """
    digests = [hashlib.blake2b(digest_size=_DIGEST_BYTES) for _ in range(len(rows))]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for digest, value in zip(digests, _list_values_of(column), strict=True):
            if value is not None:
                digest.update(f"{name} {len(value)};".encode())
                digest.update(value)
    return add_digests(int.from_bytes(digest.digest()) for digest in digests)


def add_digests(digests: Iterable[int]) -> int:
    """The digest of all rows, from the digests of parts of them (`digest_each`)."""
    return sum(digests) % _DIGESTS


def _list_values_of(column: pa.ChunkedArray) -> Iterator[Bytes | None]:
    """Each row's value as bytes, whose encoding depends on the type alone."""
    for chunk in column.chunks:
        array = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        kind, first, size = array.type, array.offset, 1
        is_vector = pa.types.is_fixed_size_list(kind) and kind.value_type in _VECTORS
        valid = array.is_valid().to_pylist()
        if is_vector:  # avoids Python objects, which are slow
            kind, size, array = kind.value_type, kind.list_size, array.values
            array = array.fill_null(0) if array.null_count else array
            first = first * size + array.offset
        if is_vector or (_has_width(kind) and kind.bit_width >= 8):
            width, buffer = kind.bit_width // 8, array.buffers()[1]
            data = memoryview(buffer or b"")[first * width :]
            values: Iterator[Bytes] = (
                data[n * width * size :][: width * size] for n in range(len(chunk))
            )
        else:
            values = (repr(value).encode() for value in array.to_pylist())
        yield from (value if there else None for value, there in zip(values, valid, strict=True))


def _list_bytes(column: pa.ChunkedArray | pa.Array | None) -> Iterator[Bytes]:
    """The places of NULLs, and then the other values: what is stored under a NULL is arbitrary."""
    if column is None:
        yield b"-"
        return
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunks, or too large for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    yield f"{array.type} {len(array)} {array.null_count};".encode()
    if array.null_count:
        yield pc.cast(array.is_valid(), pa.uint8()).to_numpy()
        array = array.drop_null()
    yield from _list_values(array)


def _list_values(array: pa.Array) -> Iterator[Bytes]:
    """The bytes of an array without NULLs."""
    kind = array.type
    if not len(array) or pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        yield from _list_bytes(array.dictionary_decode())
    elif pa.types.is_struct(kind):
        for member in array.flatten():
            yield from _list_bytes(member)
    elif pa.types.is_map(kind):
        ends = array.offsets.to_numpy()
        yield np.diff(ends)
        for members in (array.keys, array.items):
            yield from _list_bytes(members.slice(ends[0], ends[-1] - ends[0]))
    elif pa.types.is_nested(kind):
        if not pa.types.is_fixed_size_list(kind):
            yield pc.list_value_length(array).to_numpy()
        yield from _list_bytes(array.flatten())
    elif pa.types.is_boolean(kind):
        yield pc.cast(array, pa.uint8()).to_numpy()
    elif _has_width(kind):
        width = kind.bit_width // 8
        yield memoryview(array.buffers()[1])[array.offset * width :][: len(array) * width]
    else:
        large = array.cast(pa.large_binary())
        _, offsets, data = large.buffers()
        ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
        yield np.diff(ends)
        yield memoryview(data or b"")[ends[0] : ends[-1]]


def _has_width(kind: pa.DataType) -> bool:
    tests = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)
