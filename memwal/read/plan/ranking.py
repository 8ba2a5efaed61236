"""Ranks texts by BM25, as Lance does, with one set of statistics over all tables. Pure.

Lance scores each table by itself: a word that is rare in one generation weighs more there than in
the base, so scores of different tables can't be compared. Here statistics are added up over all
tables, and texts are scored again. No interface gives an index's statistics of a word, so they are
derived from the scores that Lance gave to a few known texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log

# Lance's constants, which no index setting changes.
_K1 = 1.2
_B = 0.75
# Below this, texts are too similar to derive the mean length from.
_FIRMNESS_MIN = 1e-6
_HALVINGS = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """How many texts have words, their mean length, and how many have each word of a query.

    Of one table, or of several together. A mean of 0 means that it is not known.
    """

    documents: float
    mean_length: float
    having: Mapping[str, float]

    def weigh_word(self, term: str) -> float:
        """The weight of a word, which is higher the fewer texts have it."""
        return _weigh_word(self.documents, self.having.get(term, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A text that has a word `count` times among `length` words, and its score for that word."""

    score: float
    count: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A match: the counts of its words, and the score that Lance gave it."""

    counts: Mapping[str, int]
    score: float


def add_up(found: Iterable[Statistics]) -> Statistics:
    """The statistics of several tables together."""
    each = list(found)
    terms = {term for one in each for term in one.having}
    measured = [one for one in each if one.mean_length]
    words = fsum(one.documents * one.mean_length for one in measured)
    return Statistics(
        documents=fsum(one.documents for one in each),
        mean_length=words / (fsum(one.documents for one in measured) or 1),
        having={term: fsum(one.having.get(term, 0) for one in each) for term in terms},
    )


def tells_mean(samples: Mapping[str, Sequence[Sample]], most: int) -> bool:
    """Whether samples (up to `most` of each word) determine the mean length behind their scores.

    They don't when every word has more texts than that and its samples are too similar.
    """
    known = [some for some in samples.values() if some]
    return not known or any(
        len(some) < most or _find_firmness(some) >= _FIRMNESS_MIN for some in known
    )


def read_off(documents: int, samples: Mapping[str, Sequence[Sample]], most: int) -> Statistics:
    """The statistics by which Lance has scored these samples (up to `most` of each word)."""
    known = {term: some for term, some in samples.items() if some}
    mean = _find_mean_length(documents, known.values(), most)
    having: dict[str, float] = {}
    for term, some in known.items():
        weights = [s.score / _weigh_count(s.count, s.length, mean) for s in some]
        counted = (documents + 1) / exp(fsum(weights) / len(weights)) - 0.5
        having[term] = float(min(max(len(some), round(counted)), max(len(some), documents)))
    return Statistics(documents=documents, mean_length=mean, having=having)


def measure(
    documents: int,
    having: Mapping[str, float],
    terms: Sequence[str],
    scored: Sequence[Scored],
) -> Statistics:
    """A table's statistics when it is known how many texts have each word.

    The mean length is the one for which the first text gets the score that Lance gave it.
    """
    known = Statistics(documents=documents, mean_length=0.0, having=having)
    for best in scored[:1]:
        low, high = 0.0, 1e6
        for _ in range(_HALVINGS):
            mean = (low + high) / 2
            known = replace(known, mean_length=mean)
            # The longer the others are, the more a text's words count.
            low, high = (
                (mean, high) if make_scorer(known, terms)(best.counts) < best.score else (low, mean)
            )
    return known


def make_scorer(
    statistics: Statistics, terms: Sequence[str]
) -> Callable[[Mapping[str, int]], float]:
    """A function that scores a text by the counts of its words; repeated terms count repeatedly."""
    mean = statistics.mean_length or 1.0
    weights = [(term, statistics.weigh_word(term)) for term in terms]

    def score(counts: Mapping[str, int]) -> float:
        length = sum(counts.values())
        return sum(
            weight * _weigh_count(counts[term], length, mean)
            for term, weight in weights
            if counts[term]
        )

    return score


def stretch(own: Statistics, together: Statistics) -> float:
    """The largest factor by which a text's score may rise from its table's statistics to all."""
    ratios = [together.weigh_word(term) / own.weigh_word(term) for term in own.having]
    longer = together.mean_length / own.mean_length if own.mean_length else 1.0
    return max(ratios, default=1.0) * max(1.0, longer)


def _weigh_word(documents: float, having: float) -> float:
    return log(1 + (max(documents - having, 0) + 0.5) / (having + 0.5))


def _weigh_count(count: int, length: int, mean: float) -> float:
    return count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length / mean))


def _find_firmness(some: Sequence[Sample]) -> float:
    """How well the samples' scores determine the mean length: 0 when the texts are alike."""
    rows = [(s.count + _K1 * (1 - _B), _K1 * _B * s.length) for s in some]
    aa, ab, bb = (fsum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    return 1 - ab * ab / (aa * bb)


def _find_mean_length(documents: int, found: Iterable[Sequence[Sample]], most: int) -> float:
    """The mean length behind the scores, from the word that determines it best; 0 without samples.

    A score is weight * (K1 + 1) * count / (count + K1 * (1 - B) + K1 * B * length / mean). Its
    reciprocal is linear in 1 / weight and 1 / (weight * mean). Texts that are too similar still
    determine it if they are all that have the word, because its weight is then known.
    """
    best, firmest = 0.0, 0.0
    lengths: list[int] = []
    for some in found:
        lengths += [sample.length for sample in some]
        rows = [
            (s.count + _K1 * (1 - _B), _K1 * _B * s.length, (_K1 + 1) * s.count / s.score)
            for s in some
        ]
        aa, ab, bb = (fsum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
        ay, by = (fsum(r[i] * r[2] for r in rows) for i in (0, 1))
        firmness = _find_firmness(some)
        inverse, inverse_by_mean = bb * ay - ab * by, aa * by - ab * ay
        if firmness < _FIRMNESS_MIN and len(some) < most:
            inverse = 1 / _weigh_word(documents, len(some))
            inverse_by_mean = (by - ab * inverse) / bb
        if firmness >= firmest and inverse > 0 and inverse_by_mean > 0:
            best, firmest = inverse / inverse_by_mean, firmness
    return best or sum(lengths) / max(1, len(lengths))
