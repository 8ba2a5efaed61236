"""What an ingest has to remember, under `_maintenance/ingest/{id}/{round}/`.

plan.json                         what is ingested, and how it is cut; written once, before any row
progress/{track}/{number}.json    "every row before this one is in the WAL", and where each shard's
                                  WAL stood then; the newest counts, older ones are removed
sessions/{shard}/{epoch}.json     "this writer epoch is ours", written before its first entry
calls/{shard}/{call}/{position}.json  "this call's entry is behind this position", written before it
                                  where its entry could be taken for a copy of the last call's
rejects/{track}/{number}.jsonl    rows that can't be written, a line each, before the progress that
                                  counts them
staged/{run}/…                    rows that Spark stored for the plan; only these are large

Rows and offsets can't be stored in one object: pylance keeps nothing of a batch but its rows, and a
column of ours has no place in a user's table. But each call of a writer makes one WAL entry, stored
whole or not at all, and a source that is always cut in the same way gives each shard the same
sequence of calls. So a count of entries is an offset, and the WAL, which has the rows, has the
count as well: after a crash, the entries of our own epochs beyond the last progress document show
how many of the calls that follow it are done already. The documents only say which epochs are ours
(other writers may come in between), and save counting from the start. A call whose outcome is
unknown needs no rule of its own: its entry is there, or it is not (`ingest/progress/resume.py`).

pylance may store an entry twice, when the reply to the first request is lost. A copy is told from
the next call's entry by its keys; where they are the same, by the number of batches, which
alternates from call to call; and where that can't alternate, in calls of one row, by a document
under `calls`: without one, the next call was never made. It can't be told from the entry itself:
pylance gives it the table's own schema, and takes no empty batch.

All documents are created put-if-absent, and each states a fact that stays true: a stalled run that
writes one late does no harm. They outlive what is staged: by them, a rerun of a finished ingest
finds that there is nothing to do, and a rerun of one that was given up is refused instead of
writing rows again (`memwal.jobs.garbage.kinds.ingest`). Fields of a newer build are ignored, so
whatever changes the calls that a plan leads to needs another `format`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memwal.errors import AlreadyExists, Corruption, Missing, StandDown, Unsupported
from memwal.format import layout
from memwal.model import ShardId
from memwal.options import SourceFormat
from memwal.ports import Objects
from memwal.store.shards.writers import Tip

DocumentT = TypeVar("DocumentT", bound=BaseModel)

WHOLE = "all"
"""The track of an ingest that one process writes."""
_KEPT = 2


class _Stored(BaseModel):
    """A document, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class SourceFile(_Stored):
    """One file, or one Lance table.

    `stamp` changes when its contents do: a time, or a version. `etag` is the store's; with the same
    one, contents are the same. `digest` is of the contents themselves: of a file's bytes, or of
    what a table's version has, and set before a round begins.
    """

    uri: str
    format: SourceFormat
    size_bytes: int = Field(ge=0)
    stamp: str
    etag: str = ""
    digest: str | None = None


class StagedRecord(_Stored):
    """Rows of one shard, already routed and in order, in files below the table's root."""

    shard_id: str
    entries: tuple[tuple[str, str], ...] = ()
    """(field id, value in hexadecimal)"""
    files: tuple[str, ...]
    rows: int = Field(ge=0)
    digest: str | None = None
    """Of its rows, in any order, in hexadecimal; none where they can't come again."""


class PlanRecord(_Stored):
    """What is ingested. Everything that the sequence of calls depends on is in here."""

    format: Literal[1] = 1
    sources: tuple[SourceFile, ...] = ()
    before: tuple[SourceFile, ...] = ()
    """What earlier rounds ingested."""
    staged: tuple[StagedRecord, ...] | None = None
    chunk_rows: int = Field(ge=1)
    rows_per_entry_max: int = Field(ge=1)
    delete_column: str | None = None
    shard: str | None = None
    spec_id: int = Field(ge=0)
    missing_as_null: bool = False
    convert: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()
    rejects: tuple[str, ...] = ()
    """Rows that were not staged: objects of lines."""
    rows_rejected: int = Field(default=0, ge=0)


class RejectRecord(_Stored):
    """A row of a source that can't be written: the `value` of `column`, or the row itself.

    Rows count from 1, without lines that are empty. `data` is the row as JSON has it.
    """

    source: str
    row: int | None = None
    column: str | None = None
    value: Any = None
    reason: str
    data: dict[str, Any] | None = None

    def __str__(self) -> str:
        at = "" if self.row is None else f" row {self.row}:"
        return f"{self.source}:{at} {self.explain()}"

    def explain(self) -> str:
        """What is wrong, without the place."""
        return self.reason if self.column is None else f"column {self.column!r} {self.reason}"


def encode_rejects(rejects: Iterable[RejectRecord]) -> bytes:
    """Rows that can't be written, as they are stored."""
    return "".join(f"{reject.model_dump_json()}\n" for reject in rejects).encode()


class ProgressRecord(_Stored):
    """Rows before row `row` of split `split` are durable; `tips` is where that left the WALs."""

    number: int = Field(ge=0)
    run_id: str
    split: int = Field(ge=0)
    row: int = Field(ge=0)
    rows: int = Field(default=0, ge=0)
    rows_rejected: int = Field(default=0, ge=0)
    rejects: tuple[str, ...] = ()
    finished: bool = False
    tips: dict[Annotated[ShardId, AfterValidator(layout.parse_shard_id)], Tip] = Field(
        default_factory=dict
    )


class SessionRecord(_Stored):
    """A claim of ours on a shard."""

    run_id: str
    writer_epoch: int = Field(ge=1)
    start_position: int = Field(ge=0)


class CallRecord(_Stored):
    """Who made a call, which its address tells."""

    run_id: str
    writer_epoch: int = Field(ge=1)


START = ProgressRecord(number=0, run_id="", split=0, row=0)


class Round:
    """The documents of one round of an ingest: one plan and all that belongs to it."""

    def __init__(self, objects: Objects, ingest_id: str, number: int, run_id: str) -> None:
        self._objects = objects
        self._id = ingest_id
        self.number = number
        self.run_id = run_id
        self.folder = layout.ingest_round_folder(ingest_id, number)

    @property
    def uri(self) -> str:
        """The table's address, without credentials."""
        return self._objects.uri

    def read_plan(self) -> PlanRecord | None:
        """What this round ingests; None when it never began."""
        return self._read(f"{self.folder}/plan.json", PlanRecord)

    def add_rejects(self, track: str, number: int, rejects: Iterable[RejectRecord]) -> str:
        """Store rows that can't be written, for the progress of that number; the object's path."""
        path = f"{self.folder}/rejects/{track}/{number}-{self.run_id}.jsonl"
        self._objects.put(path, encode_rejects(rejects))
        return path

    def read_rejects(self, paths: Iterable[str]) -> Iterator[RejectRecord]:
        """The rows in such objects."""
        for path in paths:
            for line in self._objects.get(path).splitlines():
                yield RejectRecord.model_validate_json(line)

    def begin(self, plan: PlanRecord) -> None:
        """Store the plan. Raises StandDown when another run was faster with another one."""
        self._create(f"{self.folder}/plan.json", plan)

    def check_latest(self) -> None:
        """Raise StandDown where another run has finished this round, and begun the next.

        What was read of the round before is known to have been whole: the next is there before its
        plan goes, and that goes first. A run that wakes up late may begin it once more after that.
        """
        latest = Rounds(objects=self._objects, ingest_id=self._id, run_id=self.run_id).read_latest()
        if latest is None or latest[0].number != self.number:
            raise StandDown(
                f"{self._objects.uri}: {self.folder}: another run of this ingest finished it"
            )

    def forget(self) -> None:
        """Delete the documents of a round that is finished, its plan first."""
        if not self._objects.delete([f"{self.folder}/plan.json"]).failed:
            self._objects.delete([info.path for info in self._objects.list(self.folder)])

    def read_progress(self, track: str) -> ProgressRecord:
        """How far the track has come; START when it has not begun."""
        numbers = self._list_numbers(f"{self.folder}/progress/{track}")
        if not numbers:
            return START
        path = f"{self.folder}/progress/{track}/{layout.sequence_name(max(numbers))}"
        found = self._read(path, ProgressRecord)
        if found is None:
            raise StandDown(f"{self._objects.uri}: {path}: another run of this ingest is at work")
        return found

    def advance(self, track: str, progress: ProgressRecord) -> None:
        """Store progress. Raises StandDown when another run is at work on the same track."""
        folder = f"{self.folder}/progress/{track}"
        self._create(f"{folder}/{layout.sequence_name(progress.number)}", progress)
        if progress.number > _KEPT:
            old = f"{folder}/{layout.sequence_name(progress.number - _KEPT)}"
            self._objects.delete([old])

    def read_sessions(self, shard_id: ShardId) -> dict[int, SessionRecord]:
        """The epochs in which this round wrote to a shard."""
        folder = f"{self.folder}/sessions/{shard_id}"
        found = {}
        for epoch in self._list_numbers(folder):
            path = f"{folder}/{layout.sequence_name(epoch)}"
            session = self._read(path, SessionRecord)
            if session is None or session.writer_epoch != epoch:
                raise Corruption(
                    "MW-I27", f"{self._objects.uri}: {path} is not the record of epoch {epoch}"
                )
            found[epoch] = session
        return found

    def list_shards(self) -> set[ShardId]:
        """The shards that this round claimed: they may hold rows of it."""
        names = self._objects.list_folders(f"{self.folder}/sessions")
        return {layout.parse_shard_id(name) for name in names}

    def add_session(self, shard_id: ShardId, writer_epoch: int, start_position: int) -> None:
        """Record that an epoch is ours, before anything is written in it."""
        session = SessionRecord(
            run_id=self.run_id,
            writer_epoch=writer_epoch,
            start_position=start_position,
        )
        folder = f"{self.folder}/sessions/{shard_id}"
        self._create(f"{folder}/{layout.sequence_name(writer_epoch)}", session)

    def add_call(self, shard_id: ShardId, before: Tip) -> None:
        """Record that all up to `before` is of earlier calls than the one that comes next."""
        call = CallRecord(run_id=self.run_id, writer_epoch=before.writer_epoch)
        folder = f"{self.folder}/calls/{shard_id}/{before.calls}"
        self._create(f"{folder}/{layout.sequence_name(before.position)}", call)

    def read_calls(self, shard_id: ShardId) -> dict[int, int]:
        """The positions behind which recorded calls begin, by their numbers; one listing."""
        found: dict[int, int] = {}
        for info in self._objects.list(f"{self.folder}/calls/{shard_id}"):
            folder, _, name = info.path.rpartition("/")
            number, position = folder.rpartition("/")[2], layout.parse_sequence_name(name)
            if number.isdecimal() and position is not None:
                # A run that died before it made the call left the first one: that stays true.
                found[int(number)] = min(position, found.get(int(number), position))
        return found

    def _list_numbers(self, folder: str) -> list[int]:
        names = (info.path.rpartition("/")[2] for info in self._objects.list(folder))
        return [n for name in names if (n := layout.parse_sequence_name(name)) is not None]

    def _create(self, path: str, document: BaseModel) -> None:
        data = document.model_dump_json(indent=1).encode()
        try:
            self._objects.put_if_absent(path, data)
        except AlreadyExists:
            # A create that "exists" may be our own, its reply lost.
            if self._objects.get(path) != data:
                raise StandDown(
                    f"{self._objects.uri}: {path} is there already: another run of this ingest is "
                    "at work; run again when it has ended"
                ) from None

    def _read(self, path: str, kind: type[DocumentT]) -> DocumentT | None:
        try:
            return kind.model_validate_json(self._objects.get(path))
        except Missing:
            return None
        except ValidationError as error:
            if any(problem["loc"][-1:] == ("format",) for problem in error.errors()):
                raise Unsupported(
                    "MW-I28",
                    f"{self._objects.uri}: {path} has the format of another version of memwal, "
                    "which has to go on with it",
                ) from None
            text = str(error).split("\n", 1)[0]
            raise Corruption("MW-I27", f"{self._objects.uri}: {path}: {text}") from None


Begun = tuple[Round, PlanRecord]
"""A round, and its plan."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The rounds of one ingest, for the run `run_id`."""

    objects: Objects
    ingest_id: str
    run_id: str

    def at(self, number: int) -> Round:
        """One round's documents."""
        return Round(self.objects, self.ingest_id, number, self.run_id)

    def after(self, before: Begun | None) -> Round:
        """The round that follows; the first one for None."""
        return self.at(1 if before is None else before[0].number + 1)

    def list_numbers(self) -> list[int]:
        """The numbers of the rounds that were begun."""
        names = self.objects.list_folders(layout.ingest_folder(self.ingest_id))
        numbers = (layout.parse_ingest_round(name) for name in names)
        return sorted(number for number in numbers if number is not None)

    def read_latest(self) -> Begun | None:
        """The last round that was begun; None for an ingest that is new."""
        for number in reversed(self.list_numbers()):
            plan = self.at(number).read_plan()
            if plan is not None:
                return self.at(number), plan
        return None

    def begin(self, before: Begun | None, plan: PlanRecord, number: int | None = None) -> Begun:
        """Begin the next round, or a later `number`, and delete the documents of the one before.

        That one has to be finished, or given up.
        """
        begun = self.after(before) if number is None else self.at(number)
        begun.begin(plan)
        if before is not None:
            before[0].forget()
        return begun, plan


def is_finished(found: Round, plan: PlanRecord) -> bool:
    """Whether everything of a round is written and flushed."""
    tracks = [WHOLE] if plan.staged is None else [staged.shard_id for staged in plan.staged]
    return all(found.read_progress(track).finished for track in tracks)
