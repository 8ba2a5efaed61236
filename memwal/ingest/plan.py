"""What is asked for, and which files a round takes. Pure.

An ingest is named by what it was asked for. Its first round takes every file that is there; a run
that finds it unfinished goes on with it, with the very files of its plan; a run that finds it
finished begins another round with the files that are new or changed, if there are any. So a file is
ingested once, however often the command runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from memwal.errors import Refused
from memwal.format import layout
from memwal.run.options import RunOptions
from memwal.store.ingest_records import PlanRecord, SourceFile, StagedRecord
from memwal.store.objects import normalise_uri


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """What is asked for. `format` may be one that only Spark knows, with its `source_options`."""

    sources: tuple[str, ...]
    format: str | None = None
    source_options: tuple[tuple[str, str], ...] = ()
    delete_column: str | None = None
    shard: str | None = None
    ingest_id: str | None = None
    again: bool = False
    skips_unknown_columns: bool = False
    missing_as_null: bool = False
    chunk_rows: int | None = None

    def make_id(self) -> str:
        """The ingest's id: the one given, or else the same whenever the same is asked for."""
        if self.ingest_id is not None:
            return layout.parse_ingest_id(self.ingest_id)
        asked = [
            sorted(_normalise_source(source) for source in self.sources),
            self.format,
            sorted(self.source_options),
            self.delete_column,
            self.shard,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class IngestOptions(RunOptions):
    """What `ingest` takes besides."""

    request: IngestRequest
    merge: bool = False
    backlog_generations_max: int | None = None
    backlog_wait_seconds_max: float = 600.0


def _normalise_source(source: str) -> str:
    """One spelling for a path. What is no path (a Spark table) stays as it is."""
    try:
        return normalise_uri(source)
    except Exception:
        return source


def make_plan(
    request: IngestRequest,
    *,
    spec_id: int,
    rows_per_entry_max: int,
    chunk_rows: int,
    staged: tuple[StagedRecord, ...] | None = None,
) -> PlanRecord:
    """The plan of a new round, but for its files."""
    return PlanRecord(
        staged=staged,
        chunk_rows=chunk_rows,
        rows_per_entry_max=rows_per_entry_max,
        delete_column=request.delete_column,
        shard=request.shard,
        spec_id=spec_id,
        skips_unknown_columns=request.skips_unknown_columns,
        missing_as_null=request.missing_as_null,
    )


def check_same(plan: PlanRecord, request: IngestRequest, spec_id: int) -> None:
    """Raise Refused when a run that asks for this can't finish an unfinished round."""
    if plan.delete_column != request.delete_column or plan.shard != request.shard:
        raise Refused("an unfinished ingest of this id has another --delete-column or --shard")
    if plan.spec_id != spec_id:
        raise Refused(
            f"an unfinished ingest was routed by shard spec {plan.spec_id}, the table's is "
            f"{spec_id} now: its rows can't be told from those that are written already"
        )


def check_unchanged(planned: Sequence[SourceFile], found: Sequence[SourceFile]) -> None:
    """Raise Refused when a file of an unfinished round is gone or has changed."""
    there = {file.uri: file for file in found}
    for file in planned:
        if there.get(file.uri) != file:
            changed = "has changed" if file.uri in there else "is gone"
            raise Refused(
                f"{file.uri} {changed} since its ingest began, which is not finished: what of it "
                "is written can't be told. Bring it back as it was, or ingest under another --id"
            )


def select_new(files: Sequence[SourceFile], plan: PlanRecord | None) -> list[SourceFile]:
    """The files that no finished round ingested as they are now."""
    known = set() if plan is None else {*plan.before, *plan.sources}
    return [file for file in files if file not in known]
