"""Resumes an ingest whose sources were corrected, if the rows already written are unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import Refused, Usage
from memwal.ingest.progress.digest import digest_rows
from memwal.ingest.progress.identity import add_digests, check_unchanged
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.sources.splits import Split, make_splits
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, Sifted
from memwal.store.records.ingests import (
    WHOLE,
    PlanRecord,
    ProgressRecord,
    ReadRecord,
    Round,
    SourceFile,
)

_NAMED_MAX = 3


def add_to_read(read: ReadRecord, rows: int, sifted: Sifted) -> ReadRecord:
    """The record of what was read of a split, extended by a chunk of `rows` rows."""
    rejected = [reject.row for reject in sifted.rejects]
    digest = digest_rows(f"{read.digest} {rows} {rejected}", sifted.rows, sifted.deleted)
    return ReadRecord(rows=read.rows + rows, digest=digest)


def _take_mended(
    files: SourceFiles, plan: PlanRecord, there: Sequence[SourceFile], *, allowed: bool
) -> PlanRecord:
    """The plan, with its files as they are now if they changed; raises Refused unless `allowed`."""
    try:
        check_unchanged(files, plan.sources, there)
    except Refused:
        now = {file.uri: file for file in there}
        if not allowed or any(file.uri not in now for file in plan.sources):
            raise
        mended = [now[file.uri] for file in plan.sources]
        sources = tuple(add_digests(files, mended, lambda size_bytes: None))
        return plan.model_copy(update={"sources": sources, "corrected": True})
    return plan


def settle_sources(
    files: SourceFiles,
    shape: Shape,
    found: Round,
    plan: PlanRecord,
    there: Sequence[SourceFile],
    *,
    allowed: bool,
) -> PlanRecord:
    """The plan with its files as they are now (`there`).

    Files may only differ in rows that are not written yet; that they were corrected is then stored.
    Raises Refused for files that changed when that is not `allowed`, or in written rows.
    """
    mended = _take_mended(files, plan, there, allowed=allowed)
    if mended is not plan:
        splits = make_splits(files, mended.sources, shape, plan.chunk_rows)
        check_read(splits, shape, found.read_progress(WHOLE))
        found.correct(mended.sources)
    return mended


def check_read(splits: Sequence[Split], shape: Shape, progress: ProgressRecord) -> None:
    """Read the written part of the sources again. Raises Refused if it has changed."""
    if progress.rows and not progress.read:
        raise Refused(
            "MW-I03",
            "an older memwal began this ingest, and kept no digest of what it wrote: bring its "
            "files back as they were, or ingest them under another --id",
        )
    sieve = Sieve(shape=shape, rows_max=progress.rows_rejected)
    for place, wanted in enumerate(progress.read):
        split, found = splits[place], ReadRecord()
        try:
            for chunk in split.read(0):
                if place == progress.split and found.rows >= wanted.rows:
                    break
                sifted = sieve.sift(chunk, split.name, found.rows, split.find_place)
                found = add_to_read(found, len(chunk), sifted)
        except Usage as error:
            raise _refuse(splits, place, progress, f" ({error})") from None
        if found != wanted:
            raise _refuse(splits, place, progress)


def _refuse(
    splits: Sequence[Split], place: int, progress: ProgressRecord, why: str = ""
) -> Refused:
    there = [f"{read.rows:,} of {s.name}" for s, read in zip(splits, progress.read, strict=False)]
    named = ", ".join(there[:_NAMED_MAX]) + ", …" * (len(there) > _NAMED_MAX)
    aside = " (rows that were set aside, too)" if progress.rows_rejected else ""
    return Refused(
        "MW-I05",
        f"{splits[place].name}: its first {progress.read[place].rows:,} rows are written, and are "
        f"not what they were{why}. Bring them back as they were{aside}; under another --id, "
        f"{progress.rows:,} rows would be counted twice ({named})",
    )
