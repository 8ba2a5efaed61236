"""Which round of an ingest a run works on: a new one, or the one that was not finished.

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
from memwal.ingest.routing import Place
from memwal.ingest.store_sources import Format, SourceFile
from memwal.ingest.table import IngestTable, place_of
from memwal.model import ShardId
from memwal.ports import Objects
from memwal.run.options import RunOptions
from memwal.store.ingest_records import PlanRecord, Round, SourceRecord, rounds
from memwal.store.objects import normalise_uri


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """What is asked for. `format` may be one that only Spark knows, with its `source_options`."""

    sources: tuple[str, ...]
    format: str | None = None
    source_options: tuple[tuple[str, str], ...] = ()
    delete_column: str | None = None
    shard: ShardId | None = None
    ingest_id: str | None = None
    again: bool = False
    skips_unknown_columns: bool = False
    missing_as_null: bool = False
    chunk_rows: int | None = None

    def named(self) -> str:
        """The ingest's id: given, or the same whenever the same is asked for."""
        if self.ingest_id is not None:
            return layout.parse_ingest_id(self.ingest_id)
        asked = [
            sorted(_address(source) for source in self.sources),
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


def _address(source: str) -> str:
    """One spelling for a path. What is no path (a Spark table) stays as it is."""
    try:
        return normalise_uri(source)
    except Exception:
        return source


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The rounds of one ingest."""

    objects: Objects
    ingest_id: str
    run_id: str

    def at(self, number: int) -> Round:
        """One round's documents."""
        return Round(self.objects, self.ingest_id, number, self.run_id)

    def latest(self) -> tuple[Round, PlanRecord] | None:
        """The last round that was begun; None for an ingest that is new."""
        for number in reversed(rounds(self.objects, self.ingest_id)):
            found = self.at(number)
            plan = found.plan()
            if plan is not None:
                return found, plan
        return None

    def begin(self, before: tuple[Round, PlanRecord] | None, plan: PlanRecord) -> Round:
        """Begin the next round; what the finished one before remembered is no longer needed."""
        begun = self.at(1 if before is None else before[0].number + 1)
        begun.begin(plan)
        if before is not None:
            self.objects.delete([info.path for info in self.objects.list(before[0].folder)])
        return begun


def check_same(plan: PlanRecord, request: IngestRequest, table: IngestTable) -> None:
    """Raise Refused when an unfinished round can't be gone on with in this way."""
    if plan.delete_column != request.delete_column or plan.shard != request.shard:
        raise Refused("an unfinished ingest of this id has another --delete-column or --shard")
    if plan.spec_id != table.spec_id:
        raise Refused(
            f"an unfinished ingest was routed by shard spec {plan.spec_id}, the table's is "
            f"{table.spec_id} now: its rows can't be told from those that are written already"
        )


def unfinished_places(found: Round, plan: PlanRecord) -> list[Place]:
    """Where the rows go that a round staged and that are not all written."""
    left = (s for s in plan.staged or () if not found.progress(s.shard_id).finished)
    return [place_of(staged, plan.spec_id) for staged in left]


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


def not_yet(files: Sequence[SourceFile], plan: PlanRecord | None) -> list[SourceFile]:
    """Files that no finished round had, as they are now."""
    if plan is None:
        return list(files)
    known = {file_of(record) for record in (*plan.before, *plan.sources)}
    return [file for file in files if file not in known]


def file_of(record: SourceRecord) -> SourceFile:
    """A recorded file."""
    return SourceFile(
        uri=record.uri,
        format=Format(record.format),
        size_bytes=record.size_bytes,
        stamp=record.stamp,
    )


def record_of(file: SourceFile) -> SourceRecord:
    """The same, to be stored."""
    return SourceRecord(
        uri=file.uri, format=file.format.value, size_bytes=file.size_bytes, stamp=file.stamp
    )
