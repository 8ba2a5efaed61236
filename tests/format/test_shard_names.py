"""Shards as people name them: by their ids, or by how these begin."""

from __future__ import annotations

import pytest

from memwal.errors import Usage
from memwal.format.layout import find_shard, parse_shard

A = "6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11"
B = "6f2c5a8f-1d0b-4d55-9a53-0f6f6a1f0c11"
C = "07112233-4455-4677-8899-aabbccddeeff"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (A, A),
        (A.upper(), A),
        (A.replace("-", ""), A),
        ("6F2C", "6f2c"),
        ("6f2c5a8e1d0b4", "6f2c5a8e-1d0b-4"),
        ("6f2c5a8e-1d0b-", "6f2c5a8e-1d0b"),
        ("6f2c5a8e…", "6f2c5a8e"),
    ],
)
def test_an_id_or_how_it_begins_is_read(text: str, found: str) -> None:
    assert parse_shard(text) == found


@pytest.mark.parametrize("text", ["", "shard-1", "-", "6f2g", A + "0", "٣"])
def test_what_begins_no_id_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="is not a shard id"):
        parse_shard(text)


def test_a_beginning_names_the_one_shard_that_has_it() -> None:
    there = [A, B, C]
    assert [find_shard(text, there, "t") for text in ("6f2c5a8e", "0", B)] == [A, C, B]
    with pytest.raises(Usage, match=f"^t: 2 shards begin with 6f2c: {A}, {B}$"):
        find_shard("6f2c", there, "t")
    with pytest.raises(Usage, match=rf"^t: the table has no shard 07112244 \(is {C} meant\?\)$"):
        find_shard("07112244", there, "t")
    with pytest.raises(Usage, match=r"^t: the table has no shard ffff$"):
        find_shard("ffff", there, "t")
    many = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(9)]
    with pytest.raises(Usage, match=r"9 shards begin with 0000: .*, and 4 more shards$"):
        find_shard("0000", many, "t")
