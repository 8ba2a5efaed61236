"""A search with a limit gives the beginning of the search without one, whatever lies where."""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path

import pytest

from memwal.read import Search, open_table
from memwal.read.store import text_statistics
from memwal.read.table import ReadableTable
from tests.support.texts import TextTable, make_texts, rows_of

pytestmark = pytest.mark.integration

_MORE = int(os.environ.get("MEMWAL_SEARCH_SEEDS", 0))
# Of the first hundred, some that showed another beginning once.
SEEDS = range(_MORE) if _MORE else (2, 6, 10, 14, 27, 33, 52, 69)


class Words:
    """Texts of a base or of a generation: how long they are, and which words are frequent."""

    def __init__(self, rng: random.Random, vocabulary: list[str]) -> None:
        self._rng, self._vocabulary = rng, vocabulary
        self._weights = [rng.random() ** rng.choice([1, 4]) + 1e-3 for _ in vocabulary]
        self._shortest = rng.choice([1, 1, 3, 10])
        self._longest = self._shortest + rng.choice([0, 0, 3, 30])

    def text(self) -> str:
        length = self._rng.randint(self._shortest, self._longest)
        return " ".join(self._rng.choices(self._vocabulary, self._weights, k=length))


def make_table(rng: random.Random, path: Path, vocabulary: list[str]) -> TextTable:
    words, rows = Words(rng, vocabulary), rng.choice([5, 40, 150])
    table = make_texts(path, {n: words.text() for n in range(rows)}, maintained=rng.random() < 0.7)
    for _ in range(rng.randint(1, 4)):
        words = Words(rng, vocabulary)
        some = {rng.randrange(250): words.text() for _ in range(rng.choice([3, 20, 60]))}
        if rng.random() < 0.3:
            with table.writer() as writer:  # rows that the flush deletes, and its index counts
                writer.put(rows_of(some))
                writer.put(rows_of({key: words.text() for key in list(some)[::2]}))
        else:
            table.flush(some, deletes=rng.sample(range(250), rng.choice([0, 3])))
        if rng.random() < 0.25:
            table.merge()
        if rng.random() < 0.15:
            table.catch_up()
    return table


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limited_search_is_the_beginning_of_an_unlimited_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = [f"w{chr(97 + n)}" for n in range(rng.choice([3, 8, 20]))]
    table = open_table(make_table(rng, tmp_path / "t", vocabulary).uri)
    for _ in range(6):
        query = " ".join(rng.choices(vocabulary, k=rng.choice([1, 2, 3])))
        limit = rng.choice([1, 2, 3, 5, 10])
        check_beginning(table, query, limit, "or" if rng.random() < 0.7 else "and")


def test_texts_that_are_alike_tell_nothing_of_the_others(tmp_path: Path) -> None:
    short, long = dict.fromkeys(range(20), "wa"), dict.fromkeys(range(20, 40), "wa" + " wb" * 30)
    table = make_texts(tmp_path / "t", {**short, **long})
    table.flush({100: "wa wc", 101: "wa wc wd"})
    check_beginning(open_table(table.uri), "wa", 1, "or")
    pending = find(open_table(table.uri), "wa", None)
    table.merge()
    table.catch_up()
    assert pending == pytest.approx(find(open_table(table.uri), "wa", None), rel=1e-3)


def check_beginning(table: ReadableTable, query: str, limit: int, operator: str) -> None:
    limited = find(table, query, limit, operator)
    beginning = dict(islice(find(table, query, None, operator).items(), limit))
    assert list(limited) == list(beginning), query
    assert limited == pytest.approx(beginning, rel=1e-3), query


def find(
    table: ReadableTable, query: str, limit: int | None, operator: str = "or"
) -> dict[int, float]:
    """Keys and scores, the best first, by statistics that are read anew."""
    text_statistics._KEPT._things.clear()
    wanted = Search(column="text", query=query, operator=operator)
    rows = table.read(search=wanted, limit=limit).read_all().to_pylist()
    return {row["id"]: row["_score"] for row in rows}
