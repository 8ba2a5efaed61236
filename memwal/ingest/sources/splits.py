"""The parts that a track reads: source files, or files of rows staged for one shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused
from memwal.ingest.sources.chunks import cut_batches
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.sources.row_locations import Places, RowPlace
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import FindPlace
from memwal.ports import Objects
from memwal.store.records.ingests import SourceFile
from memwal.store.shards.wal import count_decoded_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A part of the source. `read` gives its rows from a row on, always in the same chunks."""

    name: str
    """The address or path, for messages."""
    read: Callable[[int], Iterator[pa.Table]]
    find_place: FindPlace = lambda row: RowPlace(row=row)
    """Where a row is, by its number from 1."""


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
                "MW-I22", f"{objects.uri}: {path} is compressed, as no staged rows are"
            )
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
    except Missing:
        raise Refused(
            "MW-I23",
            f"{objects.uri}: {path}: staged rows are gone, so that this ingest can't be finished: "
            "`memwal garbage` removes them when nobody resumed it for a long time "
            "(--ingest-idle). What is written stays; ingest the source under another --id",
        ) from None
    except (pa.ArrowException, ValueError) as error:
        raise Corruption("MW-I22", f"{objects.uri}: {path}: {error}") from None
    yield from cut_batches(iter(table.slice(first_row).to_batches()), chunk_rows)
