"""What one may ask of an ingest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.format.layout import parse_ingest_id, parse_shard
from memwal.options import Option, SourceFormat
from memwal.rows.conversions import Conversion

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class SpooledInput:
    """The content of standard input, in a file that is deleted when the run ends."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """What to ingest, and how. `spooled` is what standard input held."""

    sources: tuple[str, ...] = ()
    spooled: SpooledInput | None = None
    format: Annotated[
        SourceFormat | None,
        Option(meaning="Default: by the files' names."),
    ] = None
    renamed: Annotated[
        Pairs,
        Option(
            meaning="Rename a source's column.",
            flag="map",
            field="map",
            metavar="OLD=NEW",
        ),
    ] = ()
    defaults: Annotated[
        Pairs,
        Option(
            meaning="Value for sources without the column.",
            flag="default",
            field="default",
            metavar="COLUMN=VALUE",
        ),
    ] = ()
    delete_column: Annotated[
        str | None,
        Option(meaning="A boolean column: true deletes the row's key.", metavar="NAME"),
    ] = None
    shard: Annotated[
        str | None,
        Option(meaning="Write to this shard, without routing.", metavar="ID", parse=parse_shard),
    ] = None
    ingest_id: Annotated[
        str | None,
        Option(
            meaning="The ingest's name. Default: made from sources and options.",
            flag="id",
            metavar="NAME",
            parse=parse_ingest_id,
        ),
    ] = None
    again: Annotated[
        bool,
        Option(meaning="Ingest files again: ingested ones, or those that changed in between."),
    ] = False
    missing_as_null: Annotated[
        bool,
        Option(meaning="Write NULL for columns that a source lacks, replacing values."),
    ] = False
    convert: Annotated[
        tuple[Conversion, ...],
        Option(meaning="Change what is not exact: see the table in the guide to ingests."),
    ] = ()
    rows_per_chunk: Annotated[
        int | None, Option(meaning="Rows routed at a time. Default: by their size.", least=1)
    ] = None
    check: Annotated[
        bool,
        Option(meaning="Read everything and list what can't be written; write nothing."),
    ] = False
    bad_rows: Annotated[
        str | None,
        Option(meaning="Set rows aside that can't be written: JSON lines.", metavar="FILE"),
    ] = None
    bad_rows_max: Annotated[int, Option(meaning="Stop if there are more.", least=0)] = 1000
    merge: Annotated[
        bool,
        Option(meaning="Merge at the start, when too many generations wait, and at the end."),
    ] = False
    backlog_generations_max: Annotated[
        int | None,
        Option(
            meaning="Pause (or merge) while more generations wait. Default: no limit; 64 with "
            "--merge.",
            least=1,
        ),
    ] = None

    @property
    def rejects_max(self) -> int | None:
        """How many bad rows may be set aside; None: a bad row ends the run."""
        return None if self.bad_rows is None else self.bad_rows_max
