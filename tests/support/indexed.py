"""Tables with an index of every kind, and queries through each, compared with the plain model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from memwal.config import ResolvedTable, Settings
from memwal.indexes import TableIndexes
from memwal.jobs.index_catchup.plan import IndexCatchupReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import MemWalState
from memwal.report import JobReport
from memwal.rows.keys import keys_in
from memwal.store.tables.indexes import LanceIndexes
from tests.support.builders import Key, Put, Row, Table, make_table

# No two indexes that serve the same filters on one column: Lance takes either.
COLUMNS = (
    pa.field("category", pa.string()),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("zone", pa.int64()),
    pa.field("bloom", pa.int64()),
)
BASE_ROWS = 400

# name -> (column, type, settings). `key_idx` is there before MemWAL is initialised, the others come
# after, and none of them is in maintained_indexes.
SCALARS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cat_idx": ("category", "BITMAP", {}),
    "tags_idx": ("tags", "LABEL_LIST", {}),
    "text_idx": ("text", "INVERTED", {"with_position": True, "stem": False}),
    "ngram_idx": ("text", "NGRAM", {}),
    "n_idx": ("n", "BTREE", {}),
    "zone_idx": ("zone", "ZONEMAP", {}),
    "bloom_idx": ("bloom", "BLOOMFILTER", {}),
}
VECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat_idx": ("IVF_FLAT", {"num_partitions": 2}),
    "pq_idx": ("IVF_PQ", {"num_partitions": 2, "num_sub_vectors": 2}),
}
ALL = ("key_idx", *SCALARS, *VECTORS)


def make_indexed(
    uri: object,
    names: Iterable[str] = ALL,
    *,
    shards: int = 1,
    rows: int = BASE_ROWS,
    options: Mapping[str, str] | None = None,
    **write: Any,
) -> Table:
    """A table with those indexes, and nothing merged yet."""
    wanted = set(names)
    table = make_table(
        uri, "int64", rows=range(rows), shards=shards, indexed="key_idx" in wanted,
        options=options, columns=COLUMNS, **write,
    )  # fmt: skip
    for name, (column, kind, settings) in SCALARS.items():
        if name in wanted:
            table.dataset.create_scalar_index(column, kind, name=name, **settings)
    for name, (kind, settings) in VECTORS.items():
        if name in wanted:
            table.dataset.create_index("vector", kind, name=name, **settings)
    return table


def generation(number: int, *, rows: int = 30) -> Put:
    """New keys and some that the base and the generation before have."""
    start = BASE_ROWS + 20 * number
    return Put(
        [*range(number * 5, number * 5 + 5), *range(start, start + rows)],
        n=10_000 * number,
        extra={
            "category": f"g{number}",
            "tags": ["all", f"g{number}"],
            "zone": number,
            "bloom": number,
        },
    )


def write_and_merge(table: Table, *numbers: int, shard: int = 0) -> None:
    """Flush generations and merge them, one by one."""
    for number in numbers:
        table.flush(table.shards[shard], generation(number))
        done = table.merger().run(table.shards[shard], MergeRequest())
        assert done.error is None, done


def resolved(table: Table) -> ResolvedTable:
    return ResolvedTable(
        name="t", uri=table.uri, settings=Settings(), storage_options=dict(table.options)
    )


def by_name(report: JobReport) -> dict[str, IndexCatchupReport]:
    (found,) = report.tables
    return {i.name: i for i in found.indexes}  # type: ignore[attr-defined]


def facts(table: Table) -> TableIndexes:
    return facts_of(table, int(table.dataset.version))


def facts_of(table: Table, version: int) -> TableIndexes:
    return LanceIndexes(table.stores.tables).facts(version)


def state(table: Table) -> MemWalState:
    return table.stores.views.mem_wal(int(table.dataset.version))


def erase_catchup(table: Table) -> None:
    """Lose every entry of index_catchup, as compaction does; coverage stays."""
    from lance.optimize import Compaction

    dataset = table.dataset
    options = {"target_rows_per_fragment": 100_000}
    plan = Compaction.plan(dataset, options)
    Compaction.commit(dataset, [task.execute(dataset) for task in plan.tasks], options)
    assert not state(table).index_catchup


# ---- what has to hold


def check_caught_up(table: Table, names: Iterable[str] = ALL) -> None:
    """Each index covers every fragment, its progress is recorded, and it answers rightly."""
    found, mem_wal = facts(table), state(table)
    assert mem_wal.merged == {s: len(done) for s, done in table.effects.items() if done}
    for name in names:
        index = found.index(name)
        assert index is not None, name
        assert not found.uncovered(index), name
        assert mem_wal.index_catchup.get(name) == mem_wal.merged, name
    check_answers(table, names)


def check_answers(table: Table, names: Iterable[str] = ALL, *, covered: bool = True) -> None:
    """Queries through each index against the model; everything has to be merged.

    With `covered`, nothing but the index is searched where a query can ask for that.
    """
    truth = table.truth()
    for name in names:
        QUERIES[name](table, truth, covered)


def scan(table: Table, filter_: str, **how: Any) -> list[Key]:
    """Keys that a filter finds, through an index."""
    scanner = table.dataset.scanner(columns=["k"], filter=filter_, **how)
    plan = scanner.explain_plan(True)
    assert "ScalarIndexQuery" in plan or "MaterializeIndex" in plan, plan
    return sorted((k,) for k in scanner.to_table()["k"].to_pylist())


def keys(truth: Mapping[Key, Row], wanted: Any) -> list[Key]:
    return sorted(key for key, row in truth.items() if wanted(row))


def _key(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    for key in [*list(truth)[:5], *list(truth)[-40:], (987_654,)]:
        found = scan(table, keys_in(["k"], [key]))
        assert found == keys(truth, lambda r, key=key: r["k"] == key[0])
    assert scan(table, "k >= 0 AND k < 300") == keys(truth, lambda r: 0 <= r["k"] < 300)


def _category(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    for category in {row["category"] for row in truth.values()} - {None}:
        found = scan(table, f"category = '{category}'")
        assert found == keys(truth, lambda r, c=category: r["category"] == c)
        assert found


def _tags(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    for tag in ("all", "g1", "nothing"):
        found = scan(table, f"array_has_any(tags, ['{tag}'])")
        assert found == keys(truth, lambda r, t=tag: t in (r["tags"] or ()))


def _text(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    texts = [row["text"] for row in truth.values() if row["text"]]
    for word in ["text", *(t.split()[1] for t in (*texts[:3], *texts[-15:])), "nothing"]:
        scanner = table.dataset.scanner(
            columns=["k"], full_text_query=word, limit=100_000, fast_search=covered
        )
        found = sorted((k,) for k in scanner.to_table()["k"].to_pylist())
        assert found == keys(truth, lambda r, w=word: w in (r["text"] or "").split()), word


def _ngram(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    for part in ("text 1", "2000", "nothing"):
        found = scan(table, f"contains(text, '{part}')")
        assert found == keys(truth, lambda r, p=part: p in (r["text"] or ""))


def _n(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
    assert scan(table, "n > 9999") == keys(truth, lambda r: r["n"] > 9999)
    # Values that base rows had before generations changed them.
    assert scan(table, "n < 1030") == keys(truth, lambda r: r["n"] < 1030)
    assert scan(table, "n = 10003") == keys(truth, lambda r: r["n"] == 10003)


def _equals(column: str) -> Any:
    def query(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
        for value in (1, 2, 77):
            found = scan(table, f"{column} = {value}")
            assert found == keys(truth, lambda r, v=value: r[column] == v)

    return query


def _vector(name: str) -> Any:
    def query(table: Table, truth: Mapping[Key, Row], covered: bool) -> None:
        # All partitions, and exact distances: what is missing was not in the index.
        others = [o for o in VECTORS if o != name and _has(table, o)]
        assert not others, "two vector indexes on a column: Lance takes either"
        for n in _probes(truth):
            nearest = {"column": "vector", "q": vector(n + 0.25), "k": 5, "nprobes": 64,
                       "refine_factor": 50}  # fmt: skip
            scanner = table.dataset.scanner(columns=["k"], nearest=nearest, fast_search=covered)
            found = {(k,) for k in scanner.to_table()["k"].to_pylist()}
            assert found == _nearest(truth, n + 0.25, 5), n

    return query


def _has(table: Table, name: str) -> bool:
    return facts(table).index(name) is not None


def vector(n: float) -> list[float]:
    return [float(n), n / 2, float(-n), 0.5]


def _probes(truth: Mapping[Key, Row]) -> Sequence[int]:
    with_vector = [row["n"] for row in truth.values() if row["vector"]]
    changed = [1006, 1012]  # what base rows had before generations changed them
    return [*changed, with_vector[3], with_vector[len(with_vector) // 2], *with_vector[-3:]]


def _nearest(truth: Mapping[Key, Row], n: float, count: int) -> set[Key]:
    # Every vector lies on one line, so the nearest are those with the nearest number.
    rows = [(abs(row["n"] - n), key) for key, row in truth.items() if row["vector"]]
    return {key for _, key in sorted(rows)[:count]}


QUERIES = {
    "key_idx": _key,
    "cat_idx": _category,
    "tags_idx": _tags,
    "text_idx": _text,
    "ngram_idx": _ngram,
    "n_idx": _n,
    "zone_idx": _equals("zone"),
    "bloom_idx": _equals("bloom"),
    "flat_idx": _vector("flat_idx"),
    "pq_idx": _vector("pq_idx"),
}
