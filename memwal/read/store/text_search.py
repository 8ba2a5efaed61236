"""Full-text search over the base and generations. Each is searched; the best are taken.

Lance finds the matches of each table, which are all of them: by the table's own index where that
holds all its texts and cuts them as the base's does, else row by row in a copy in memory. What the
base's index does not cover Lance compares row by row itself. Ranks are by one set of statistics
(see `ranking`), and what Lance ranks lower is fetched until it is sure to be no better.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from memwal.read.plan.ranking import (
    Sample,
    Scored,
    Statistics,
    add_up,
    make_scorer,
    measure,
    read_off,
    stretch,
)
from memwal.read.plan.request import SCORE, Search
from memwal.read.store.faults import guard
from memwal.read.store.search import fetch_candidates
from memwal.read.store.sources import Base, Batches, Found, Part, Rows, Table
from memwal.read.store.texts import (
    build_query,
    choose_text_index,
    find_text_indexes,
)
from memwal.read.store.threads import map_in_order

_SPARE = 8
# So many texts tell what an index holds of a word.
_SAMPLES = 8
# Texts whose words are kept, as most are asked for twice.
_COUNTED_MAX = 4096
# How much Lance's scores may be off: they have 24 bits, and so has what a word weighs.
_OFF_BY = 1e-6
_OFF_BY_SHARE = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Searched:
    """A table as it is searched: `dataset` is it or a copy of it, `documents` the texts in it.

    Lance scores what is in `uncovered` by the statistics of the whole table, the rest by those of
    its index. `copied` says that rows are compared one by one.
    """

    table: Table
    dataset: Any
    column: str
    documents: int
    copied: bool = False
    uncovered: Sequence[Any] = ()

    def scan(self, rows: Rows) -> Batches:
        """The best matches."""
        if self.copied and isinstance(self.table, Part):
            return self.table.scan_copy(self.dataset, rows)
        return self.table.scan(rows)


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
        """`rows` are what is read of each match. Raises Usage where there is nothing to search."""
        self._wanted = wanted
        self._threads = threads
        self._index = guard(base.where, lambda: choose_text_index(base.where, base.dataset, wanted))
        self._terms = guard(base.where, lambda: self._index.cut(wanted.query))
        self._probes = self._find_probes()
        self._count = lru_cache(_COUNTED_MAX)(self._index.count)
        fields = [*rows.schema]
        if wanted.column not in rows.columns:
            fields.append(schema.field(wanted.column))
        self._rows = replace(rows, schema=pa.schema(fields), search=wanted)
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
        if limit is None or isinstance(one.table, Part):
            return limit
        return limit + limit // 2 + _SPARE

    def _open_base(self, base: Base) -> Searched:
        uncovered = self._index.uncovered(base.dataset)
        return Searched(
            table=base,
            dataset=base.dataset,
            column=self._wanted.column,
            documents=self._index.documents,
            uncovered=uncovered,
        )

    def _open_part(self, part: Part) -> Searched | None:
        column, stored = self._wanted.column, part.stored_name(self._wanted.column)
        if stored is None:
            return None
        documents = guard(part.where, lambda: self._count_indexed(part, stored))
        if documents is not None and not part.is_drifted(self._rows.predicate):
            return Searched(
                table=part, dataset=part.source.dataset, column=stored, documents=documents
            )
        copy = guard(part.where, lambda: part.make_copy(column, self._index.settings))
        return Searched(
            table=part,
            dataset=copy,
            column=column,
            documents=_count_texts(copy, column),
            copied=True,
        )

    def _count_indexed(self, part: Part, column: str) -> int | None:
        """The texts in the generation's own index; None if it can't answer for the whole of it.

        It may have been made with other settings, and lack rows that were not indexed when the
        generation was flushed.
        """
        dataset = part.source.dataset
        for index in find_text_indexes(dataset, column):
            same = index.settings == self._index.settings
            if same and (index.positions or not self._wanted.phrase):
                if index.uncovered(dataset):
                    return None
                if index.documents >= dataset.count_rows():
                    return index.documents
                if index.documents >= _count_texts(dataset, column):
                    return index.documents
        return None

    # -- statistics

    def _find_probes(self) -> Mapping[str, str] | None:
        """For each word of the query a text that has it alone; None where one has none."""
        query = self._wanted.query
        found = {}
        for term in dict.fromkeys(self._terms):
            texts = (term, *re.findall(r"\w+", query), *query.split(), query)
            probe = next((text for text in texts if self._index.cut(text) == [term]), None)
            if probe is None:
                return None
            found[term] = probe
        return found

    def read_statistics(
        self, found: Sequence[Found], limit: int | None
    ) -> list[tuple[Statistics, ...]] | None:
        """For each table those that Lance scores by, the whole table's last.

        `found` are the first `limit` matches of each, or more. None where Lance's own scores are
        taken: they can be compared, or they can't be told apart.
        """
        if self._probes is None or (len(self._tables) == 1 and not self._tables[0].uncovered):
            return None
        most = _SAMPLES if limit is None else limit
        scored = [list(self._count_words(batches, most)) for _, batches in found]
        any_words = next((some[0].counts for some in scored if some), Counter[str]())
        read = map_in_order(
            lambda place: (
                self._read_own(self._tables[place], scored[place], limit)
                if place
                else self._read_base(self._tables[0], scored[0], any_words)
            ),
            range(len(found)),
            self._threads,
        )
        return [statistics for _, statistics in read]

    def _read_own(
        self, one: Searched, scored: Sequence[Scored], limit: int | None
    ) -> tuple[Statistics, ...]:
        """A generation's: none of its rows are ever deleted, so that matches can be counted."""
        all_found = self._matches_any and limit is not None and len(scored) < limit
        having: dict[str, float] = {}
        for term, probe in (self._probes or {}).items():
            if all_found:
                count = sum(term in text.counts for text in scored)
            else:
                query = build_query(Search(column=one.column, query=probe))
                scanner = guard(
                    one.table.where, partial(one.dataset.scanner, full_text_query=query)
                )
                count = guard(one.table.where, scanner.count_rows)
            if count:
                having[term] = count
        return (measure(one.documents, having, self._terms, scored),)

    def _read_base(
        self, one: Searched, scored: Sequence[Scored], any_words: Mapping[str, int]
    ) -> tuple[Statistics, ...]:
        """The base's. `any_words` tell its mean length where it has no word of the query."""
        probes = self._probes or {}
        if len(self._terms) == 1 and self._matches_any and not one.uncovered:
            samples = {term: _as_samples(term, scored[:_SAMPLES]) for term in probes}
        else:
            samples = self._sample(one, probes, fast_search=True)
        indexed = read_off(one.documents, samples, _SAMPLES)
        words = iter([word for word in any_words if self._index.cut(word) == [word]][:_SAMPLES])
        while not indexed.mean_length and one.documents and (word := next(words, None)):
            other = self._sample(one, {word: word}, fast_search=True)
            mean = read_off(one.documents, other, _SAMPLES).mean_length
            indexed = replace(indexed, mean_length=mean)
        if not one.uncovered:
            return (indexed,)
        documents = one.documents + sum(fragment.count_rows() for fragment in one.uncovered)
        whole = read_off(documents, self._sample(one, probes, fragments=one.uncovered), _SAMPLES)
        both = dict(indexed.having)
        both.update(whole.having)
        mean = whole.mean_length or indexed.mean_length
        return indexed, replace(whole, mean_length=mean, having=both)

    @property
    def _matches_any(self) -> bool:
        """Whether all texts with a word of the query match."""
        wanted = self._wanted
        loose = len(self._terms) == 1 or (wanted.operator == "or" and not wanted.phrase)
        return loose and self._rows.predicate is None

    def _count_words(self, batches: Sequence[pa.RecordBatch], most: int) -> Iterator[Scored]:
        for batch in pa.Table.from_batches(batches).slice(0, most).to_batches() if batches else ():
            texts = batch[self._wanted.column].to_pylist()
            for text, score in zip(texts, batch[SCORE].to_pylist(), strict=True):
                yield Scored(counts=self._count(text), score=score)

    def _sample(
        self, one: Searched, probes: Mapping[str, str], **options: Any
    ) -> dict[str, list[Sample]]:
        """Of each word some texts that have it."""

        def find(term: str, probe: str) -> list[Sample]:
            query = build_query(Search(column=one.column, query=probe))
            columns = [one.column, SCORE]
            scanner = one.dataset.scanner(
                columns=columns, full_text_query=query, limit=_SAMPLES, **options
            )
            batches = scanner.to_table().to_batches()
            return _as_samples(term, list(self._count_words(batches, _SAMPLES)))

        return {
            term: guard(one.table.where, partial(find, term, probe))
            for term, probe in probes.items()
        }

    def rank(self, statistics: Statistics | None, live: pa.Table) -> pa.Array:
        """The scores of matches by these statistics; Lance's own with None."""
        if statistics is None:
            return live[SCORE]
        score = make_scorer(statistics, self._terms)
        counted = map(self._count, live[self._wanted.column].to_pylist())
        return pa.array([score(counts) for counts in counted], pa.float32())


def _as_samples(term: str, scored: Sequence[Scored]) -> list[Sample]:
    return [
        Sample(score=one.score, count=one.counts[term], length=sum(one.counts.values()))
        for one in scored
        if one.counts.get(term)
    ]


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
        """Rank what is left; tell in which tables something that is not fetched may be better."""
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


def _count_texts(dataset: Any, column: str) -> int:
    """The texts of a table: about those that have words."""
    return int(dataset.count_rows(filter=f"`{column}` != ''"))


def _find_least(batches: Sequence[pa.RecordBatch]) -> float:
    """The lowest score."""
    return min((pc.min(batch[SCORE]).as_py() for batch in batches if len(batch)), default=0.0)
