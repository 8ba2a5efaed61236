"""The id of an ingest, and the plan of a round. Pure.

An ingest's id follows from its request. Its first round takes every file of the sources. A run
that finds a round unfinished resumes it, with exactly the files of its plan; a run that finds it
finished begins another round with the files that are new or changed, if there are any. So a file is
ingested once, however often the command runs. `memwal.ingest.progress.identity` tells which files
are new.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memwal.errors import Refused, StandDown
from memwal.format import layout
from memwal.ingest.request import IngestRequest
from memwal.ingest.sources.files import STANDARD_INPUT
from memwal.ingest.target import IngestTable
from memwal.run.options import RunOptions
from memwal.store.objects.opening import normalise_uri
from memwal.store.records.ingests import PlanRecord, Round, SourceFile, StagedRecord


@dataclass(frozen=True, kw_only=True)
class StagedRound:
    """Rows that the tasks of a Spark write have stored, and the round that they make up.

    A write is round 1; the rounds of a stream follow the numbers of its batches. `spec_id` is the
    shard spec that the rows were routed by, `name` what messages call them.
    """

    name: str
    number: int
    spec_id: int
    records: tuple[StagedRecord, ...]


@dataclass(frozen=True, kw_only=True)
class IngestOptions(RunOptions):
    """The options of `ingest`. With `staged`, those rows are the source."""

    request: IngestRequest
    staged: StagedRound | None = None


def make_id(request: IngestRequest) -> str:
    """The ingest's id: the one given, or else a hash of the request.

    The order of the sources is part of it, because the last row of a key wins. Standard input is
    identified by its content.
    """
    if request.ingest_id is not None:
        return layout.parse_ingest_id(request.ingest_id)
    spooled = request.spooled
    sources = [
        spooled.digest
        if spooled is not None and source == STANDARD_INPUT
        else normalise_uri(source)
        for source in request.sources
    ]
    more: list[object] = ["in order"] if len(sources) > 1 else []
    if request.renamed or request.defaults:
        more.append([sorted(request.renamed), sorted(request.defaults)])
    asked = [
        sources,
        request.format,
        request.delete_column,
        request.shard,
        *more,
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def make_plan(
    request: IngestRequest,
    *,
    spec_id: int,
    rows_per_entry_max: int,
    chunk_rows: int,
    staged: tuple[StagedRecord, ...] | None = None,
    sources: Sequence[SourceFile] = (),
) -> PlanRecord:
    """The plan of a new round, still without what earlier rounds ingested (`before`)."""
    return PlanRecord(
        sources=tuple(sources),
        staged=staged,
        chunk_rows=chunk_rows,
        rows_per_entry_max=rows_per_entry_max,
        delete_column=request.delete_column,
        shard=request.shard,
        spec_id=spec_id,
        missing_as_null=request.missing_as_null,
        convert=request.convert,
        renamed=request.renamed,
        defaults=request.defaults,
    )


def check_same(plan: PlanRecord, request: IngestRequest, spec_id: int) -> None:
    """Raise Refused when this request can't finish the unfinished round of that plan."""
    if plan.delete_column != request.delete_column or plan.shard != request.shard:
        raise Refused(
            "MW-I12",
            "an unfinished ingest of this id has another --delete-column or --shard: give the "
            "same, or another --id",
        )
    if (plan.renamed, plan.defaults) != (request.renamed, request.defaults):
        raise Refused(
            "MW-I12",
            "an unfinished ingest of this id has another --map or --default: give the same, or "
            "another --id",
        )
    if plan.spec_id != spec_id:
        raise Refused(
            "MW-I13",
            f"an unfinished ingest was routed by shard spec {plan.spec_id}, the table's is "
            f"{spec_id} now: its rows can't be told from those that are written already. "
            "Ingest the source under another --id",
        )


def check_turn(staged: StagedRound, latest: Round, plan: PlanRecord, *, finished: bool) -> None:
    """Raise Refused unless staged rows are the latest round again, or a later one.

    Spark repeats a stream's last batch, with the same rows, when it does not know that the batch
    was written. Other rows mean that its checkpoint does not match what the table has.
    """
    number = latest.number
    if staged.number < number:
        raise Refused(
            "MW-I24",
            f"{staged.name} comes again, and a later one was written already: the checkpoint is "
            "older than what the table has of this query, so that rows would be written twice",
        )
    rows, planned = _count_rows(staged.records), _count_rows(plan.staged or ())
    if staged.number == number and finished and planned != rows:
        more = ", in other shards" if rows.total() == planned.total() else ""
        raise Refused(
            "MW-I25",
            f"{staged.name} comes again with {rows.total()} rows, and was written with "
            f"{planned.total()}{more}: whether some are new can't be told. New rows need another "
            "id, or another checkpoint",
        )
    known = {record.shard_id: record.digest for record in plan.staged or () if record.digest}
    others = [r.shard_id for r in staged.records if r.digest != known.get(r.shard_id, r.digest)]
    if staged.number == number and finished and others:
        raise Refused(
            "MW-I25",
            f"{staged.name} comes again with other rows than it was written with, as many to each "
            f"shard ({', '.join(sorted({*others}))}): none of them is written. New rows need "
            "another id, or another checkpoint",
        )


def _count_rows(records: Iterable[StagedRecord]) -> Counter[str]:
    """The number of rows by shard."""
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.shard_id] += record.rows
    return counts


def plan_round(staged: StagedRound, request: IngestRequest, table: IngestTable) -> PlanRecord:
    """The plan for staged rows. Raises StandDown when the table's shard spec has changed since."""
    if staged.spec_id != table.spec_id:
        raise StandDown("the table's shard spec was changed while these rows were stored")
    return make_plan(
        request,
        spec_id=table.spec_id,
        rows_per_entry_max=table.rows_per_entry_max,
        chunk_rows=table.rows_per_entry_max,
        staged=staged.records,
    )
