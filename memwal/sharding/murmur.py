"""Murmur3 x86 32-bit, seed 0, over whole columns. Pure.

numpy computes it for all rows at once. Only long strings go through mmh3 one by one: there the
hashing itself is what takes the time.
"""

from __future__ import annotations

from enum import Enum

import mmh3
import numpy as np
from numpy.typing import NDArray

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
