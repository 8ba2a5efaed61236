"""Decides which rows that ingests staged may go. Pure.

Only what is staged is large. The documents of an ingest's latest round stay: by them a rerun of a
finished ingest finds nothing to do, and a rerun of one that was given up is refused instead of
writing rows again. What a round before left goes whole, since the latest plan knows its files.

Staged rows go when
1. their round is finished, every row of it in the MemWAL, since before the grace; or
2. their round's plan was stored by another run, so that nobody will read them, and they are older
   than the grace; or
3. nobody touched their round for the idle time: neither staged, nor planned, nor wrote.

A plan or progress that can't be read keeps them (design: fail closed).
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.garbage.model import (
    Action,
    Evidence,
    GarbageLimits,
    IngestRound,
    Item,
    Kind,
    StagedRows,
    cutoff_nanos,
    newest_of,
    size_of,
)
from memwal.model import StoredFile

_NANOS_PER_DAY = 86_400 * 10**9


def ingests(evidence: Evidence, limits: GarbageLimits, now_nanos: int) -> Iterator[Item]:
    """Every folder of staged rows, and what is left of rounds that were followed by another."""
    latest: dict[str, int] = {}
    for found in evidence.ingests:
        if found.planned:
            latest[found.ingest_id] = max(found.number, latest.get(found.ingest_id, 0))
    for found in evidence.ingests:
        if found.number < latest.get(found.ingest_id, 0):
            yield _past_round(found, limits, now_nanos)
        else:
            for staged in found.staged:
                yield _staged(found, staged, limits, now_nanos)


def _past_round(found: IngestRound, limits: GarbageLimits, now_nanos: int) -> Item:
    """A round is begun only when the one before is finished; its plan tells what that ingested."""
    staged = tuple(file for rows in found.staged for file in rows.files)
    young = newest_of((*staged, *found.records)) > cutoff_nanos(limits, now_nanos)
    return _item(
        layout.ingest_round_folder(found.ingest_id, found.number),
        (staged, found.records),
        "its next round has begun",
        "its next round has begun, and it is younger than the grace" if young else None,
    )


def _staged(found: IngestRound, rows: StagedRows, limits: GarbageLimits, now_nanos: int) -> Item:
    why, held = _fate(found, rows, limits, now_nanos)
    return _item(rows.path, (rows.files,), why, held)


def _fate(
    found: IngestRound, rows: StagedRows, limits: GarbageLimits, now_nanos: int
) -> tuple[str, str | None]:
    """(why it is garbage, why it is kept all the same)"""
    cutoff = cutoff_nanos(limits, now_nanos)
    every = (*found.records, *(file for staged in found.staged for file in staged.files))
    idle = _idle_text(now_nanos - newest_of(every))
    given_up = newest_of(every) <= now_nanos - round(limits.ingest_idle_seconds * 1e9)
    limit = f"kept until it was untouched for {limits.ingest_idle_seconds / 86_400:g} days"
    if found.problem is not None:
        return "", f"what it is for can't be told: {found.problem}"
    if not found.planned:
        return (
            f"staged by a run that stored no plan; untouched for {idle}",
            None if given_up else f"may be staged by a run that goes on: {limit}",
        )
    if found.named.isdisjoint(file.path for file in rows.files):
        return (
            "the round's plan names other rows: nobody reads these",
            "younger than the grace" if newest_of(rows.files) > cutoff else None,
        )
    if found.finished:
        return (
            "its ingest is finished: all of it is in the MemWAL",
            "finished, but younger than the grace" if newest_of(every) > cutoff else None,
        )
    return (
        f"its ingest was not finished, and nobody resumed it for {idle}",
        None if given_up else f"needed to finish its ingest, by the same command: {limit}",
    )


def _idle_text(nanos: int) -> str:
    return f"{max(0, nanos) / _NANOS_PER_DAY:.1f} days"


def _item(
    path: str, stages: tuple[tuple[StoredFile, ...], ...], why: str, held: str | None
) -> Item:
    return Item(
        kind=Kind.INGEST,
        shard_id=None,
        path=path,
        size_bytes=sum(size_of(stage) for stage in stages),
        action=Action.DELETE if held is None else Action.KEEP,
        reason=held or why,
        stages=() if held else tuple(stage for stage in stages if stage),
    )
