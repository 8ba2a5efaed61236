"""The fold against a plain dict, for every key type that a MemWAL primary key may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import Refused
from memwal.rows.fold import ANCHORS_MAX, Folded, fold, keep_winners
from tests.support.sampling import many

Key = tuple[Any, ...]
Row = tuple[Key, bool]  # a key, and whether the row is a tombstone
Generation = list[Row]


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    # Few values, so that keys meet, and the ends of the range.
    return st.integers(0, 5) | st.sampled_from([low, high])


_TEXTS = st.sampled_from(["", "a", "b", "it's", "ü", "\0", "a\0", "🙂"])
_BYTES = st.sampled_from([b"", b"a", b"\0", b"a\0", b"\xff\xfe"])
KEY_TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{
        f"{name}{bits}": (pa.type_for_alias(f"{name}{bits}"), _integers(bits, name == "int"))
        for name in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _TEXTS),
    "large_string": (pa.large_string(), _TEXTS),
    "binary": (pa.binary(), _BYTES),
    "large_binary": (pa.large_binary(), _BYTES),
}
COMPOSITE = [("string", "int64"), ("binary", "bool"), ("uint64", "large_string", "int8")]


def generations_of(types: Sequence[str]) -> st.SearchStrategy[list[Generation]]:
    key = st.tuples(*(KEY_TYPES[name][1] for name in types))
    rows = st.lists(st.tuples(key, st.booleans()), max_size=12)
    return st.lists(rows, min_size=1, max_size=5)


def names_of(types: Sequence[str]) -> list[str]:
    return [f"k{number}" for number in range(len(types))]


def table_of(
    rows: Generation, types: Sequence[str], *, first_address: int = 0, tombstones: bool = True
) -> pa.Table:
    columns = [
        pa.array([key[at] for key, _ in rows], KEY_TYPES[name][0]) for at, name in enumerate(types)
    ]
    columns.append(pa.array(range(first_address, first_address + len(rows)), pa.uint64()))
    names = [*names_of(types), "_rowaddr"]
    if tombstones:
        columns.append(pa.array([dead for _, dead in rows], pa.bool_()))
        names.append("_tombstone")
    return pa.table(columns, names=names)


def keys_of(table: pa.Table) -> set[Key]:
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert len(set(rows)) == len(rows)
    return set(rows)


def check(folded: Folded, generations: Sequence[Generation]) -> None:
    """Compare with a dict that is written to in order: the last write of a key wins."""
    last: dict[Key, tuple[int, int, bool]] = {}
    for number, rows in enumerate(generations):
        for address, (key, dead) in enumerate(rows):
            last[key] = (number, address, dead)

    for number, winners in enumerate(folded.winners):
        expected = sorted(at for n, at, dead in last.values() if n == number and not dead)
        assert winners.dtype == np.uint64
        assert winners.tolist() == expected
        assert folded.reach[number] == (expected[-1] + 1 if expected else 0)
    assert keys_of(folded.tombstones) == {key for key, (_, _, dead) in last.items() if dead}
    assert folded.live_rows == sum(not dead for _, _, dead in last.values())
    check_anchors(folded, generations)


def check_anchors(folded: Folded, generations: Sequence[Generation]) -> None:
    """An anchor is written by the fold of every prefix, and deleted by none."""
    first = {key for key, _ in generations[0]}
    deleted = {key for rows in generations for key, dead in rows if dead}
    anchors = keys_of(folded.anchors)

    assert anchors <= first - deleted
    # It is a sample, but never empty when there is one.
    assert len(anchors) == min(ANCHORS_MAX, len(first - deleted))
    for length in range(1, len(generations) + 1):
        live: dict[Key, bool] = {}
        for rows in generations[:length]:
            live |= {key: not dead for key, dead in rows}
        assert all(live[key] for key in anchors)


@pytest.mark.parametrize("types", [*((name,) for name in KEY_TYPES), *COMPOSITE], ids="-".join)
@settings(max_examples=many(40, 15))
@given(data=st.data())
def test_the_newest_row_of_each_key_wins(types: tuple[str, ...], data: st.DataObject) -> None:
    generations = data.draw(generations_of(types))
    folded = fold([table_of(rows, types) for rows in generations], names_of(types))
    check(folded, generations)


@settings(max_examples=40)
@given(generations_of(["int64"]), st.randoms())
def test_rows_may_come_in_any_order_and_in_pieces(
    generations: list[Generation], chance: Any
) -> None:
    tables = []
    for rows in generations:
        order = list(range(len(rows)))
        chance.shuffle(order)
        shuffled = table_of(rows, ["int64"]).take(pa.array(order, pa.int64()))
        cut = chance.randint(0, len(rows))
        tables.append(pa.concat_tables([shuffled.slice(0, cut), shuffled.slice(cut)]))

    check(fold(tables, ["k0"]), generations)


@settings(max_examples=40)
@given(generations_of(["string"]))
def test_a_fold_of_folds_is_the_fold(generations: list[Generation]) -> None:
    """Whatever is folded first, the base ends up with the same rows."""

    def merged(base: dict[Key, int], part: Sequence[Generation], offset: int) -> dict[Key, int]:
        folded = fold([table_of(rows, ["string"]) for rows in part], ["k0"])
        after = {k: v for k, v in base.items() if k not in keys_of(folded.tombstones)}
        for number, winners in enumerate(folded.winners):
            for address in winners.tolist():
                after[part[number][address][0]] = (offset + number) * 100 + address
        return after

    whole = merged({}, generations, 0)
    for cut in range(1, len(generations)):
        first = merged({}, generations[:cut], 0)
        assert merged(first, generations[cut:], cut) == whole


def test_generations_with_and_without_tombstones_mix_and_may_be_empty() -> None:
    older: Generation = [((1,), False), ((2,), False)]
    newer: Generation = [((2,), True), ((3,), False)]
    tables = [table_of(older, ["int64"], tombstones=False), table_of(newer, ["int64"])]
    check(fold(tables, ["k0"]), [older, newer])
    check(fold(tables[:1], ["k0"]), [older])
    for types in (("int64",), ("string", "bool")):
        folded = fold([table_of([], types), table_of([], types)], names_of(types))
        check(folded, [[], []])


def test_a_null_tombstone_is_a_live_row() -> None:
    table = table_of([((1,), False)], ["int64"])
    table = table.set_column(2, "_tombstone", pa.array([None], pa.bool_()))
    assert fold([table], ["k0"]).live_rows == 1


def test_high_row_addresses_keep_all_their_bits() -> None:
    high = (2**32 - 1) << 32
    rows: Generation = [((1,), False), ((1,), False), ((2,), False)]
    folded = fold([table_of(rows, ["int64"], first_address=high)], ["k0"])
    assert folded.winners[0].tolist() == [high + 1, high + 2]


@pytest.mark.parametrize("dead", [False, True])
def test_a_null_key_is_refused(dead: bool) -> None:
    rows: Generation = [((1, "a"), False), ((2, None), dead)]
    with pytest.raises(Refused, match="1 rows have NULL in the key column 'k1'"):
        fold([table_of(rows, ["int64", "string"])], ["k0", "k1"])


@pytest.mark.parametrize("name", ["_seq", "_generation_min", "key0"])
def test_a_key_column_may_have_any_name_that_lance_takes(name: str) -> None:
    rows: Generation = [((1,), False), ((1,), False), ((2,), True)]
    table = table_of(rows, ["int64"]).rename_columns([name, "_rowaddr", "_tombstone"])
    check(fold([table], [name]), [rows])


@pytest.mark.parametrize("bits", range(58, 64))
def test_keys_far_apart_are_told_apart(bits: int) -> None:
    for span in (2**bits - 1, 2**bits):
        rows: Generation = [((0,), False), ((span,), False), ((0,), False)]
        check(fold([table_of(rows, ["uint64"])], ["k0"]), [rows])


@settings(max_examples=60)
@given(st.sets(st.integers(0, 40)), st.lists(st.integers(0, 40), unique=True))
def test_winners_are_kept(winners: set[int], addresses: list[int]) -> None:
    batch = pa.record_batch(
        [pa.array(addresses, pa.uint64()), pa.array([f"row {a}" for a in addresses], pa.string())],
        names=["_rowaddr", "v"],
    )

    kept = keep_winners(batch, np.array(sorted(winners), dtype=np.uint64))

    assert kept["_rowaddr"].to_pylist() == [a for a in addresses if a in winners]
    assert kept["v"].to_pylist() == [f"row {a}" for a in addresses if a in winners]
    if set(addresses) <= winners:
        assert kept is batch


def test_tables_whose_keys_may_be_null_fit_those_whose_keys_may_not() -> None:
    def keyed(nullable: bool) -> pa.Table:
        schema = pa.schema(
            [pa.field("k", pa.int64(), nullable=nullable), ("_rowaddr", pa.uint64())]
        )
        return pa.table({"k": [1, 2], "_rowaddr": [0, 1]}, schema=schema)

    folded = fold([keyed(False), keyed(True)], ["k"])

    assert [len(winners) for winners in folded.winners] == [0, 2]
