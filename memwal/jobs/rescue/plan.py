"""Judges whether a shard's writer is gone, and plans the rescue of its rows. Pure.

A rescue claims the shard with a new epoch, which fences a writer that is alive after all. Then
nothing that was acknowledged is lost, but that writer has to be opened again. So a shard with a
sign of life younger than `idle_seconds` is left alone. Signs of life are the times of its files, by
the store's own clock, which also tells the time they are compared with.

A rescue that is killed leaves such signs itself: a manifest with the next epoch, a sentinel. A mark
that it stores beforehand tells the next rescue that these are not a writer's, so that it can go on
at once. The mark is believed only if nothing else has happened since: no other epoch, no rows.

A WAL whose last entry is torn lets no writer in: pylance claims the shard, leaves a sentinel after
that entry, and fails when it replays it. If the user asks for it, such an entry is dropped: its
bytes are kept elsewhere, and a sentinel replaces it, so that its position is never free. So no
fenced writer can take the position, and no hole cuts off what follows. Only an entry that is cut
off is dropped, and only if nothing but torn entries and sentinels follows it: readable rows are
never skipped. A process that dies leaves no torn entry: object stores take an entry whole, and on
disks pylance 14.0.2 links a whole file into place. But it does not sync that file, so a host that
loses power may keep the name and lose the bytes of an entry that was acknowledged a moment before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import Field

from memwal.errors import Corruption, MemWalError, Refused
from memwal.format import layout
from memwal.format.replay import Replay, WalEntry, replay
from memwal.format.unknown import check_manifest
from memwal.jobs.rescue.request import RescueRequest
from memwal.model import ShardId, ShardManifest, ShardStatus, StoredFile, TableView
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    AuditItem,
    Part,
    TableReport,
    describe_error,
    join_errors,
    sum_up,
)
from memwal.text import count_of, format_age

# pylance's defaults. A writer refuses to replay a generation larger than its limits, so these are
# raised to fit what is stored, with room for what may be put before the claim.
_MEMTABLE_ROWS_MIN = 100_000
_MEMTABLE_BATCHES_MIN = 8_000
_SPARE = 2


RESCUE, NOTHING, REFUSE = "rescue", "nothing", "refuse"
"""What is to be done with a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignOfLife:
    """The newest change to a shard that may have been made by a writer."""

    what: str
    at_nanos: int

    def count_seconds(self, now_nanos: int) -> float:
        """How long ago it was; 0 for a time that is yet to come."""
        return max(0.0, (now_nanos - self.at_nanos) / 1e9)


@dataclass(frozen=True, kw_only=True, slots=True)
class RescueMark:
    """What a rescue found just before it claimed the shard. `made_at_nanos` is its file's time."""

    writer_epoch: int
    highest_position: int
    sign: SignOfLife
    made_at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RescueEvidence:
    """One shard, read for a rescue.

    `entries` has all WAL entries above the manifest's replay position, and all above the mark's
    highest position; `files` all below the shard's folder. `unfit` are entries, by position, whose
    columns are not the table's.
    """

    manifest: ShardManifest
    entries: tuple[WalEntry, ...]
    files: tuple[StoredFile, ...]
    mark: RescueMark | None = None
    unfit: Mapping[int, MemWalError] = field(default_factory=dict)


class ShardRescue(Part):
    """One shard: what is to be done with it, and what came of that.

    `action` is rescue, nothing or refuse; of a dry run, what would be done.
    `entries`, `rows` and `bytes` are what was in the WAL only; `rows` counts versions of rows.
    `torn_positions` are entries that are dropped; `torn_kept` is where their bytes are by then,
    below the table's folder. `generations` are the numbers that hold them now. The epochs differ by
    one for each claim.

    The document leaves the rest out. `mark` is made before the claim. `torn` are the entries that
    are dropped before it, newest first; sentinels of `sentinel_epoch` take their positions.
    `memtable` has the bounds with which a writer can replay the shard.
    """

    shard_id: str
    action: str
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    idle_seconds: float | None = None
    last_sign: str | None = None
    torn_positions: tuple[int, ...] = ()
    torn_kept: str | None = None
    generations: tuple[int, ...] = ()
    writer_epoch_before: int | None = None
    writer_epoch_after: int | None = None
    mark: Any = Field(default=None, exclude=True)
    warnings: tuple[str, ...] = Field(default=(), exclude=True)
    torn: tuple[WalEntry, ...] = Field(default=(), exclude=True)
    sentinel_epoch: int = Field(default=0, exclude=True)
    memtable: Mapping[str, int] = Field(default_factory=dict, exclude=True)

    @property
    def has_claimed(self) -> bool:
        """Whether the shard was claimed, be it in vain."""
        return self.writer_epoch_before != self.writer_epoch_after

    def end(
        self, before: ShardManifest, after: ShardManifest | None, error: MemWalError | None = None
    ) -> ShardRescue:
        """What came of it, by the shard's manifests before and after, and the error, if any.

        Without the one after, it counts as claimed.
        """
        new = [] if after is None else sorted(g.generation for g in after.flushed_generations)
        done: dict[str, Any] = {
            "generations": tuple(g for g in new if g >= before.current_generation),
            "writer_epoch_before": before.writer_epoch,
            "writer_epoch_after": after and after.writer_epoch,
            "torn_kept": layout.torn_folder(ShardId(self.shard_id)) if self.torn else None,
        }
        return self.model_copy(update=done | describe_error(error, self.outcome))


def refuse_shard(shard_id: str, error: Exception) -> ShardRescue:
    """A shard that can't be planned for."""
    return ShardRescue(shard_id=shard_id, action=REFUSE, **describe_error(error))


def choose_shards(view: TableView, asked: Sequence[str]) -> list[ShardId]:
    """The shards asked for by their ids or first characters; all shards if none is asked for.

    Raises Usage for one that the table does not have.
    """
    there = set(view.shard_ids)
    found = [layout.find_shard(shard, there, view.uri) for shard in asked]
    return list(dict.fromkeys(found)) or [shard.shard_id for shard in view.shards]


def plan_rescue(found: RescueEvidence, request: RescueRequest, now_nanos: int) -> ShardRescue:
    """Decide about one shard at the store's time `now_nanos`."""
    manifest = found.manifest
    torn = find_torn_end(found) if request.drop_torn else ()
    epoch = _choose_epoch(found, torn)
    decided = replay(manifest, [_drop(e, epoch) if e in torn else e for e in found.entries])
    sign = last_sign(found, request, now_nanos)
    idle = None if sign is None else sign.count_seconds(now_nanos)
    error = _refusal(found, decided, torn, sign, idle, request)
    torn = torn if error is None else ()
    action = RESCUE if decided.unflushed or torn else NOTHING
    return ShardRescue(
        **describe_error(error, DONE if action == RESCUE else NOTHING_TO_DO),
        cause=error,
        shard_id=manifest.shard_id,
        action=action if error is None else REFUSE,
        entries=len(decided.unflushed),
        rows=decided.rows,
        bytes=decided.size_bytes,
        idle_seconds=None if idle is None else round(idle, 1),
        last_sign=None if sign is None else sign.what,
        torn_positions=tuple(sorted(entry.position for entry in torn)),
        mark=None if sign is None else _mark(found, sign, now_nanos),
        warnings=(*decided.warnings, *map(_warn_of, torn)),
        torn=torn,
        sentinel_epoch=epoch,
        memtable=size_memtable(manifest, decided.unflushed),
    )


def find_torn_end(found: RescueEvidence) -> tuple[WalEntry, ...]:
    """The torn entries that only sentinels and other torn entries follow, newest first."""
    replayed_to = found.manifest.replay_after_wal_entry_position
    torn: list[WalEntry] = []
    for entry in sorted(found.entries, key=lambda e: e.position, reverse=True):
        if entry.position <= replayed_to or not (entry.torn or entry.fence_sentinel):
            break
        if entry.torn:
            torn.append(entry)
    return tuple(torn)


def _choose_epoch(found: RescueEvidence, torn: Sequence[WalEntry]) -> int:
    """The epoch of sentinels that replace torn entries, chosen so that epochs stay in order.

    It is the lowest epoch after the oldest torn entry, or else the manifest's.
    """
    behind = [e for e in found.entries if torn and e.position > torn[-1].position]
    epochs = [e.writer_epoch for e in behind if e.writer_epoch is not None]
    return min(epochs, default=found.manifest.writer_epoch)


def _drop(entry: WalEntry, epoch: int) -> WalEntry:
    """The sentinel at a torn entry's position once that is dropped."""
    return replace(entry, torn=False, problem=None, fence_sentinel=True, writer_epoch=epoch)


def _warn_of(torn: WalEntry) -> str:
    return (
        f"position {torn.position} is torn after {torn.size_bytes} bytes and is dropped: if its "
        "host lost power, its rows may have been acknowledged; write them again"
    )


def _refusal(
    found: RescueEvidence,
    decided: Replay,
    torn: Sequence[WalEntry],
    sign: SignOfLife | None,
    idle: float | None,
    request: RescueRequest,
) -> MemWalError | None:
    if decided.problems:
        # A writer would claim the shard first, then fail at the entry or skip what follows it.
        return Corruption(
            "MW-W01",
            f"its WAL can't be replayed: {'; '.join(decided.problems)}{_next_step(found, request)}",
        )
    if decided.refused:
        # The writer that a rescue opens would decode it, however much memory that takes.
        return Refused("MW-W04", f"its WAL is not replayed: {'; '.join(decided.refused)}")
    if not decided.unflushed and not torn:
        return None
    try:
        check_known(found.manifest, found.unfit, decided)
    except MemWalError as error:
        return error
    if found.manifest.status is ShardStatus.SEALED:
        return Refused("MW-M05", "it is SEALED: no writer may claim it")
    if sign is None or idle is None:
        return Refused(
            "MW-R02", "nothing tells when it was last written, so its writer may be alive"
        )
    if idle < request.idle_seconds:
        return Refused(
            "MW-R03",
            f"{sign.what} is {idle:.0f} s old, less than {request.idle_seconds:g} s: a writer may "
            "be alive, and would be fenced",
        )
    return None


def check_known(manifest: ShardManifest, unfit: Mapping[int, MemWalError], decided: Replay) -> None:
    """Raise where the writer would drop what a newer Lance has stored, or mix up columns."""
    check_manifest(manifest)
    for entry in decided.unflushed:
        if entry.position in unfit:
            raise unfit[entry.position]


def _next_step(found: RescueEvidence, request: RescueRequest) -> str:
    """What to do about damage that can't be dropped; a torn entry's own text says that it can."""
    if find_torn_end(found) and not request.drop_torn:
        return ""
    kept = ". --drop-torn drops nothing that rows are behind" if request.drop_torn else ""
    return (
        f"{kept}. Put back what is missing or damaged, from a copy of the table's folder, before "
        "a writer opens the shard: it would fail, or pass over what is behind"
    )


def last_sign(found: RescueEvidence, request: RescueRequest, now_nanos: int) -> SignOfLife | None:
    """The newest sign of life, not counting traces of an unfinished rescue; None without any.

    A mark older than `idle_seconds` is ignored: by then, the rescue's own traces are old enough.
    """
    mark = found.mark
    if mark is not None and _is_believed(found, mark, request, now_nanos):
        return mark.sign
    newest = max(found.files, key=lambda f: f.modified_at_nanos, default=None)
    if newest is None:
        return None
    return SignOfLife(what=_name(newest.path), at_nanos=newest.modified_at_nanos)


def suspect_writer(
    found: RescueEvidence, own_epoch: int | None, request: RescueRequest, now_nanos: int
) -> str | None:
    """Why a writer may be open that has claimed the shard and put nothing since; None if not.

    `own_epoch` is the one that this run itself took, if any. A writer that has put anything flushes
    when it closes, which covers its sentinel. A first claim leaves no sentinel, only a manifest.
    """
    manifest = found.manifest
    if manifest.writer_epoch == own_epoch:
        return None
    claimed = any(
        entry.fence_sentinel and entry.writer_epoch == manifest.writer_epoch
        for entry in found.entries
        if entry.position > manifest.replay_after_wal_entry_position
    )
    sign = last_sign(found, request, now_nanos)
    if sign is None or not (claimed or manifest.current_generation <= 1):
        return None
    idle = sign.count_seconds(now_nanos)
    if idle >= request.idle_seconds:
        return None
    return (
        f"a writer claimed it and has flushed nothing since; {sign.what} is {idle:.0f} s old, less "
        f"than {request.idle_seconds:g} s: it may be alive. Close it"
    )


def _is_believed(
    found: RescueEvidence, mark: RescueMark, request: RescueRequest, now_nanos: int
) -> bool:
    if now_nanos - mark.made_at_nanos > request.idle_seconds * 1e9:
        return False
    later = [e for e in found.entries if e.position > mark.highest_position]
    return found.manifest.writer_epoch - mark.writer_epoch in (0, 1) and all(
        entry.fence_sentinel and entry.writer_epoch == mark.writer_epoch + 1 for entry in later
    )


def _mark(found: RescueEvidence, sign: SignOfLife, now_nanos: int) -> RescueMark:
    return RescueMark(
        writer_epoch=found.manifest.writer_epoch,
        highest_position=max(
            (e.position for e in found.entries),
            default=found.manifest.replay_after_wal_entry_position,
        ),
        sign=sign,
        made_at_nanos=now_nanos,
    )


def _name(path: str) -> str:
    """Name a file of the shard for people."""
    _, path = layout.parse_shard_path(path) or ("", path)
    folder, _, name = path.partition("/")
    if folder == "wal" and (position := layout.parse_wal_entry_name(name)) is not None:
        return f"WAL entry {position}"
    if folder == "manifest" and (version := layout.parse_shard_manifest_name(name)) is not None:
        return f"manifest version {version}"
    generation = layout.parse_generation_folder(folder)
    return path if generation is None else f"a file of generation {generation}"


def size_memtable(manifest: ShardManifest, entries: Iterable[WalEntry]) -> dict[str, int]:
    """The limits of rows and batches with which a writer can replay the entries."""
    rows: dict[int, int] = {}
    batches: dict[int, int] = {}
    generation = manifest.current_generation
    for entry in entries:
        generation = generation if entry.generation is None else entry.generation
        rows[generation] = rows.get(generation, 0) + (entry.rows or 0)
        batches[generation] = batches.get(generation, 0) + (entry.batches or 0)
    return {
        "memtable_rows_max": max(_MEMTABLE_ROWS_MIN, _SPARE * max(rows.values(), default=0)),
        "memtable_batches_max": max(
            _MEMTABLE_BATCHES_MIN, _SPARE * max(batches.values(), default=0)
        ),
    }


def still_unflushed(manifest: ShardManifest, entries: Sequence[WalEntry]) -> int:
    """How many of the entries that were to be rescued are still in no generation."""
    kept = [e for e in entries if e.position > manifest.replay_after_wal_entry_position]
    return len(replay(manifest, kept).unflushed)


# ---- what is reported


class RescueTableReport(TableReport):
    """One table of a rescue."""

    shards: tuple[ShardRescue, ...] = ()
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("generations", "rows")

    def audited(self) -> Iterable[AuditItem]:
        """The shards that were claimed, and the torn entries that were to be replaced."""
        for shard in self.shards:
            numbers = shard.generations
            if shard.has_claimed or numbers:
                yield AuditItem(
                    action="rescue",
                    kind="shard",
                    path=layout.shard_folder(ShardId(shard.shard_id)),
                    shard_id=shard.shard_id,
                    bytes=shard.bytes,
                    generations=(min(numbers), max(numbers)) if numbers else None,
                    reason=f"{count_of(shard.entries, 'put')} in the WAL, silent for "
                    f"{format_age(shard.idle_seconds)} ({shard.last_sign}); epoch "
                    f"{format_epoch(shard)}",
                    done=shard.outcome == DONE,
                )
            if shard.torn_kept:
                yield from list_torn(shard, done=shard.has_claimed)

    @property
    def generations(self) -> int:
        """How many generations the run left to be merged."""
        return sum(len(shard.generations) for shard in self.shards)

    @property
    def rows(self) -> int:
        """Rows in them, all versions counted."""
        return sum(shard.rows for shard in self.shards if shard.generations)


def report_rescue(name: str, view: TableView, shards: Sequence[ShardRescue]) -> RescueTableReport:
    """One table of which these shards were looked at."""
    outcome, code = sum_up(shards)
    return RescueTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error=join_errors({f"shard {s.shard_id}": s.error for s in shards}),
        version_before=view.version,
        version_after=view.version,
        shards=tuple(shards),
        warnings=(
            *view.warnings,
            *(f"shard {s.shard_id}: {text}" for s in shards for text in s.warnings),
        ),
    )


def list_torn(shard: ShardRescue, *, done: bool | None = None) -> Iterable[AuditItem]:
    """Torn entries that a rescue replaces, as lines of the audit trail."""
    shard_id = ShardId(shard.shard_id)
    for position in shard.torn_positions:
        kept = layout.torn_entry_path(shard_id, position)
        yield AuditItem(
            action="replace",
            kind="wal_entry",
            path=layout.wal_entry_path(shard_id, position),
            shard_id=shard_id,
            reason=f"torn; its bytes are in {kept}",
            done=done,
        )


def format_epoch(shard: ShardRescue) -> str:
    """The epochs before and after, for people."""
    before, after = shard.writer_epoch_before, shard.writer_epoch_after
    return "-" if before is None else f"{before} -> {'?' if after is None else after}"
