"""Copies are whole, compared, and refused where something else is there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from memwal.errors import Corruption, Missing, Refused
from memwal.model import BackupObject
from memwal.ports import PART_BYTES, Objects
from memwal.store.objects.copying import copy_object, digest_object
from memwal.testing import Fault, FaultyObjects, MemoryObjects

LARGE = bytes(range(256)) * (PART_BYTES // 128) + b"end"


def describe(path: str, data: bytes) -> BackupObject:
    return BackupObject(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).digest())


def test_an_object_of_many_parts_is_copied_whole(open_store: Callable[[], Objects]) -> None:
    source, dest = MemoryObjects(), open_store()
    source.put("data/a.lance", LARGE)

    found = copy_object(source, dest, "data/a.lance")

    assert found == describe("data/a.lance", LARGE)
    assert dest.get("data/a.lance") == LARGE
    assert digest_object(dest, "data/a.lance") == found
    assert copy_object(source, dest, "data/a.lance", expected=found) == found


def test_an_object_of_another_size_than_was_listed_is_not_stored() -> None:
    source, dest = MemoryObjects(), MemoryObjects()
    source.put("a", b"stopper")
    for read in (copy_object, digest_object):
        given = (source, dest, "a") if read is copy_object else (source, "a")
        with pytest.raises(Missing, match="had 9 bytes and has 7"):
            read(*given, size_bytes=9)
    assert not dest.exists("a")
    assert copy_object(source, dest, "a", size_bytes=7) == describe("a", b"stopper")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 95])
def test_parts_are_cut_where_they_should_be(size: int) -> None:
    data = bytes(range(size))
    source, dest = MemoryObjects(), MemoryObjects()
    source.put("a", data)

    assert copy_object(source, dest, "a", to="b", part_bytes=10) == describe("a", data)
    assert dest.get("b") == data
    assert source.counts.bytes_read == size


@pytest.mark.parametrize("size", [5, 25])
def test_another_object_under_the_path_is_refused_and_stays(size: int) -> None:
    source, dest = MemoryObjects(), MemoryObjects()
    source.put("a", b"x" * size)
    dest.put("a", b"y" * size)

    with pytest.raises(Refused, match=r"a is there, with other bytes.*MW-A03"):
        copy_object(source, dest, "a", part_bytes=10)

    assert dest.get("a") == b"y" * size


@pytest.mark.parametrize("data", [b"x" * 24, b"x" * 26, b"y" * 25, b"x" * 24 + b"y"])
def test_other_bytes_than_expected_are_not_stored(data: bytes) -> None:
    source, dest = MemoryObjects(), MemoryObjects()
    source.put("a", data)
    expected = describe("a", b"x" * 25)

    with pytest.raises(Corruption, match=r"a is damaged.*MW-A07"):
        copy_object(source, dest, "a", expected=expected, part_bytes=10)
    with pytest.raises(Corruption, match=r"a is damaged.*MW-A07"):
        digest_object(source, "a", expected=expected)

    assert not dest.exists("a")


def test_an_object_that_is_gone_half_way_is_missing_and_leaves_nothing() -> None:
    source, dest = MemoryObjects(), MemoryObjects()
    source.put("a", b"x" * 25)
    gone = Fault(operation="get_range", nth=2, error=Missing("a is gone"))

    with pytest.raises(Missing, match="a is gone"):
        copy_object(FaultyObjects(source, gone), dest, "a", part_bytes=10)

    assert [*dest.list("")] == []
