"""Rows that ingests staged, and what is left of rounds that were followed by another.

Only staged rows are large. The documents of an ingest's latest round stay: thanks to them, a rerun
of a finished ingest finds nothing to do, and a rerun of an abandoned one is refused instead of
writing rows again. Earlier rounds are deleted whole, since the latest plan knows their files.

Staged rows go when
1. their round was finished before the grace began: every row of it is in the MemWAL; or
2. their round's plan was stored by another run, so that nobody will read them, and they are older
   than the grace; or
3. nobody staged, planned or wrote anything in their round for the idle time.

They are kept while their round's plan or progress can't be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.jobs.garbage.model import Item, newest_of, plan_delete
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile
from memwal.ports import Objects

NAME = "ingest"

_PLAN = "plan.json"
_STAGED = "staged"
_NANOS_PER_DAY = 86_400 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedRows:
    """The folder of rows that one run of an ingest stored for its plan."""

    path: str
    files: tuple[StoredFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestRound:
    """One round of an ingest: its documents, and the rows staged for it.

    `named` are the staged files that its plan names. It and `finished` are read only where
    something is staged; `problem` is set where they could not be read.
    """

    ingest_id: str
    number: int
    records: tuple[StoredFile, ...] = ()
    staged: tuple[StagedRows, ...] = ()
    planned: bool = False
    finished: bool = False
    named: frozenset[str] = frozenset()
    problem: str | None = None

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files of the round."""
        return (*self.records, *(file for rows in self.staged for file in rows.files))


# ---- evidence


def read_evidence(objects: Objects, pool: Executor) -> tuple[IngestRound, ...]:
    """Every round; its documents are read only where something is staged.

    Files that belong to no round are ignored.
    """
    rounds: dict[tuple[str, int], list[StoredFile]] = {}
    for info in objects.list(layout.INGESTS):
        _, _, ingest_id, *names = info.path.split("/")
        number = layout.parse_ingest_round(names[0]) if len(names) > 1 else None
        if number is not None and layout.is_ingest_id(ingest_id):
            rounds.setdefault((ingest_id, number), []).append(info)
    return tuple(_read_round(objects, *key, files) for key, files in sorted(rounds.items()))


def _read_round(
    objects: Objects, ingest_id: str, number: int, files: Sequence[StoredFile]
) -> IngestRound:
    folder = layout.ingest_round_folder(ingest_id, number)
    records: list[StoredFile] = []
    staged: dict[str, list[StoredFile]] = {}
    for file in files:
        match file.path.removeprefix(f"{folder}/").split("/"):
            case ["staged", run, _, *_]:
                staged.setdefault(f"{folder}/{_STAGED}/{run}", []).append(file)
            case _:
                records.append(file)
    listed = IngestRound(
        ingest_id=ingest_id,
        number=number,
        records=tuple(records),
        staged=tuple(StagedRows(path=p, files=tuple(staged[p])) for p in sorted(staged)),
        planned=any(file.path == f"{folder}/{_PLAN}" for file in records),
    )
    try:
        return _read_documents(objects, listed) if staged else listed
    except MemWalError as error:
        return replace(listed, problem=str(error))


def _read_documents(objects: Objects, listed: IngestRound) -> IngestRound:
    # Imported late: it loads Arrow, and most tables have nothing staged.
    from memwal.store.records.ingests import Round, is_finished

    stored = Round(objects, listed.ingest_id, listed.number, "")
    plan = stored.read_plan()
    if plan is None:
        # Where it was listed and is gone now, the round has ended meanwhile.
        problem = "its plan vanished" if listed.planned else None
        return replace(listed, problem=problem)
    return replace(
        listed,
        planned=True,
        finished=is_finished(stored, plan),
        named=frozenset(path for staged in plan.staged or () for path in staged.files),
    )


# ---- plan


def find_items(survey: Survey) -> Iterator[Item]:
    """Every folder of staged rows, and every round that was followed by another."""
    rounds: tuple[IngestRound, ...] = tuple(survey.evidence.outside.get(NAME, ()))
    latest: dict[str, int] = {}
    for found in rounds:
        if found.planned:
            latest[found.ingest_id] = max(found.number, latest.get(found.ingest_id, 0))
    for found in rounds:
        if found.number < latest.get(found.ingest_id, 0):
            yield _plan_past_round(found, survey)
        else:
            for rows in found.staged:
                why, held = _judge_rows(found, rows, survey)
                yield plan_delete(NAME, rows.path, rows.files, why=why, held=held)


def may_delete(item: Item) -> bool:
    """Whether it is the folder of a round, or one of staged rows in it."""
    match item.path.split("/"):
        case [layout.MAINTENANCE, "ingest", ingest, number, *rest] if item.kind == NAME:
            if layout.is_ingest_id(ingest) and layout.parse_ingest_round(number) is not None:
                return not rest or (len(rest) == 2 and rest[0] == _STAGED)
    return False


def _plan_past_round(found: IngestRound, survey: Survey) -> Item:
    """Plan the deletion of a whole round that was followed by another.

    A round begins only when the one before is finished, and its plan tells what that one ingested.
    """
    young = newest_of(found.files) > survey.cutoff_nanos
    return plan_delete(
        NAME,
        layout.ingest_round_folder(found.ingest_id, found.number),
        tuple(file for rows in found.staged for file in rows.files),
        found.records,
        why="its next round has begun",
        held="its next round has begun, and it is younger than the grace" if young else None,
    )


def _judge_rows(found: IngestRound, rows: StagedRows, survey: Survey) -> tuple[str, str | None]:
    """Why the staged rows are garbage, and why they are kept nevertheless (None: they go)."""
    newest, idle_seconds = newest_of(found.files), survey.limits.ingest_idle_seconds
    idle = f"{max(0, survey.now_nanos - newest) / _NANOS_PER_DAY:.1f} days"
    given_up = newest <= survey.now_nanos - round(idle_seconds * 1e9)
    limit = f"kept until it was untouched for {idle_seconds / 86_400:g} days"
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
            "younger than the grace" if newest_of(rows.files) > survey.cutoff_nanos else None,
        )
    if found.finished:
        return (
            "its ingest is finished: all of it is in the MemWAL",
            "finished, but younger than the grace" if newest > survey.cutoff_nanos else None,
        )
    return (
        f"its ingest was not finished, and nobody resumed it for {idle}",
        None if given_up else f"needed to finish its ingest, by the same command: {limit}",
    )
