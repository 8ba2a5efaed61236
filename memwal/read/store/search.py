"""Nearest-neighbour search over the base and generations. Each is searched; the best are taken.

Lance's own scanner searches one table whole: what its index does not cover is compared row by row.
Candidates whose key has a newer row are dropped, and where that leaves too few, more are fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Usage
from memwal.read.plan.request import DISTANCE, Nearest
from memwal.read.store.faults import guard
from memwal.read.store.sources import Base, Batches, Found, Part, Rows, Table
from memwal.read.store.threads import map_in_order

# So many times more are fetched when too many candidates of a source were superseded.
_FETCH_GROWTH = 4


class Search:
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
            "refine_factor": self._wanted.refine_factor,
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
