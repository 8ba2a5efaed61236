"""Estimates how long indexing takes, by rows and bytes, corrected by an index's last runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from memwal.indexes import IndexFacts

# In shorter runs, opening and committing take most of the time, which tells nothing of large ones.
TELLING_SECONDS_MIN = 1.0
# Records are input: whatever they say, an estimate stays within this of the constants.
CORRECTION_MAX = 10.0
_RUNS_HEEDED_MAX = 5
# Assumed for a column that was not measured.
_ROW_BYTES = 32.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """What a past run did to one index; `seconds` are the sum over all its processes."""

    index: str
    kind: str
    retrained: bool
    rows: int
    column_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCosts:
    """Seconds per row and per byte of the column, by index type.

    Measured by tests/bench/index_methods.py on 2 cores. A retrain with product quantisation takes
    `codebook_seconds_per_byte` more for the rows that the codebook is trained on. `corrections` are
    factors from past runs, by index name, type, and whether it is a retrain.
    """

    seconds_per_row: Mapping[str, float] = field(default_factory=dict)
    seconds_per_byte: Mapping[str, float] = field(default_factory=dict)
    other_seconds_per_row: float = 1.0e-6
    other_seconds_per_byte: float = 1.0e-8
    codebook_seconds_per_byte: float = 0.0
    codebook_rows_max: int = 256 * 256
    corrections: Mapping[tuple[str, str, bool], float] = field(default_factory=dict)

    def seconds(self, index: IndexFacts, rows: int, *, retrain: bool = False) -> float:
        """About how many seconds one process takes to index that many rows."""
        expected = self._expect(index.kind, rows, column_bytes(index, rows), retrain)
        return expected * self.corrections.get((index.name, index.kind, retrain), 1.0)

    def corrected(self, runs: Iterable[PastRun]) -> IndexCosts:
        """These costs, corrected by the median of each index's last few runs (newest first)."""
        told: dict[tuple[str, str, bool], list[float]] = {}
        for run in runs:
            expected = self._expect(run.kind, run.rows, run.column_bytes, run.retrained)
            if max(expected, run.seconds) >= TELLING_SECONDS_MIN:
                factor = run.seconds / expected if expected else CORRECTION_MAX
                told.setdefault((run.index, run.kind, run.retrained), []).append(
                    min(CORRECTION_MAX, max(1 / CORRECTION_MAX, factor))
                )
        found = {key: median(factors[:_RUNS_HEEDED_MAX]) for key, factors in told.items()}
        return replace(self, corrections=found)

    def _expect(self, kind: str, rows: int, size: int, retrain: bool) -> float:
        per_row = self.seconds_per_row.get(kind, self.other_seconds_per_row)
        per_byte = self.seconds_per_byte.get(kind, self.other_seconds_per_byte)
        seconds = rows * per_row + size * per_byte
        if retrain and "PQ" in kind:
            share = min(1.0, self.codebook_rows_max / max(1, rows))
            seconds += size * share * self.codebook_seconds_per_byte
        return seconds


def column_bytes(index: IndexFacts, rows: int) -> int:
    """About how many bytes the indexed column takes in memory for that many rows."""
    return int(rows * (_ROW_BYTES if index.row_bytes is None else index.row_bytes))


COSTS = IndexCosts(
    seconds_per_row={
        "BTREE": 2.0e-7,
        "BITMAP": 2.0e-7,
        "LABEL_LIST": 1.0e-7,
        "INVERTED": 5.0e-7,
        "NGRAM": 1.0e-6,
        "ZONEMAP": 1.5e-8,
        "BLOOMFILTER": 5.0e-8,
        "IVF_FLAT": 5.0e-7,
        "IVF_SQ": 5.0e-7,
        "IVF_PQ": 1.0e-6,
        "IVF_RQ": 1.0e-6,
        "IVF_HNSW_FLAT": 1.2e-4,
        "IVF_HNSW_SQ": 1.2e-4,
        "IVF_HNSW_PQ": 1.2e-4,
    },
    seconds_per_byte={
        "BTREE": 6.0e-9,
        "BITMAP": 1.0e-9,
        "LABEL_LIST": 2.0e-8,
        "INVERTED": 1.0e-7,  # from 3e-8 to 2e-7, as there are few different words or many
        "NGRAM": 2.0e-7,
        "ZONEMAP": 1.0e-9,
        "BLOOMFILTER": 1.0e-9,
        "IVF_FLAT": 5.0e-9,
        "IVF_SQ": 6.0e-9,
        "IVF_PQ": 3.0e-8,
        "IVF_RQ": 3.0e-8,
        "IVF_HNSW_FLAT": 8.0e-8,
        "IVF_HNSW_SQ": 8.0e-8,
        "IVF_HNSW_PQ": 1.0e-7,
    },
    codebook_seconds_per_byte=1.0e-6,
)
