"""A source cut into parts that are read on their own, and where in a file a row is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.values.numbered_chunks import cut_batches
from memwal.ingest.values.shape import Shape
from memwal.ports import Objects
from memwal.store.records.ingests import Format, SourceFile
from memwal.store.shards.wal import count_decoded_bytes

_BLOCK_BYTES = 1024 * 1024
_NEWLINE, _QUOTE = b'\n"'
_HEADERS = {Format.CSV: 1, Format.JSONL: 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPlace:
    """A row's number from 1, and its line (from 1) or row group (from 0) if the format has them."""

    row: int | None
    line: int | None = None
    row_group: int | None = None


FindPlace = Callable[[int], RowPlace]
"""Where a row is, by its number from 1."""


class Places:
    """Locates one file's rows; fast when they are asked for in ascending order."""

    def __init__(self, files: SourceFiles, file: SourceFile) -> None:
        self._files = files
        self._file = file
        self._lines: _Lines | None = None
        self._last = 0
        self._groups: list[int] | None = None

    def find(self, row: int) -> RowPlace:
        """The place of a row, by its number from 1."""
        if self._file.format is Format.PARQUET:
            if self._groups is None:
                self._groups = list(accumulate(self._files.list_row_groups(self._file)))
            return RowPlace(row=row, row_group=bisect_left(self._groups, row))
        if self._file.format not in _HEADERS:
            return RowPlace(row=row)
        if self._lines is None or row < self._last:
            stream, is_csv = self._files.open_bytes(self._file), self._file.format is Format.CSV
            self._lines = _Lines(stream, breaks_in_quotes=is_csv)
        self._last = row
        return RowPlace(row=row, line=self._lines.find(row + _HEADERS[self._file.format]))


class _Lines:
    """Counts lines as an editor does; a record is a line that is not empty.

    Counting ends at a line break inside quotes: only a CSV reader knows which quotes begin a field.
    """

    def __init__(self, stream: Any, *, breaks_in_quotes: bool) -> None:
        self._stream = stream
        self._quote, self._blanks = (_QUOTE, b"\n\r") if breaks_in_quotes else (-1, b" \t\n\r")
        self._lines = self._records = 0
        self._found: npt.NDArray[np.int64] = np.array([], np.int64)
        self._open = self._quoted = self._over = False

    def find(self, record: int) -> int | None:
        """The line of a record, both numbered from 1; None when that can't be told."""
        while record > self._records + len(self._found):
            if self._over:
                return None
            self._read()
        return int(self._found[record - self._records - 1]) if record > self._records else None

    def _read(self) -> None:
        self._records += len(self._found)
        block = np.frombuffer(self._stream.read(_BLOCK_BYTES), np.uint8)
        if not len(block):
            self._over = True
            self._found = np.array([self._lines + 1] * self._open, np.int64)
            return
        ends = np.flatnonzero(block == _NEWLINE)
        quotes = np.cumsum(block == self._quote) + self._quoted
        quoted = ends[quotes[ends] % 2 > 0]
        if len(quoted):
            self._over, block = True, block[: quoted[0]]
            ends, quotes = ends[ends < quoted[0]], quotes[: quoted[0]]
        self._quoted = bool(len(quotes) and quotes[-1] % 2)
        # How many non-blank bytes come before each line's end.
        filled = np.cumsum(~np.isin(block, list(self._blanks))) + self._open
        until = filled[ends]
        full = np.diff(until, prepend=0) > 0
        self._found = self._lines + 1 + np.flatnonzero(full)
        self._open = bool(len(filled) and filled[-1] > (until[-1] if len(ends) else 0))
        self._lines += len(ends)
        if self._over:  # the record that the break is in begins here
            self._found = np.append(self._found, self._lines + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A part of the source. `read` gives its rows from a row on, always in the same chunks."""

    name: str
    """The address or path, for messages."""
    read: Callable[[int], Iterator[pa.Table]]
    find_place: FindPlace = lambda row: RowPlace(row=row)


def make_splits(
    files: SourceFiles, sources: Sequence[SourceFile], shape: Shape, chunk_rows: int
) -> list[Split]:
    """Splits of source files. Raises Usage for one whose columns can't be written."""
    splits = []
    for file in sources:
        schema = files.read_schema(file)
        shape.check(schema, file.uri)
        columns = shape.select_columns(schema)
        read = partial(files.read_chunks, file, chunk_rows, columns=columns)
        splits.append(Split(name=file.uri, read=read, find_place=Places(files, file).find))
    return splits


def read_staged(objects: Objects, path: str, chunk_rows: int, first_row: int) -> Iterator[pa.Table]:
    """Read one file of staged rows, an Arrow stream below the table's root, into memory."""
    if first_row % chunk_rows:
        return  # after the last chunk
    try:
        data = objects.get(path)
        if count_decoded_bytes(data) > len(data):
            raise Corruption(
                "MW-I27", f"{objects.uri}: {path} is compressed, as no staged rows are"
            )
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
    except Missing:
        raise Refused(
            "MW-I23",
            f"{objects.uri}: {path}: staged rows are gone, so that this ingest can't be finished: "
            "`memwal garbage` removes them when nobody resumed it for 14 days. What is written "
            "stays; ingest the source under another --id",
        ) from None
    except (pa.ArrowException, ValueError) as error:
        raise Corruption("MW-I27", f"{objects.uri}: {path}: {error}") from None
    yield from cut_batches(iter(table.slice(first_row).to_batches()), chunk_rows)
