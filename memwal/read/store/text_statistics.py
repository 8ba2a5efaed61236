"""Statistics of a query's words in each table, for ranking by all tables together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from memwal.read.plan.ranking import (
    Sample,
    Scored,
    Statistics,
    measure,
    read_off,
    tells_mean,
)
from memwal.read.plan.request import SCORE, Search
from memwal.read.store.faults import guard
from memwal.read.store.sources import Batches, Found, Kept, Part, Rows, Table
from memwal.read.store.texts import TextIndex, build_query
from memwal.read.store.threads import map_in_order

# So many texts tell what an index holds of a word; so many at most, where those are alike.
_SAMPLES = 8
_SAMPLES_MAX = 10_000
# Texts whose words are kept, as most are asked for twice.
_COUNTED_MAX = 4096
# What a number about an index takes, which is kept, as indexes never change.
_KEPT_BYTES = 1024
# Stands for the mean length: no word is empty.
_MEAN = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Searched:
    """A table as it is searched: `dataset` is it or a copy of it, `documents` the texts in it.

    Lance scores what is in `uncovered` by the statistics of the whole table, the rest by those of
    its index. A copy is compared row by row. `identity` stands for what is
    searched, which never changes; None for what has no name.
    """

    table: Table
    dataset: Any
    documents: int
    identity: str | None
    copied: bool = False
    uncovered: Sequence[Any] = ()

    def scan(self, rows: Rows) -> Batches:
        """The best matches."""
        if self.copied and isinstance(self.table, Part):
            return self.table.scan_copy(self.dataset, rows)
        return self.table.scan(rows)


Sampled = tuple[Mapping[str, Sequence[Sample]], int]
"""Sampled texts of each word, and the limit of their number."""


_KEPT = Kept[float]()


def _recall(identity: str | None, term: str) -> float | None:
    """How many texts have the word, or the mean length; None where it is not known."""
    return None if identity is None else _KEPT.find(f"{identity} {term}")


def _keep(identity: str | None, term: str, number: float | None) -> float:
    """Remember a number that is known, and return it."""
    if identity is not None and number is not None:
        _KEPT.keep(f"{identity} {term}", number, _KEPT_BYTES)
    return number or 0.0


class QueryWords:
    """The words of one query, and what tables hold of them."""

    def __init__(self, index: TextIndex, wanted: Search, *, whole: bool) -> None:
        """`whole` says that no filter leaves matches out."""
        self._index = index
        self._wanted = wanted
        self._whole = whole
        self.terms = index.cut(wanted.query)
        self._probes = self._find_probes()
        self.count = lru_cache(_COUNTED_MAX)(index.count)

    def _find_probes(self) -> Mapping[str, str] | None:
        """For each word of the query a text that has it alone; None where one has none."""
        query = self._wanted.query
        found = {}
        for term in dict.fromkeys(self.terms):
            texts = (term, *re.findall(r"\w+", query), *query.split(), query)
            probe = next((text for text in texts if self._index.cut(text) == [term]), None)
            if probe is None:
                return None
            found[term] = probe
        return found

    def read_statistics(
        self,
        tables: Sequence[Searched],
        found: Sequence[Found],
        limit: int | None,
        threads: int,
    ) -> list[tuple[Statistics, ...]] | None:
        """For each table those that Lance scores by, the whole table's last.

        `found` are the first `limit` matches of each, or more; the base is the first. None where
        Lance's own scores are taken: they can be compared, or they can't be told apart.
        """
        base = tables[0]
        if self._probes is None or (len(tables) == 1 and not base.uncovered):
            return None
        most = max(_SAMPLES, limit or 0)
        scored = [list(self._count_words(batches, most)) for _, batches in found]
        own = map_in_order(
            lambda place: self._read_own(tables[place], scored[place], limit),
            range(1, len(tables)),
            threads,
        )
        return [self._read_base(base, scored[0]), *((one,) for _, one in own)]

    def _read_own(self, one: Searched, scored: Sequence[Scored], limit: int | None) -> Statistics:
        """A generation's: none of its rows are ever deleted, so that matches can be counted."""
        all_found = self._matches_any and limit is not None and len(scored) < limit
        having: dict[str, float] = {}
        for term, probe in (self._probes or {}).items():
            count = _recall(one.identity, term)
            if count is None and all_found:
                count = sum(term in text.counts for text in scored)
            elif count is None:
                query = build_query(Search(column=self._wanted.column, query=probe))
                scan = partial(one.dataset.scanner, full_text_query=query)
                count = guard(one.table.where, guard(one.table.where, scan).count_rows)
            having[term] = _keep(one.identity, term, count)
        having = {term: count for term, count in having.items() if count}
        mean = _recall(one.identity, _MEAN)
        if mean is None:
            # Rows of a copy are scored by the statistics of those that pass the filter.
            usable = scored if self._whole or not one.copied else ()
            found = measure(one.documents, having, self.terms, usable)
            _keep(one.identity, _MEAN, found.mean_length or None)
            return found
        return Statistics(documents=one.documents, mean_length=mean, having=having)

    def _read_base(self, one: Searched, scored: Sequence[Scored]) -> tuple[Statistics, ...]:
        probes = self._probes or {}
        indexed = self._read_index(one, scored)
        if not one.uncovered:
            return (indexed,)
        documents = one.documents + sum(fragment.count_rows() for fragment in one.uncovered)
        whole = read_off(documents, *self._sample(one, probes, fragments=one.uncovered))
        both = dict(indexed.having)
        both.update(whole.having)
        mean = whole.mean_length or indexed.mean_length
        # With a filter Lance counts only what passes it of these: a word then weighs no less than
        # by all that have it among the fewest texts.
        least = replace(indexed, having=both)
        return indexed, least, replace(whole, mean_length=mean, having=both)

    def _read_index(self, one: Searched, scored: Sequence[Scored]) -> Statistics:
        probes = self._probes or {}
        kept = {term: _recall(one.identity, term) for term in (*probes, _MEAN)}
        mean = kept.pop(_MEAN)
        if mean is not None and None not in kept.values():
            having = {term: count for term, count in kept.items() if count}
            return Statistics(documents=one.documents, mean_length=mean, having=having)
        sampled: Sampled | None = None
        if len(self.terms) == 1 and self._matches_any and not one.uncovered:
            samples = {term: _as_samples(term, scored[:_SAMPLES]) for term in probes}
            sampled = samples, _SAMPLES
        if sampled is None or not tells_mean(*sampled):
            sampled = self._sample(one, probes, fast_search=True)
        found = read_off(one.documents, *sampled)
        # Where it has no word of the query, others tell how long its texts are.
        words = iter(() if found.mean_length or not one.documents else self._find_words(one))
        while not found.mean_length and (word := next(words, None)):
            other = self._sample(one, {word: word}, fast_search=True)
            mean = read_off(one.documents, *other).mean_length
            found = replace(found, mean_length=mean)
        for term in probes:
            _keep(one.identity, term, found.having.get(term, 0))
        _keep(one.identity, _MEAN, found.mean_length or None)
        return found

    def _find_words(self, one: Searched) -> list[str]:
        """Some words that are in the table, each a query of its own."""
        scan = partial(
            one.dataset.scanner,
            columns=[self._wanted.column],
            filter=f"`{self._wanted.column}` IS NOT NULL",
            limit=_SAMPLES,
        )
        texts = guard(one.table.where, lambda: scan().to_table())[self._wanted.column].to_pylist()
        words = dict.fromkeys(word for text in texts for word in self.count(text))
        return [word for word in words if self._index.cut(word) == [word]][:_SAMPLES]

    @property
    def _matches_any(self) -> bool:
        """Whether all texts with a word of the query match."""
        wanted = self._wanted
        loose = len(self.terms) == 1 or (wanted.operator == "or" and not wanted.phrase)
        return loose and self._whole

    def _count_words(self, batches: Sequence[pa.RecordBatch], most: int) -> Iterator[Scored]:
        for batch in pa.Table.from_batches(batches).slice(0, most).to_batches() if batches else ():
            texts = batch[self._wanted.column].to_pylist()
            for text, score in zip(texts, batch[SCORE].to_pylist(), strict=True):
                yield Scored(counts=self.count(text), score=score)

    def _sample(self, one: Searched, probes: Mapping[str, str], **options: Any) -> Sampled:
        """Of each word some texts that have it, and up to how many: more where some are alike."""
        for most in (_SAMPLES, _SAMPLES_MAX):
            samples = self._find_samples(one, probes, most, options)
            if tells_mean(samples, most):
                break
        return samples, most

    def _find_samples(
        self, one: Searched, probes: Mapping[str, str], most: int, options: Mapping[str, Any]
    ) -> dict[str, list[Sample]]:
        def find(term: str, probe: str) -> list[Sample]:
            query = build_query(Search(column=self._wanted.column, query=probe))
            columns = [self._wanted.column, SCORE]
            scanner = one.dataset.scanner(
                columns=columns, full_text_query=query, limit=most, **options
            )
            batches = scanner.to_table().to_batches()
            return _as_samples(term, list(self._count_words(batches, most)))

        return {
            term: guard(one.table.where, partial(find, term, probe))
            for term, probe in probes.items()
        }


def _as_samples(term: str, scored: Sequence[Scored]) -> list[Sample]:
    return [
        Sample(score=one.score, count=one.counts[term], length=sum(one.counts.values()))
        for one in scored
        if one.counts.get(term)
    ]
