"""B16: searches with 5 % of the rows pending, and once they are merged and indexed.

Texts have a vocabulary whose frequencies fall as a language's do. What a search finds is compared
before and after: the same ten rows, but for what new words and lengths do to the ranks. That is
what fills the caches of a process that searches more than once. Beside it stands a scan that looks
for a word in every text. Vectors are random, and have an IVF_PQ index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import lance
import numpy as np

from bench.harness import Bench, run_memwal
from bench.tables import make_base, new_shards, pending
from memwal.read import Nearest, ReadableTable, Search, open_table
from tests.support.texts import TextTable, make_texts, zipf_texts

TITLE = "Searches with pending generations"

CASE = "B16"
_QUERIES = 100
_LIMIT = 10
_WORDS = 30_000
_LENGTH = 90
_GENERATIONS = 5
_DIM = 64


def run(bench: Bench) -> None:
    """B16."""
    rows = 20_000 if bench.quick else 100_000
    tables = {kept: _tables(bench, rows, maintained=kept) for kept in (True, False)}
    queries = _queries(np.random.default_rng(3))
    for kept, (before, after) in tables.items():
        how = "by their own indexes" if kept else "row by row"
        same = _count_same(before, after, queries)
        bench.figure(
            CASE,
            f"5 % pending, {how}: the same among the best {_LIMIT} of {len(queries)} queries",
            same,
            "",
            at_least=0.95,
        )
        seconds = bench.side_by_side(
            {
                "before": lambda t=before: _search_all(t, queries),
                "after": lambda t=after: _search_all(t, queries),
            }
        )
        what = f"5 % pending, {how}: {len(queries)} queries before against after the merge"
        bench.ratio(CASE, what, seconds, "before", "after", at_most=3)
        if kept:
            _compare_with_scan(bench, before, seconds["before"] / len(queries))
    _nearest(bench, rows)


def _tables(bench: Bench, rows: int, *, maintained: bool) -> tuple[ReadableTable, ReadableTable]:
    rng = np.random.default_rng(11)
    folder = bench.new_folder("search")
    bench.say(f"{rows:,} texts, {_GENERATIONS} generations of {rows // 100:,}")
    texts = zipf_texts(rng, rows, _WORDS, _LENGTH)
    settings = {"stem": False, "remove_stop_words": False}
    table = make_texts(
        folder / "before", dict(enumerate(texts)), maintained=maintained, settings=settings
    )
    for number in range(_GENERATIONS):
        _flush(table, rng, rows, number)
    after = bench.copy(folder / "before")
    _merge(after)
    return open_table(table.uri), open_table(str(after))


def _merge(table: Path) -> None:
    for job in ("merge", "index-catchup"):
        run_memwal(job, table, "--engine", "local")


def _flush(table: TextTable, rng: np.random.Generator, rows: int, number: int) -> None:
    """A hundredth of the rows: half of them new, half written again."""
    half = rows // 200
    keys = [*range(rows + number * half, rows + (number + 1) * half)]
    keys += rng.choice(rows, half, replace=False).tolist()
    texts = zipf_texts(rng, len(keys), _WORDS, _LENGTH)
    table.flush(dict(zip(keys, texts, strict=True)))


def _queries(rng: np.random.Generator) -> list[str]:
    """One to four words, common ones and rare ones."""
    ranks = np.exp(rng.uniform(np.log(2), np.log(_WORDS / 10), size=(_QUERIES, 4))).astype(int)
    return [
        " ".join(f"w{rank:x}q" for rank in some[: 1 + place % 4])
        for place, some in enumerate(ranks)
    ]


def _search(table: ReadableTable, query: str) -> list[int]:
    wanted = Search(column="text", query=query)
    found = table.read(search=wanted, columns=["id"], limit=_LIMIT).read_all()
    keys: list[int] = found["id"].to_pylist()
    return keys


def _search_all(table: ReadableTable, queries: Sequence[str]) -> None:
    for query in queries:
        _search(table, query)


def _count_same(before: ReadableTable, after: ReadableTable, queries: Sequence[str]) -> float:
    """The share of the best rows of all queries that are the same before and after."""
    pairs = [(set(_search(before, q)), set(_search(after, q))) for q in queries]
    return sum(len(one & other) for one, other in pairs) / max(1, sum(len(o) for _, o in pairs))


def _nearest(bench: Bench, rows: int) -> None:
    before = bench.new_folder("nearest") / "before"
    base = make_base(before, rows, dim=_DIM)
    base.create_index("vector", "IVF_PQ", num_partitions=64, num_sub_vectors=8)
    pending(before, new_shards(1), _GENERATIONS, rows // 100, rows, dim=_DIM)
    after = bench.copy(before)
    _merge(after)
    vectors = np.random.default_rng(5).random((_QUERIES, _DIM), dtype=np.float32)

    def search_all(table: ReadableTable) -> None:
        for vector in vectors:
            near = Nearest(column="vector", vector=vector.tolist(), k=_LIMIT)
            table.read(nearest=near, columns=["id"]).read_all()

    tables = {"before": open_table(str(before)), "after": open_table(str(after))}
    runs = {name: partial(search_all, table) for name, table in tables.items()}
    for warm in runs.values():
        warm()
    seconds = bench.side_by_side(runs)
    what = f"5 % pending: {_LIMIT} nearest of {_QUERIES} vectors, before against after the merge"
    bench.ratio(CASE, what, seconds, "before", "after", at_most=3)


def _compare_with_scan(bench: Bench, table: ReadableTable, seconds: float) -> None:
    dataset = lance.dataset(str(Path(table.uri)))
    scan = bench.side_by_side(
        {"scan": lambda: dataset.to_table(columns=["id"], filter="text LIKE '%w12cq%'")}
    )
    what = "5 % pending: a search against a scan of the base's texts"
    bench.ratio(CASE, what, {"search": seconds, **scan}, "search", "scan", at_most=0.5)
