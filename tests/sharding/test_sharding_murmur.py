"""Murmur3 over columns against mmh3, and against pylance's variant written out."""

from __future__ import annotations

import mmh3
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwal.sharding.encoding import Tail, hash_bytes, hash_words

M = 0xFFFFFFFF
values = st.lists(st.binary(max_size=60) | st.binary(min_size=40, max_size=300), max_size=20)


def hashed(items: list[bytes], tail: Tail, *, before: bytes = b"") -> list[int]:
    """With `before` in front of the data, as in an array that is a slice of another."""
    data = np.frombuffer(before + b"".join(items), dtype=np.uint8)
    lengths = [len(item) for item in items]
    offsets = len(before) + np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return [int(h) for h in hash_bytes(data, offsets, tail)]


def pylance_reference(item: bytes) -> int:
    """What pylance's sharding documentation describes for text, one value at a time."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & M

    def mixed(h: int, k: int) -> int:
        k = rotated(k * 0xCC9E2D51 & M, 15) * 0x1B873593 & M
        return (rotated(h ^ k, 13) * 5 + 0xE6546B64) & M

    h = 0
    whole = len(item) // 4 * 4
    for at in range(0, whole, 4):
        h = mixed(h, int.from_bytes(item[at : at + 4], "little"))
    for byte in item[whole:]:
        h = mixed(h, (byte - 256 if byte > 127 else byte) & M)
    h ^= len(item)
    h = (h ^ (h >> 16)) * 0x85EBCA6B & M
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & M
    h ^= h >> 16
    return h - 2**32 if h >= 2**31 else h


@given(values, st.binary(max_size=5))
@example([b"", b"a" * 64, b"a" * 67, b"a" * 68, b"a" * 71, b"\xff" * 201, b"\xc3\xa9"], b"")
@example([b"a" * 100, b"b" * 101, b"c" * 70], b"xyz")
def test_text_hashes_as_mmh3_does_and_pylances_tail_is_one_block_a_byte(
    items: list[bytes], before: bytes
) -> None:
    assert hashed(items, Tail.STANDARD, before=before) == [mmh3.hash(item, 0) for item in items]
    by_pylance = [pylance_reference(item) for item in items]
    assert hashed(items, Tail.PYLANCE, before=before) == by_pylance


@settings(max_examples=50)
@given(st.integers(1, 8), st.lists(st.binary(min_size=32, max_size=32), max_size=10))
def test_words_hash_as_their_bytes(width: int, items: list[bytes]) -> None:
    cut = [item[: 4 * width] for item in items]
    words = np.frombuffer(b"".join(cut), dtype="<u4").reshape(len(cut), width)
    assert hash_words(words).tolist() == [mmh3.hash(item, 0) for item in cut]


def test_more_rows_than_are_worked_on_at_a_time() -> None:
    numbers = np.arange(70_000, dtype=np.int64) * 7_919 - 1_000_000
    some = slice(0, None, 997)
    words = hash_words(numbers.view("<u4").reshape(-1, 2))[some]
    texts = [str(number).encode() for number in numbers.tolist()]
    assert words.tolist() == [mmh3.hash(number.tobytes()) for number in numbers[some]]
    assert hashed(texts, Tail.STANDARD)[some] == [mmh3.hash(text) for text in texts[some]]
