"""Separates the rows of a chunk that can be written from those that can't, with reasons."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.sources.files import does_match
from memwal.ingest.sources.text_files import convert_text, show_row
from memwal.ingest.values.exact import convert_column
from memwal.ingest.values.numbered_chunks import Finding, find_bad, is_marked
from memwal.ingest.values.shape import Shape
from memwal.rows.pairs import Lenience
from memwal.run.process.whole_file import whole_file
from memwal.store.objects.opening import normalise_uri
from memwal.store.records.ingests import WHOLE, PlanRecord, RejectRecord, Round


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

    def sift(self, chunk: pa.Table, source: str, first_row: int | None) -> Sifted:
        """Sift a chunk that begins at row `first_row` (counted from 0; None: nobody knows).

        Raises Usage for a bad row that may not be set aside, and for faults that are not a row's.
        """
        left = 0 if self.rows_max is None else max(0, self.rows_max - self.rejected)
        found = examine(self.shape, chunk, source, first_row, left + 1)
        if not found.findings:
            return Sifted(rows=found.good, deleted=found.deleted)
        by_row = [list(group) for _, group in groupby(found.findings, lambda f: f.row)]
        if len(by_row) > left:
            self._stop(found.tell(by_row[left][0]))
        kept = np.ones(len(chunk), bool)
        kept[[f.place for f in found.findings if f.place is not None]] = False
        rows, deleted = self.shape.conform(found.rows.filter(pa.array(kept)), source)
        rejects = tuple(self._reject(found, group) for group in by_row)
        self.rejected += len(rejects)
        return Sifted(rows=rows, deleted=deleted, rejects=rejects)

    def _stop(self, bad: RejectRecord) -> None:
        if self.rows_max is None:
            raise Usage(f"{bad}. --check lists all such rows, --bad-rows FILE sets them aside")
        raise Usage(f"{bad}; --bad-rows-max {self.rows_max} takes no more")

    def _reject(self, found: Examined, group: Sequence[Finding]) -> RejectRecord:
        told = [found.tell(finding) for finding in group]
        reason = "; ".join(bad.explain() for bad in told)
        data = group[0].data or found.show_row(group)
        return told[0].model_copy(update={"reason": reason, "data": data})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Examined:
    """A chunk (`chunk`) with its typed rows (`rows`), and the findings in them, sorted by row.

    Without findings, `good` are the rows as they are written, and `deleted` which of them delete.
    """

    source: str
    numbered: bool
    types: Mapping[str, pa.DataType]
    """The table's types."""
    lenience: Lenience
    chunk: pa.Table
    rows: pa.Table
    findings: tuple[Finding, ...]
    good: pa.Table | None = None
    deleted: pa.Array | None = None

    def tell(self, finding: Finding) -> RejectRecord:
        """A finding, with its source and row."""
        return RejectRecord(
            source=self.source,
            row=finding.row if self.numbered else None,
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
                column = convert_column(row[field.name], self.types[field.name], self.lenience)
                row = row.set_column(number, field.name, column)
        as_given = show_row(given)
        return show_row(row) | {name: as_given[name] for name in as_given.keys() & bad}


def examine(
    shape: Shape, chunk: pa.Table, source: str, first_row: int | None, most: int
) -> Examined:
    """Find what is wrong with a chunk's rows: all of it, if each column has less than `most`.

    Raises Usage for columns that can't be written, whatever the rows.
    """
    typed, found = chunk, list[Finding]()
    numbers: Sequence[int] = range((first_row or 0) + 1, (first_row or 0) + 1 + len(chunk))
    if is_marked(chunk):
        try:
            typed, found, numbers = convert_text(chunk, shape.list_types(), shape.lenience, most)
        except ValueError as error:
            raise Usage(f"{source}: {error}") from None
    good, deleted, stopped = None, None, None
    if not found:
        try:
            good, deleted = shape.conform(typed, source)
        except Usage as error:
            stopped = error
    if good is None:
        known = {(f.place, f.column) for f in found}
        found += [f for f in find_bad(shape, typed, most) if (f.place, f.column) not in known]
    if stopped is not None and not found:
        raise stopped
    numbered = [f if f.place is None else replace(f, row=numbers[f.place]) for f in found]
    return Examined(
        source=source,
        numbered=first_row is not None,
        types=shape.list_types(),
        lenience=shape.lenience,
        chunk=chunk,
        rows=typed,
        findings=tuple(sorted(numbered, key=lambda f: f.row or 0)),
        good=good,
        deleted=deleted,
    )


class RejectsFile:
    """A local file of JSON lines; rows that other ingests set aside stay in it.

    It is written from an ingest's records, so it is complete however many runs the ingest took.
    """

    def __init__(self, place: str, sources: Iterable[str]) -> None:
        """Raise Usage when the file can't be written, holds something else, or is in `sources`."""
        self._path = Path(place)
        if "://" in place:
            raise Usage(f"--bad-rows {place}: writes local files only")
        if not self._path.parent.is_dir():
            raise Usage(f"--bad-rows {place}: there is no folder {self._path.parent}")
        if not os.access(self._path.parent, os.W_OK):  # checked early, not when rows are written
            raise Usage(f"--bad-rows {place}: {self._path.parent} can't be written to")
        self._read()
        self._check_apart(sources)

    def update(self, found: Round, plan: PlanRecord) -> None:
        """Replace the round's rows in the file by those it has set aside. Raises Usage."""
        paths = (*plan.rejects, *found.read_progress(WHOLE).rejects)
        if paths:
            whose = {"table": found.uri, "ingest": "/".join(found.folder.split("/")[-2:])}
            self._replace(whose, found.read_rejects(paths))

    def _check_apart(self, sources: Iterable[str]) -> None:
        """Raise Usage for a file that a later run would ingest."""
        path = self._path.resolve()
        hidden = path.name.startswith(("_", "."))  # folders and patterns skip such names
        places = [] if hidden else [place.parts for place in (path, *path.parents)]
        for source in sources:
            named = Path(normalise_uri(source))
            asked = (named.resolve().parts, named.parts)
            within = any(place in asked or does_match(place, asked[1]) for place in places)
            if within or path.parts in asked:
                raise Usage(
                    f"--bad-rows {self._path}: lies in {source}, and would be a source of the next "
                    "run: put it elsewhere, or begin its name with _"
                )

    def _replace(self, whose: Mapping[str, str], rejects: Iterable[RejectRecord]) -> None:
        with self._lock():
            self._replace_locked(whose, rejects)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the folder, if it supports locks, against other processes that write the file."""
        folder = os.open(self._path.resolve().parent, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _replace_locked(self, whose: Mapping[str, str], rejects: Iterable[RejectRecord]) -> None:
        before = self._read()
        rows = [{**whose, **reject.model_dump(mode="json")} for reject in rejects]
        after = [row for row in before if not whose.items() <= row.items()] + rows
        if after == before and self._path.exists():
            return
        try:
            with whole_file(self._path.resolve()) as out:
                for row in after:
                    out.write(f"{json.dumps(row)}\n".encode())
        except OSError as error:
            raise Usage(f"--bad-rows {self._path}: {error}") from None

    def _read(self) -> list[dict[str, Any]]:
        try:
            rows = [json.loads(line) for line in self._path.read_bytes().splitlines()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Usage(f"--bad-rows {self._path}: {error}") from None
        except ValueError:
            rows = [None]
        if not all(isinstance(row, dict) and {"table", "ingest"} <= row.keys() for row in rows):
            raise Usage(f"--bad-rows {self._path}: holds something else than rows set aside")
        return rows
