"""Search over the base and generations, by vectors and by words.

Each is searched; the best are taken.

For nearest neighbours: Lance's own scanner searches one table whole: what its index does not cover
is compared row by row. Candidates whose key has a newer row are dropped, and where that leaves too
few, more are fetched.

For words: Lance finds the matches of each table, which are all of them: by the table's own index
where that holds all its texts and cuts them as the base's does, else row by row in a copy in
memory. What the base's index does not cover Lance compares row by row itself. Ranks are by one set
of statistics (see `ranking`), and what Lance ranks lower is fetched until it is sure to be no
better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Usage
from memwal.read.plan.ranking import Statistics, add_up, make_scorer, stretch
from memwal.read.plan.request import DISTANCE, SCORE, Nearest, Search
from memwal.read.store.faults import guard
from memwal.read.store.sources import Base, Batches, Found, Kept, Part, Rows, Table
from memwal.read.store.text_statistics import QueryWords, Searched
from memwal.read.store.texts import (
    TextIndex,
    choose_text_index,
    find_text_indexes,
)
from memwal.read.store.threads import map_in_order

# So many times more are fetched when too many candidates of a source were superseded.
_FETCH_GROWTH = 4

_SPARE = 8
# Copies of generations that are kept for the next search, by where they lie and how they are cut.
_COPIES = Kept[Searched]()
# Indexes of generations that hold all their texts, which never change.
_INDEXES = Kept[tuple[TextIndex, ...]]()
_INDEXES_BYTES = 4096
# How much Lance's scores may be off: they have 24 bits, and so has what a word weighs.
_OFF_BY = 1e-6
_OFF_BY_SHARE = 1e-4


class NearestSearch:
    """One search. All its candidates carry exact distances, which can be compared."""

    def __init__(
        self, wanted: Nearest, base: Base, parts: Sequence[Part], rows: Rows, threads: int
    ) -> None:
        self._wanted = wanted
        self._threads = threads
        self._base = base
        self._tables: list[Table] = [base, *parts]
        self._rows = rows
        self._metric = wanted.metric or self._find_metric() or "l2"
        self._vector = self._build_query()

    def rows(self, fetch: int) -> Rows:
        """What each table is scanned for."""
        nearest = {
            "column": self._wanted.column,
            "q": self._vector,
            "k": fetch,
            "metric": self._metric,
            # An index's own distances are estimates, and differ from one index to the next.
            "refine_factor": 1,
        }
        if self._wanted.nprobes is not None:
            nearest["nprobes"] = self._wanted.nprobes
        return replace(self._rows, nearest=nearest)

    def run(self, drop_superseded: Callable[[Sequence[Found]], list[Found]]) -> Batches:
        """The k nearest of all rows that are the newest of their keys, in order of distance."""
        scans = [partial(self._scan, table) for table in self._tables]
        newest = fetch_candidates(
            self._tables,
            scans,
            [self._wanted.k] * len(scans),
            drop_superseded,
            lambda _, newest: [count_rows(one) < self._wanted.k for one in newest],
            self._threads,
        )
        return self._choose_best([batch for _, batches in newest for batch in batches])

    def _scan(self, table: Table, fetch: int | None) -> Batches:
        return table.scan(self.rows(fetch or self._wanted.k))

    def _choose_best(self, live: Sequence[pa.RecordBatch]) -> Batches:
        schema = self.rows(1).found
        found = pa.Table.from_batches([b.select(schema.names) for b in live], schema=schema)
        best = found.sort_by(DISTANCE).slice(0, self._wanted.k)
        return iter(best.to_batches())

    def _find_metric(self) -> str | None:
        """The metric of the base's index on the column, which its generations have too."""
        dataset, column = self._base.dataset, self._wanted.column
        for described in guard(self._base.where, dataset.describe_indices):
            if list(described.field_names) != [column]:
                continue
            if metric := described.details.get("metric_type"):
                return str(metric).lower()
            # An index that an older Lance made has no details.
            stats = guard(self._base.where, partial(dataset.stats.index_stats, described.name))
            for segment in stats.get("indices", ()):
                if "metric_type" in segment:
                    return str(segment["metric_type"])
        return None

    def _build_query(self) -> Any:
        kind = self._base.dataset.schema.field(self._wanted.column).type
        while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
            kind = kind.value_type
        try:
            return np.asarray(self._wanted.vector, dtype=kind.to_pandas_dtype())
        except (NotImplementedError, TypeError, ValueError, OverflowError) as error:
            raise Usage(f"column {self._wanted.column!r} can't be searched: {error}") from None


def fetch_candidates(
    tables: Sequence[Table],
    scans: Sequence[Callable[[int | None], Batches]],
    first: Sequence[int | None],
    drop_superseded: Callable[[Sequence[Found]], list[Found]],
    find_short: Callable[[Sequence[Found], list[Found]], Sequence[bool]],
    threads: int,
) -> list[Found]:
    """The best candidates of each table, as many as it takes, without superseded ones.

    Each scan gives as many as it is asked for: `first`, and then more where `find_short` says of
    what was found, and of what is left of it, that it is not enough. With None all are fetched.
    """
    found: list[Found] = [(table, []) for table in tables]
    fetch = dict(enumerate(first))
    while fetch:
        for (place, _), batches in map_in_order(
            lambda one: list(scans[one[0]](one[1])), list(fetch.items()), threads
        ):
            found[place] = (tables[place], batches)
        newest = drop_superseded(found)
        short = find_short(found, newest)
        fetch = {
            place: rows * _FETCH_GROWTH
            for place, rows in fetch.items()
            if rows is not None and count_rows(found[place]) >= rows and short[place]
        }
    return newest


def count_rows(found: Found) -> int:
    """The rows that were found in a table."""
    return sum(batch.num_rows for batch in found[1])


class TextSearch:
    """One search, opened."""

    def __init__(
        self,
        wanted: Search,
        base: Base,
        parts: Sequence[Part],
        rows: Rows,
        schema: pa.Schema,
        threads: int,
    ) -> None:
        """`rows` is what to read of each match. Raises Usage when the column can't be searched."""
        self._wanted = wanted
        self._threads = threads
        self._index = guard(base.where, lambda: choose_text_index(base.where, base.dataset, wanted))
        fields = [*rows.schema]
        if wanted.column not in rows.columns:
            fields.append(schema.field(wanted.column))
        self._rows = replace(rows, schema=pa.schema(fields), search=wanted)
        self._words = guard(
            base.where, lambda: QueryWords(self._index, wanted, whole=rows.predicate is None)
        )
        opened = map_in_order(self._open_part, parts, threads)
        self._tables = [self._open_base(base), *(one for _, one in opened if one is not None)]

    def rows(self, fetch: int | None = None) -> Rows:
        """What each table is scanned for."""
        return replace(self._rows, limit=fetch)

    def explain_scan(self, part: Part) -> str | None:
        """Lance's plan for the generation; None where a copy is searched, or nothing."""
        for searched in self._tables:
            if searched.table is part and not searched.copied:
                return part.explain_scan(self.rows(_SPARE))
        return None

    def run(
        self,
        keys: Sequence[str],
        limit: int | None,
        drop_superseded: Callable[[Sequence[Found]], list[Found]],
    ) -> Batches:
        """The matches that are the newest of their keys, the best first, then by their keys."""
        ranked = _Ranked(self, keys, limit)
        fetch_candidates(
            [one.table for one in self._tables],
            [partial(_scan, self, one) for one in self._tables],
            [self._choose_first(one, limit) for one in self._tables],
            drop_superseded,
            ranked.find_short,
            self._threads,
        )
        return iter(ranked.best.to_batches())

    # -- the tables

    def _choose_first(self, one: Searched, limit: int | None) -> int | None:
        """How many to fetch at first: some of the base's are superseded, or rank lower."""
        if one.copied and self._rows.predicate is not None:
            # Lance scores by the statistics of the filtered rows then: nothing tells the rest.
            return None
        if limit is None or isinstance(one.table, Part):
            # Lance's scores of a generation count rows that its flush has deleted, and these alone
            # tell by how much a row may be better by the scores of all.
            return None if _has_deleted(one.dataset) else limit
        return limit + limit // 2 + _SPARE

    def _open_base(self, base: Base) -> Searched:
        uncovered = self._index.uncovered(base.dataset)
        return Searched(
            table=base,
            dataset=base.dataset,
            documents=self._index.documents,
            identity=self._index.identity,
            uncovered=uncovered,
        )

    def _open_part(self, part: Part) -> Searched | None:
        column = self._wanted.column
        if part.lacks(column):
            return None
        index = guard(part.where, lambda: self._find_own(part, column))
        if index is not None and not part.is_drifted(self._rows.predicate):
            return Searched(
                table=part,
                dataset=part.source.dataset,
                documents=index.documents,
                identity=index.identity,
            )
        return guard(part.where, lambda: self._copy(part))

    def _copy(self, part: Part) -> Searched:
        """A copy of a part. That of a generation, which never changes, is kept."""
        column, settings = self._wanted.column, self._index.settings
        identity = part.identify(part.base_schema)
        if identity is not None:
            identity = f"{identity} {column} {settings}"
        kept = None if identity is None else _COPIES.find(identity)
        if kept is None:
            dataset = part.make_copy(column, settings)
            kept = Searched(
                table=part,
                dataset=dataset,
                documents=self._count_texts(dataset),
                identity=identity,
                copied=True,
            )
            if identity is not None:
                _COPIES.keep(identity, kept, part.in_memory_bytes or 0)
        return replace(kept, table=part)

    def _count_texts(self, copy: Any) -> int:
        texts = copy.to_table(columns=[self._wanted.column])[0].to_pylist()
        return sum(bool(self._index.cut(text or "")) for text in texts)

    def _find_own(self, part: Part, column: str) -> TextIndex | None:
        """The generation's own index; None if it can't answer for the whole of it.

        It may have been made with other settings.
        """
        name = part.identify(pa.schema([]))
        kept = None if name is None else _INDEXES.find(f"{name} {column}")
        if kept is None:
            kept = _find_whole_indexes(part.source.dataset, column)
            if name is not None:
                _INDEXES.keep(f"{name} {column}", kept, _INDEXES_BYTES)
        for index in kept:
            same = index.settings == self._index.settings
            if same and (index.positions or not self._wanted.phrase):
                return index
        return None

    def read_statistics(
        self, found: Sequence[Found], limit: int | None
    ) -> list[tuple[Statistics, ...]] | None:
        """See `QueryWords.read_statistics`."""
        return self._words.read_statistics(self._tables, found, limit, self._threads)

    def rank(self, statistics: Statistics | None, live: pa.Table) -> pa.Array:
        """The scores of matches by these statistics; Lance's own with None."""
        if statistics is None:
            return live[SCORE]
        score = make_scorer(statistics, self._words.terms)
        counted = map(self._words.count, live[self._wanted.column].to_pylist())
        return pa.array([score(counts) for counts in counted], pa.float32())


class _Ranked:
    """The best matches so far, by all statistics together."""

    def __init__(
        self,
        search: TextSearch,
        keys: Sequence[str],
        limit: int | None,
    ) -> None:
        self._search = search
        self._order = [(SCORE, "descending"), *((key, "ascending") for key in keys)]
        self._limit = limit
        self._is_measured = False
        self._together: Statistics | None = None
        self._stretch: list[float] = []
        self.best = search.rows().found.empty_table()

    def find_short(self, found: Sequence[Found], newest: Sequence[Found]) -> list[bool]:
        """Rank the newest matches; returns which tables may have better ones not fetched yet."""
        if not self._is_measured:
            self._measure(found)
        schema = self._search.rows().found
        batches = [batch.select(schema.names) for _, some in newest for batch in some]
        live = pa.Table.from_batches(batches, schema=schema)
        scores = self._search.rank(self._together, live)
        live = live.set_column(live.num_columns - 1, schema.field(SCORE), scores)
        self.best = live.sort_by(self._order).slice(0, self._limit)
        if self._limit is None or len(self.best) < self._limit:
            return [True] * len(found)
        least = self.best[SCORE][-1].as_py() * (1 - _OFF_BY_SHARE) - _OFF_BY
        return [
            _find_least(batches) * self._stretch[place] >= least
            for place, (_, batches) in enumerate(found)
        ]

    def _measure(self, found: Sequence[Found]) -> None:
        self._is_measured = True
        self._stretch = [1.0] * len(found)
        statistics = self._search.read_statistics(found, self._limit)
        if statistics is not None:
            together = self._together = add_up(each[-1] for each in statistics)
            self._stretch = [max(stretch(own, together) for own in each) for each in statistics]


def _scan(search: TextSearch, one: Searched, fetch: int | None) -> Batches:
    return one.scan(search.rows(fetch))


def _find_whole_indexes(dataset: Any, column: str) -> tuple[TextIndex, ...]:
    """The generation's indexes that cover all rows; a flush may leave some unindexed."""
    return tuple(
        index
        for index in find_text_indexes(dataset, column)
        if not index.uncovered(dataset)
        and (
            index.documents >= dataset.count_rows()
            or index.documents >= _count_texts(dataset, column)
        )
    )


def _count_texts(dataset: Any, column: str) -> int:
    """The texts of a table that are not empty."""
    return int(dataset.count_rows(filter=f"`{column}` != ''"))


def _has_deleted(dataset: Any) -> bool:
    """Whether rows of it are deleted, as those that a later one of the same flush replaced."""
    return any(fragment.num_deletions for fragment in dataset.get_fragments())


def _find_least(batches: Sequence[pa.RecordBatch]) -> float:
    """The lowest score."""
    return min((pc.min(batch[SCORE]).as_py() for batch in batches if len(batch)), default=0.0)
