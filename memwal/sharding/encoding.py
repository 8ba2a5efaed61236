"""Which bytes of a value are hashed, and their hash. Pure.

The spec names the hash, not the bytes that go in. Its third rule (a value hashes alike in every
numeric type) decides most of it; the rest is taken from Iceberg, whose hash it is:

- whole numbers, of any integer, float or decimal type, false and true as 0 and 1: 8 bytes
- floats with a fraction: the 8 bytes of the double; every NaN is one NaN
- decimals with a fraction: 32 bytes, the value times 10**38
- dates: days, and times and timestamps: microseconds, as 8 bytes; a time zone does not count
- text as UTF-8, binary as it is; a dictionary is what it stands for

All numbers are little-endian, in two's complement. pylance differs: numbers of up to 32 bits hash
as 4 bytes, all others as 8, floats by their bits, and a timestamp in its own unit.

The hash is Murmur3 x86 32-bit, seed 0. numpy computes it for all rows at once. Only long strings go
through mmh3 one by one: there the hashing itself is what takes the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memwal.errors import Unsupported
from memwal.sharding.values import PER_SECOND, is_bytes, is_text

_SPEC_ZERO_NAN = np.uint64(0x7FF8000000000000)
_DECIMAL_DIGITS = 76
_DECIMAL_SCALE = 38

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_FIVE = np.uint32(5)
_F1 = np.uint32(0x85EBCA6B)
_F2 = np.uint32(0xC2B2AE35)
_F1_INVERSE = np.uint32(pow(0x85EBCA6B, -1, 2**32))
_F2_INVERSE = np.uint32(pow(0xC2B2AE35, -1, 2**32))
# Rows at a time: the working arrays stay in the processor's cache.
_ROWS = 1 << 15
# Above about 70 bytes a value, mmh3 one by one is faster than numpy block by block.
_SHORT_BLOCKS_MAX = 16
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """32-bit hashes of a column, and which rows are NULL (their hash means nothing)."""

    hashes: I32
    nulls: NDArray[np.bool_]


def hash_by_spec(array: pa.Array) -> Hashed:
    """`murmur3(col0)` of the spec. Raises Unsupported for a nested type."""
    array = unwrap(array)
    nulls = _find_nulls(array)
    words = _spec_words(array)
    if words is None:
        return Hashed(hashes=hash_bytes(*_spec_bytes(array), Tail.STANDARD), nulls=nulls)
    return Hashed(hashes=hash_words(words), nulls=nulls)


def hash_several_by_spec(arrays: list[pa.Array]) -> Hashed:
    """`murmur3_multi(col0, col1, …)` of the spec: one hash of all values but NULL."""
    arrays = [unwrap(array) for array in arrays]
    # Not null_handling="skip": with it, pyarrow drops rows in which all values are NULL.
    empty = pa.scalar(b"", pa.large_binary())
    parts = [pc.fill_null(_as_binary(array), empty) for array in arrays]
    joined = pc.binary_join_element_wise(*parts, empty)
    nulls = np.logical_and.reduce([_find_nulls(array) for array in arrays])
    return Hashed(hashes=hash_bytes(*_to_raw(joined), Tail.STANDARD), nulls=nulls)


def hash_by_pylance(array: pa.Array) -> Hashed:
    """What pylance 14 hashes for `bucket`. Raises Unsupported for a type that it refuses."""
    kind = array.type
    if not is_hashed_by_pylance(kind):
        raise Unsupported("MW-S01", f"pylance refuses {kind} as a bucket column")
    if is_text(kind):
        hashes = hash_bytes(*_to_raw(array.cast(pa.large_binary())), Tail.PYLANCE)
    else:
        hashes = hash_words(_pylance_words(array))
    return Hashed(hashes=hashes, nulls=_find_nulls(array))


def is_hashed_by_pylance(kind: pa.DataType) -> bool:
    """Whether pylance takes the type as a bucket column."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.large_string())
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    )


def unwrap(array: pa.Array) -> pa.Array:
    """The array without a dictionary, run ends or an extension around it."""
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array, pa.ExtensionArray):
            array = array.storage
        else:
            return array


def unwrap_type(kind: pa.DataType) -> pa.DataType:
    """The type that `unwrap` makes of it."""
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _find_nulls(array: pa.Array) -> NDArray[np.bool_]:
    return _to_numpy(array.is_null())


def _to_numpy(array: pa.Array) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _fill_zeros(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """Values as numpy, 0 for NULL: a column of integers must not turn into floats."""
    return _to_numpy(pc.fill_null(array.cast(kind), pa.scalar(0, kind)))


def _to_int64(array: pa.Array) -> I64:
    """Integers, booleans, dates and times as 64 bits; uint64 keeps its bits."""
    kind = array.type
    if pa.types.is_uint64(kind):
        return _fill_zeros(array, pa.uint64()).view(np.int64)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif kind in (pa.date32(), pa.time32("s"), pa.time32("ms")):
        array = array.cast(pa.int32())
    return _fill_zeros(array, pa.int64())


def _to_words(values: NDArray[Any]) -> U32:
    return np.ascontiguousarray(values).view("<u4").reshape(len(values), 2)


def _spec_words(array: pa.Array) -> U32 | None:
    """The values as 32-bit words, or None where they have no fixed number of bytes."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros((len(array), 2), dtype=np.uint32)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return _to_words(_to_int64(array))
    if pa.types.is_date64(kind):
        return _to_words(_to_int64(array.cast(pa.date32())))
    if pa.types.is_temporal(kind) and hasattr(kind, "unit"):
        return _to_words(_to_micros(_to_int64(array), kind.unit))
    if pa.types.is_floating(kind):
        return _to_words(_to_float_bits(array))
    return None


def _to_micros(values: I64, unit: str) -> I64:
    if unit == "ns":
        return values // 1_000
    with np.errstate(over="ignore"):
        return values * np.int64(10**6 // PER_SECOND[unit])


def _to_float_bits(array: pa.Array) -> I64:
    """Whole numbers as integers, others as the double's bits."""
    values = _fill_zeros(array, pa.float64())
    bits = values.view(np.int64).copy()
    bits[np.isnan(values)] = _SPEC_ZERO_NAN.view(np.int64)
    whole = np.isfinite(values) & (np.floor(values) == values)
    signed = whole & (values >= -(2.0**63)) & (values < 2.0**63)
    bits[signed] = values[signed].astype(np.int64)
    above = whole & (values >= 2.0**63) & (values < 2.0**64)
    bits[above] = values[above].astype(np.uint64).view(np.int64)
    return bits


def _spec_bytes(array: pa.Array) -> tuple[U8, I64]:
    kind = array.type
    if pa.types.is_decimal(kind):
        return _decimal_bytes(array)
    if is_text(kind) or is_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return _to_raw(array.cast(pa.large_binary()))
    raise Unsupported("MW-S01", f"a column of type {kind} cannot be hashed into buckets")


def _decimal_bytes(array: pa.Array) -> tuple[U8, I64]:
    """Whole numbers of 64 bits as 8 bytes, all others as 32."""
    array = pc.fill_null(array, pa.scalar(Decimal(0), array.type))
    try:
        wide = array.cast(pa.decimal256(_DECIMAL_DIGITS, _DECIMAL_SCALE))
    except pa.ArrowInvalid as error:
        raise Unsupported(
            "MW-S02", f"a value of type {array.type} is too large to hash: {error}"
        ) from None
    # Not trunc(): pyarrow's is wrong for large decimals.
    whole = array.cast(pa.decimal256(_DECIMAL_DIGITS, 0), safe=False)
    inside = pc.and_(pc.greater_equal(wide, _decimal(-(2**63))), pc.less(wide, _decimal(2**64)))
    short = _to_numpy(pc.and_(pc.equal(whole.cast(wide.type), wide), inside))
    rows = _decimal_rows(wide).copy()
    # Without a fraction, the low 8 bytes of the number are the integer.
    rows[short] = _decimal_rows(whole)[short]
    lengths = np.where(short, 8, 32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    kept = np.arange(32)[None, :] < lengths[:, None]
    return rows[kept], offsets


def _decimal(value: int) -> pa.Scalar:
    return pa.scalar(Decimal(value), pa.decimal256(_DECIMAL_DIGITS, _DECIMAL_SCALE))


def _decimal_rows(array: pa.Array) -> U8:
    if not len(array):
        return np.zeros((0, 32), dtype=np.uint8)
    data = np.frombuffer(array.buffers()[1], dtype=np.uint8)
    return data[array.offset * 32 : (array.offset + len(array)) * 32].reshape(len(array), 32)


def _to_raw(array: pa.Array) -> tuple[U8, I64]:
    """The bytes of a large_binary array and where each value starts."""
    if not len(array):
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, positions, data = array.buffers()
    offsets = np.frombuffer(positions, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
    return values[: offsets[-1]], offsets


def _as_binary(array: pa.Array) -> pa.Array:
    """The hashed bytes of each value as large_binary, NULL where the value is."""
    words = _spec_words(array)
    if words is None:
        data, offsets = _spec_bytes(array)
    else:
        data = np.ascontiguousarray(words).view(np.uint8).ravel()
        offsets = np.arange(len(words) + 1, dtype=np.int64) * (4 * words.shape[1])
    missing = pa.array(~_find_nulls(array), pa.bool_()).buffers()[1]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(array), [missing, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _pylance_words(array: pa.Array) -> U32:
    kind = array.type
    if pa.types.is_floating(kind):
        return _pylance_floats(_fill_zeros(array, kind))
    values = _to_int64(array)
    if kind.bit_width <= 32:
        return values.astype(np.int32).view(np.uint32).reshape(len(values), 1)
    return _to_words(values)


def _pylance_floats(values: NDArray[Any]) -> U32:
    clean = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    clean = np.where(clean == 0, values.dtype.type(0), clean)
    return np.ascontiguousarray(clean).view("<u4").reshape(len(values), values.itemsize // 4)


class Tail(Enum):
    """What happens to the up to three bytes after the last whole block of four."""

    STANDARD = "one last block, padded with zeros"
    PYLANCE = "each byte a block of its own, sign-extended"


def hash_words(words: U32) -> I32:
    """The hash of each row of `words`: a value's bytes as little-endian 32-bit words."""
    rows, width = words.shape
    hashes = np.zeros(rows, dtype=np.uint32)
    for start in range(0, rows, _ROWS):
        h = hashes[start : start + _ROWS]
        for column in range(width):
            _mix(h, words[start : start + _ROWS, column])
        h ^= np.uint32(4 * width)
        _finish(h)
    return hashes.view(np.int32)


def hash_bytes(data: U8, offsets: I64, tail: Tail) -> I32:
    """The hash of each value; value i is `data[offsets[i]:offsets[i + 1]]`."""
    # Words are read at any byte, so that the last ones reach over the end.
    padded = np.zeros(len(data) + 4, dtype=np.uint8)
    padded[: len(data)] = data
    words: U32 = np.ndarray((len(data) + 1,), dtype="<u4", buffer=padded.data, strides=(1,))
    hashes = np.zeros(max(len(offsets) - 1, 0), dtype=np.uint32)
    for start in range(0, len(hashes), _ROWS):
        part = slice(start, min(start + _ROWS, len(hashes)))
        starts = offsets[part.start : part.stop]
        lengths = offsets[part.start + 1 : part.stop + 1] - starts
        h = hashes[part]
        long = np.flatnonzero(lengths >= 4 * (_SHORT_BLOCKS_MAX + 1))
        if tail is Tail.STANDARD and len(long) == len(h):
            h[:] = _hash_singly(data, starts, lengths)
            continue
        _mix_blocks(h, words, starts, lengths, long)
        if tail is Tail.PYLANCE and len(long):
            h[long] = _hash_long_blocks(data, starts[long], lengths[long] & ~np.int64(3))
        _mix_tail(h, words, starts, lengths, tail)
        h ^= lengths.astype(np.uint32)
        _finish(h)
        if tail is Tail.STANDARD and len(long):
            h[long] = _hash_singly(data, starts[long], lengths[long])
    return hashes.view(np.int32)


def _mix_blocks(h: U32, words: U32, starts: I64, lengths: I64, long: I64) -> None:
    """Take up every value's whole blocks of four bytes, but for the `long` ones."""
    blocks = lengths >> 2
    blocks[long] = 0
    # Longest first: the rows that still have a block are always the first ones.
    order = np.argsort(_SHORT_BLOCKS_MAX - blocks.astype(np.uint8), kind="stable")
    counts = len(blocks) - np.cumsum(np.bincount(blocks, minlength=1))
    state = h[order]
    begin = starts[order]
    for block, count in enumerate(counts[: blocks.max(initial=0)].tolist()):
        _mix(state[:count], words[begin[:count] + 4 * block])
    h[order] = state


def _hash_singly(data: U8, starts: I64, lengths: I64) -> U32:
    first = int(starts[0])
    ends = starts + lengths - first
    span = data[first : first + int(ends[-1])].tobytes()
    bounds = zip((starts - first).tolist(), ends.tolist(), strict=True)
    hashes = (mmh3.hash(span[start:end], 0, False) for start, end in bounds)
    return np.fromiter(hashes, dtype=np.uint32, count=len(starts))


def _hash_long_blocks(data: U8, starts: I64, lengths: I64) -> U32:
    """The state after the whole blocks: mmh3's hash of them with its last steps undone."""
    finished = _hash_singly(data, starts, lengths)
    _unfinish(finished)
    finished ^= lengths.astype(np.uint32)
    return finished


def _mix_tail(h: U32, words: U32, starts: I64, lengths: I64, tail: Tail) -> None:
    rest = lengths & 3
    if not rest.any():
        return
    last = words[starts + (lengths & ~np.int64(3))]
    if tail is Tail.STANDARD:
        h ^= _scramble(last & _TAIL_MASKS[rest])
        return
    for byte in range(3):
        rows = np.flatnonzero(rest > byte)
        if not len(rows):
            return
        values = (last[rows] >> np.uint32(8 * byte)).astype(np.uint8)
        state = h[rows]
        _mix(state, values.view(np.int8).astype(np.int32).view(np.uint32))
        h[rows] = state


def _scramble(k: U32) -> U32:
    k = k * _C1
    k = (k << np.uint32(15)) | (k >> np.uint32(17))
    k *= _C2
    return k


def _mix(h: U32, k: U32) -> None:
    h ^= _scramble(k)
    h[:] = (h << np.uint32(13)) | (h >> np.uint32(19))
    h *= _FIVE
    h += _ADD


def _finish(h: U32) -> None:
    h ^= h >> np.uint32(16)
    h *= _F1
    h ^= h >> np.uint32(13)
    h *= _F2
    h ^= h >> np.uint32(16)


def _unfinish(h: U32) -> None:
    h ^= h >> np.uint32(16)
    h *= _F2_INVERSE
    h ^= (h >> np.uint32(13)) ^ (h >> np.uint32(26))
    h *= _F1_INVERSE
    h ^= h >> np.uint32(16)
