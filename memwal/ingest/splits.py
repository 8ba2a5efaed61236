"""The parts that a track reads: source files, and rows that were staged for one shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused
from memwal.ingest.sources import SourceFiles, cut_batches
from memwal.ports import Objects
from memwal.store.arrow_streams import count_decoded_bytes
from memwal.store.ingest_records import SourceFile


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSplit:
    """One source file."""

    files: SourceFiles
    file: SourceFile
    chunk_rows: int
    columns: Sequence[str]

    @property
    def name(self) -> str:
        """Its address."""
        return self.file.uri

    def chunks(self, first_row: int) -> Iterator[pa.Table]:
        """Its rows from `first_row` on."""
        return self.files.chunks(
            self.file, self.chunk_rows, first_row=first_row, columns=self.columns
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedSplit:
    """One file of staged rows, an Arrow stream below the table's root; read whole."""

    objects: Objects
    path: str
    chunk_rows: int

    @property
    def name(self) -> str:
        """Its path."""
        return self.path

    def chunks(self, first_row: int) -> Iterator[pa.Table]:
        """Its rows from `first_row` on."""
        if first_row % self.chunk_rows:
            return  # behind the last chunk
        try:
            data = self.objects.get(self.path)
            if count_decoded_bytes(data) > len(data):
                raise Corruption(
                    f"{self.objects.uri}: {self.path} is compressed, as no staged rows are"
                )
            with pa.ipc.open_stream(data) as stream:
                table = stream.read_all()
        except Missing:
            raise Refused(
                f"{self.objects.uri}: {self.path}: staged rows are gone, so that this ingest can't "
                "be finished: `memwal garbage` removes them when nobody resumed it for a long time "
                "(--ingest-idle). What is written stays; ingest the source under another --id"
            ) from None
        except (pa.ArrowException, ValueError) as error:
            raise Corruption(f"{self.objects.uri}: {self.path}: {error}") from None
        yield from cut_batches(iter(table.slice(first_row).to_batches()), self.chunk_rows)
