"""Separates the rows of a chunk that can be written from those that can't, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.sources.splits import FindPlace, RowPlace
from memwal.ingest.sources.text_files import convert_text, show_row
from memwal.ingest.values.numbered_chunks import Finding, find_bad, is_marked
from memwal.ingest.values.shape import Shape
from memwal.rows.json_values import Lenience
from memwal.store.records.ingests import RejectRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class BadValue:
    """A value, or a whole row, that can't be written, and its place in the source."""

    source: str
    place: RowPlace
    column: str | None
    value: Any
    """As a JSON value."""
    reason: str

    def __str__(self) -> str:
        at = "" if self.place.row is None else f" {self.place}:"
        return f"{self.source}:{at} {self.explain()}"

    def explain(self) -> str:
        """What is wrong, without the place."""
        return self.reason if self.column is None else f"column {self.column!r} {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sifted:
    """The rows that can be written, in the table's schema, and which of them delete."""

    rows: pa.Table
    deleted: pa.Array | None
    rejects: tuple[RejectRecord, ...] = ()


@dataclass(kw_only=True)
class Sieve:
    """Sifts the chunks of a source. Up to `rows_max` bad rows are set aside (None: none)."""

    shape: Shape
    rows_max: int | None = None
    rejected: int = 0

    def sift(self, chunk: pa.Table, source: str, first_row: int, find_place: FindPlace) -> Sifted:
        """Sift a chunk that begins at row `first_row` (counted from 0) of the source.

        Raises Usage for a bad row that may not be set aside, and for faults that are not a row's.
        """
        if not is_marked(chunk):
            try:
                rows, deleted = self.shape.conform(chunk, source)
                return Sifted(rows=rows, deleted=deleted)
            except Usage:
                if not len(chunk):
                    raise
        left = 0 if self.rows_max is None else max(0, self.rows_max - self.rejected)
        found = examine(self.shape, chunk, source, first_row, left + 1)
        by_row = [(row, list(group)) for row, group in groupby(found.findings, lambda f: f.row)]
        if len(by_row) > left:
            number, first = by_row[left]
            self._stop(found.tell(first[0], find_place(number or 0)))
        kept = np.ones(len(chunk), bool)
        kept[[f.place for f in found.findings if f.place is not None]] = False
        rows, deleted = self.shape.conform(found.rows.filter(pa.array(kept)), source)
        rejects = tuple(self._reject(found, group, find_place(row or 0)) for row, group in by_row)
        self.rejected += len(rejects)
        return Sifted(rows=rows, deleted=deleted, rejects=rejects)

    def _stop(self, bad: BadValue) -> None:
        if self.rows_max is None:
            raise Usage(f"{bad}. --check lists all such rows, --bad-rows FILE sets them aside")
        raise Usage(f"{bad}; --bad-rows-max {self.rows_max} takes no more")

    def _reject(self, found: Examined, group: Sequence[Finding], place: RowPlace) -> RejectRecord:
        told = [found.tell(finding, place) for finding in group]
        return RejectRecord(
            source=found.source,
            row=place.row,
            line=place.line,
            row_group=place.row_group,
            column=told[0].column,
            value=told[0].value,
            reason="; ".join(bad.explain() for bad in told),
            data=group[0].data or found.show_row(group),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Examined:
    """A chunk (`chunk`) with its typed rows (`rows`), and the findings in them, sorted by row."""

    source: str
    types: Mapping[str, pa.DataType]
    """The table's types."""
    chunk: pa.Table
    rows: pa.Table
    findings: tuple[Finding, ...]

    def tell(self, finding: Finding, place: RowPlace) -> BadValue:
        """A finding, with its source and place."""
        return BadValue(
            source=self.source,
            place=place,
            column=finding.column,
            value=finding.value,
            reason=finding.reason,
        )

    def show_row(self, group: Sequence[Finding]) -> dict[str, Any] | None:
        """The row of these findings as JSON values, which can be corrected and ingested."""
        place = group[0].place
        if place is None:
            return None
        bad = {f.column for f in group}
        given, row = (t.slice(place, 1).combine_chunks() for t in (self.chunk, self.rows))
        for number, field in enumerate(row.schema):
            if field.name in self.types and field.name not in bad:
                column = row[field.name].cast(self.types[field.name])
                row = row.set_column(number, field.name, column)
        as_given = show_row(given)
        return show_row(row) | {name: as_given[name] for name in as_given.keys() & bad}


def examine(shape: Shape, chunk: pa.Table, source: str, first_row: int, most: int) -> Examined:
    """Find what is wrong with a chunk's rows: all of it, if each column has less than `most`.

    Raises Usage for columns that can't be written, whatever the rows.
    """
    typed, found = chunk, list[Finding]()
    numbers: Sequence[int] = range(first_row + 1, first_row + 1 + len(chunk))
    if is_marked(chunk):
        lenience = Lenience(missing=shape.missing_as_null, unknown=shape.skips_unknown_columns)
        try:
            typed, found, numbers = convert_text(chunk, shape.list_types(), lenience, most)
        except ValueError as error:
            raise Usage(f"{source}: {error}") from None
    bad_already = {(f.place, f.column) for f in found}
    found += [f for f in find_bad(shape, typed, most) if (f.place, f.column) not in bad_already]
    numbered = [f if f.place is None else replace(f, row=numbers[f.place]) for f in found]
    return Examined(
        source=source,
        types=shape.list_types(),
        chunk=chunk,
        rows=typed,
        findings=tuple(sorted(numbered, key=lambda f: f.row or 0)),
    )
