"""Erases rows: every step, and in which order.

1. Look at everything below the table. Refuse where a tag or a checkpoint would keep the rows, and
   ask whether shards may be claimed.
2. Take the lease, and store the record with the keys: from now on any run can go on.
3. Note how far each shard goes. Then write tombstones, shard by shard, each noted once it is in.
   What has a key and lies above a shard's mark was written since: it is a new row, and stays.
4. Merge, so that the base has none of the rows.
5. Rewrite fragments until no file of the latest version hides a row with a key, and build all
   indexes anew. Then the version is noted as clean.
6. Delete tags and checkpoints, if that was asked for, and run records that name a key.
7. Expire versions and collect garbage, by the gates that garbage always has. WAL entries of which
   only the position is still needed become sentinels.
8. Look again at everything, and judge: the proof. Where nothing holds a key any more, note that,
   delete the stored keys, and then note that the erasure is done.

It may be killed anywhere (invariant 8): the record says which steps are behind it, and a step that
was cut short is made again. A shard's tombstones that landed unnoted are written twice, which at
worst deletes a key again that was written in between. The keys go before the record says done: a
record that is open and has marks, but no keys, only has its end left to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memwal.errors import LostRace, MemWalError, PartlyFailed, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import (
    Finding,
    Holders,
    Kind,
    Pin,
    Sighting,
    Surroundings,
    check_pins,
    count_holders,
    describe_stuck,
    find_spent,
    find_stuck,
    find_until,
    is_over,
    judge,
)
from memwal.jobs.erase.request import EraseRequest
from memwal.model import Erasure, ErasureMark, ShardId, TableView
from memwal.ports import Clock, Steps, no_steps
from memwal.report import AuditItem, JobOnTable
from memwal.text import iso_time

_REWRITES_MAX = 8
_PASSES_MAX = 4
_DROPPED = "dropped; its folder is deleted once the grace is over"


class Look(Protocol):
    """What a search found (`memwal.jobs.erase.store.search.Look`)."""

    version: int
    sightings: tuple[Sighting, ...]
    versions: Mapping[int, int]
    index_names: Mapping[str, str]
    pins: tuple[Pin, ...]
    fragments: tuple[int, ...]
    holding_versions: int
    rows_outside: Mapping[str, int]
    elsewhere: tuple[str, ...]
    problems: tuple[str, ...]


class Search(Protocol):
    """Looks for the keys."""

    def look(self, view: TableView) -> Any:
        """Look at every object that is below the table now."""
        ...

    def hidden_rows(self, version: int) -> int:
        """Rows with a key that are in a version's files, and that the version hides."""
        ...


class Erasures(Protocol):
    """The records of a table's erasures."""

    def list(self) -> Sequence[Erasure]:
        """All stored records."""
        ...

    def begin(self, record: Erasure, keys: Any) -> None:
        """Store a record, then its keys."""
        ...

    def put(self, record: Erasure) -> None:
        """Store a record in place of the one before it."""
        ...

    def read_keys(self, erasure_id: str) -> Any | None:
        """The stored keys; None where there are none."""
        ...

    def drop(self, erasure_id: str) -> None:
        """Delete a record that never got its keys."""
        ...

    def put_proof(self, erasure_id: str, lines: Any) -> None:
        """Store the newest proof."""
        ...

    def forget_keys(self, erasure_id: str) -> None:
        """Delete the stored keys."""
        ...


class Tombstones(Protocol):
    """Deletes keys through the MemWAL."""

    def plan(self, view: TableView, look: Any) -> Any:
        """The shards to claim, their keys, and how far all shards go."""
        ...

    def write(self, shard_id: ShardId, claims: Any) -> ErasureMark:
        """Claim one shard and delete its keys there."""
        ...


class Rebuild(Protocol):
    """The base table: its indexes, and versions."""

    def list_names(self) -> Sequence[str]:
        """The indexes of the latest version."""
        ...

    def rebuild(self, name: str) -> None:
        """Build one anew. Raises MemWalError when that can't be done, or failed."""
        ...

    def segments(self, name: str) -> frozenset[str]:
        """The folders of an index's segments."""
        ...

    def commit_nothing(self) -> None:
        """Commit a version that changes nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The other jobs, under this run's lease; each returns its report of the table."""

    merge: Callable[[], JobOnTable]
    compact: Callable[[], JobOnTable]
    catch_up: Callable[[], JobOnTable]
    collect: Callable[[], JobOnTable]
    must_stop: Callable[[JobOnTable], bool]


@dataclass(kw_only=True)
class Erased:
    """What a run came to. `look` is the last one before anything was rewritten, `after` that of the
    end; `dropped` are tags, checkpoints, run records and WAL entries; `stopped` says why it went
    no further, or does not end.
    """

    record: Erasure | None = None
    look: Any = None
    after: tuple[TableView, Any] | None = None
    holders: Holders = Holders()
    findings: Sequence[Finding] = ()
    elsewhere: Sequence[str] = ()
    claimed: Sequence[ShardId] = ()
    dropped: list[AuditItem] = field(default_factory=list)
    jobs: list[JobOnTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stopped: MemWalError | None = None
    version_after: int | None = None


@dataclass(kw_only=True)
class Eraser:
    """Erases the rows of one table's keys."""

    uri: str
    keys: Any
    read_view: Callable[[], TableView]
    search: Search
    look_at_copies: Callable[[], Sequence[Finding]]
    erasures: Erasures
    tombstones: Tombstones
    rebuild: Rebuild
    chain: Chain
    clock: Clock
    request: EraseRequest
    retention_seconds: float | None
    grace_seconds: float
    holder: str
    run_id: str
    confirm: Callable[[Sequence[ShardId]], bool]
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    intend: Callable[[Sequence[AuditItem]], None]
    drop_pin: Callable[[Pin], None]
    delete: Callable[[Sequence[str]], None]
    empty: Callable[[str, int], object]
    open_record: Erasure | None = None
    steps: Steps = no_steps

    def foresee(self, view: TableView) -> Erased:
        """What holds the keys now, and what is in the way; changes nothing."""
        look = self.search.look(view)
        found = Erased(record=self.open_record, holders=self._count(look), elsewhere=look.elsewhere)
        found.warnings += look.problems
        found.findings = self.look_at_copies()
        try:
            if found.holders.any and not self._has_written(self.open_record):
                found.claimed = self.tombstones.plan(view, look).shards
            check_pins(self.uri, look.pins, through_tags=self.request.through_tags)
        except Refused as error:  # with all that holds the keys beside it
            found.stopped = error
        return found

    def run(self, view: TableView) -> Erased:
        """Erase, or go on with it. Raises what kept it from beginning."""
        look = self.search.look(view)
        check_pins(self.uri, look.pins, through_tags=self.request.through_tags)
        holders = self._count(look)
        if self.open_record is None and not holders.any and not _has_unread_index(look):
            copies = self.look_at_copies()
            return Erased(holders=holders, elsewhere=look.elsewhere, findings=copies)
        confirmed = self._confirm(view, look)
        self.take_lease()
        record = self._begin(view)
        erased = Erased(holders=holders, elsewhere=look.elsewhere, record=record, look=look)
        erased.warnings += look.problems
        try:
            self._write(erased, confirmed)
            self._clean(erased)
            self._let_go(erased)
            self._collect(erased)
            self._empty(erased)
        except MemWalError as error:
            erased.stopped = error
        self._prove(erased)
        return erased

    def _count(self, look: Any) -> Holders:
        return count_holders(
            look.sightings,
            fragments=len(look.fragments),
            versions=look.holding_versions,
            indexes=len(set(look.index_names.values())),
            pins=look.pins,
            rows_outside=sum(look.rows_outside.values()),
        )

    # ---- record and tombstones

    def _begin(self, view: TableView) -> Erasure:
        for other in self.erasures.list():
            stored = self.erasures.read_keys(other.erasure_id) if other.state == "open" else None
            if stored is not None and self.open_record is None and self.keys.same_as(stored):
                return other  # of a run that began it since this one looked
            if other.state == "open" and stored is None and not (other.planned or other.marks):
                self.erasures.drop(other.erasure_id)
        if self.open_record is not None:
            return self._reread(self.open_record.erasure_id)
        record = Erasure(
            erasure_id=self.clock.new_id().replace("-", "")[:8],
            keys=self.keys.count,
            began_at=str(iso_time(self.clock.now_nanos(), "milliseconds")),
            holder=self.holder,
            run_id=self.run_id,
            version_before=view.version,
            retention_seconds=self.retention_seconds,
        )
        self.before_commit()
        self.steps("record")
        self.erasures.begin(record, self.keys.table)
        return record

    def _reread(self, erasure_id: str) -> Erasure:
        """The open erasure as it is under the lease: another run may have gone on with it."""
        found = next((e for e in self.erasures.list() if e.erasure_id == erasure_id), None)
        if found is None or found.state != "open":
            raise LostRace(f"{self.uri}: another run has ended erasure {erasure_id} meanwhile")
        return found

    def _list_todo(self, record: Erasure | None, claims: Any) -> list[ShardId]:
        """The shards that have no tombstones yet.

        Once some are planned, rows that come to others are new ones, of somebody who wrote the key
        again.
        """
        if record is None:
            return list(claims.shards)
        left = [shard for shard in claims.shards if shard not in record.written]
        return [s for s in left if s in record.planned] if record.planned else left

    def _has_written(self, record: Erasure | None) -> bool:
        return record is not None and bool(record.marks) and {*record.planned} <= {*record.written}

    def _confirm(self, view: TableView, look: Any) -> frozenset[ShardId]:
        """Ask before anything is stored. Raises Refused for a no."""
        if self._has_written(self.open_record):
            return frozenset()
        return self._ask(self._list_todo(self.open_record, self.tombstones.plan(view, look)))

    def _ask(self, shards: Iterable[ShardId]) -> frozenset[ShardId]:
        asked = list(shards)
        if asked and not (self.request.yes or self.confirm(asked)):
            raise Refused("MW-R01", f"{self.uri}: claiming shards was not confirmed (--yes)")
        return frozenset(asked)

    def _write(self, erased: Erased, confirmed: frozenset[ShardId]) -> None:
        """Step 3: tombstones in every shard that needs them and has none yet."""
        record = _of(erased)
        if self._has_written(record):
            return
        view = self.read_view()
        look = erased.look = self.search.look(view)
        claims = self.tombstones.plan(view, look)
        todo = self._list_todo(record, claims)
        self._ask(shard for shard in todo if shard not in confirmed)
        marks = {str(shard): mark for shard, mark in claims.marks.items()}
        record = self._note(
            erased,
            planned=tuple(map(str, (*record.written, *todo))),
            marks={**marks, **record.marks},
        )
        for shard in todo:
            self.before_commit()
            self.steps("tombstones")
            mark = self.tombstones.write(shard, claims)
            erased.claimed = (*erased.claimed, shard)
            self.steps("written")
            record = self._note(
                erased,
                written=(*record.written, str(shard)),
                marks={**record.marks, str(shard): mark},
            )

    def _note(self, erased: Erased, **changed: Any) -> Erasure:
        self.before_commit()
        record = replace(_of(erased), **changed)
        self.erasures.put(record)
        erased.record = record
        return record

    # ---- the base

    def _clean(self, erased: Erased) -> None:
        """Steps 4 and 5: a version of which no file and no index holds an erased row."""
        record = _of(erased)
        self._run_job(erased, self.chain.merge)
        if record.clean_version is not None:
            self._rebuild_missed(erased)
            self._leave_latest(erased)
            return
        self._check_merged(record)
        for _ in range(_REWRITES_MAX):
            self._run_job(erased, self.chain.compact)
            if not self.search.hidden_rows(self.read_view().version):
                break
        else:
            raise PartlyFailed(
                f"{self.uri}: files of the latest version still hide erased rows after "
                f"{_REWRITES_MAX} rewrites: others commit to it; run again"
            )
        self._rebuild_all(erased)
        self._run_job(erased, self.chain.catch_up)
        self._leave_latest(erased)
        self._note(erased, clean_version=self.read_view().version)

    def _leave_latest(self, erased: Erased) -> None:
        """Make another version where the latest one names a key, as a delete's condition does."""
        latest = self.read_view().version
        texts = (Kind.VERSION, Kind.TRANSACTION)
        if any(s.kind in texts and s.rows and s.newest >= latest for s in erased.look.sightings):
            self.before_commit()
            self.rebuild.commit_nothing()

    def _check_merged(self, record: Erasure) -> None:
        """Raise PartlyFailed while a shard's tombstones are not in the base: its rows still are."""
        merged = self.read_view().mem_wal.merged
        late = [s for s in record.written if merged.get(ShardId(s), 0) < record.marks[s].generation]
        if late:
            raise PartlyFailed(
                f"{self.uri}: the tombstones of shard {', '.join(late)} are not merged; run again"
            )

    def _rebuild_all(self, erased: Erased) -> None:
        for name in self.rebuild.list_names():
            record = _of(erased)
            if name not in record.rebuilt:
                self._rebuild_one(erased, name)

    def _rebuild_missed(self, erased: Erased) -> None:
        """Try those again that could not be built anew when the others were.

        What is clean begins anew after that: versions before it name the former ones.
        """
        missed = _of(erased).not_rebuilt
        there = set(self.rebuild.list_names())
        for name in missed:
            if name in there:
                self._rebuild_one(erased, name)
            else:
                left = {n: w for n, w in _of(erased).not_rebuilt.items() if n != name}
                self._note(erased, not_rebuilt=left)
        if missed.keys() - _of(erased).not_rebuilt.keys():
            self._note(erased, clean_version=self.read_view().version)

    def _rebuild_one(self, erased: Erased, name: str) -> None:
        record = _of(erased)
        left = {n: why for n, why in record.not_rebuilt.items() if n != name}
        before = self.rebuild.segments(name)
        self.before_commit()
        self.steps("rebuild")
        try:
            self.rebuild.rebuild(name)
            if kept := before & self.rebuild.segments(name):
                raise PartlyFailed(f"{len(kept)} of its segments stayed as they were")
        except MemWalError as error:
            why = f"could not be built anew: {error}. Drop it, or run again"
            self._note(erased, not_rebuilt={**left, name: why})
            return
        self._note(erased, rebuilt=(*record.rebuilt, name), not_rebuilt=left)

    # ---- what keeps rows

    def _let_go(self, erased: Erased) -> None:
        """Step 6: tags, checkpoints and run records."""
        look = erased.look
        pins = look.pins if self.request.through_tags else ()
        named = [s.path for s in look.sightings if s.kind is Kind.RUN_RECORD and s.rows]
        self.intend([*map(describe_pin, pins), *map(describe_record, named)])
        for pin in pins:
            self.before_commit()
            self.steps("unpin")
            self.drop_pin(pin)
            erased.dropped.append(describe_pin(pin))
        if named:
            self.before_commit()
            self.delete(named)
            erased.dropped += map(describe_record, named)

    def _collect(self, erased: Erased) -> None:
        """Step 7. What one pass drops the next one may delete, and then the WAL below it."""
        for _ in range(_PASSES_MAX):
            self._run_job(erased, self.chain.collect)
            if not _has_collected(erased.jobs[-1]):
                break
        erased.warnings += getattr(erased.jobs[-1].report, "warnings", ())

    def _empty(self, erased: Erased) -> None:
        """Put sentinels in place of WAL entries that hold a key and nobody needs but for their
        positions, which are never free.
        """
        view = self.read_view()
        look = self.search.look(view)
        spent = find_spent(look.sightings, view.shards, _of(erased))
        self.intend([*map(describe_entry, spent)])
        for seen in spent:
            self.before_commit()
            self.steps("empty")
            self.empty(seen.path, seen.writer_epoch or 1)
            erased.dropped.append(describe_entry(seen))
        erased.after = None if spent else (view, look)

    def _run_job(self, erased: Erased, job: Callable[[], JobOnTable]) -> None:
        """Run a job of the chain. Raises PartlyFailed where what follows must not run."""
        done = job()
        erased.jobs.append(done)
        if self.chain.must_stop(done):
            raise PartlyFailed(f"{done.job}: {done.report.error or done.report.outcome}")

    # ---- the proof

    def _prove(self, erased: Erased) -> None:
        """Step 8."""
        record = _of(erased)
        if erased.after is None:
            view = self.read_view()
            erased.after = view, self.search.look(view)
        view, look = erased.after
        findings = list(
            judge(
                look.sightings,
                Surroundings(
                    now_nanos=self.clock.now_nanos(),
                    versions=look.versions,
                    index_names=look.index_names,
                    kept=find_kept(erased.jobs),
                    retention_seconds=self.retention_seconds,
                    grace_seconds=self.grace_seconds,
                ),
                record,
            )
        )
        copies = self.look_at_copies()
        erased.findings, erased.version_after = [*findings, *copies], view.version
        self.steps("prove")
        self.erasures.put_proof(record.erasure_id, map(write_finding, erased.findings))
        until = find_until(findings)
        left = sum(not is_over([f]) for f in findings)
        now = str(iso_time(self.clock.now_nanos(), "milliseconds"))
        over = erased.stopped is None and record.clean_version is not None and not left
        self._note(erased, looked_at=now, left=left, until=iso_time(until))
        if over:
            self.steps("forget")
            self.erasures.forget_keys(record.erasure_id)
            self.steps("end")
            self._note(erased, ended_at=now)
            own = layout.erasure_folder(record.erasure_id)
            erased.findings = [f for f in erased.findings if not f.path.startswith(f"{own}/keys")]
        elif erased.stopped is None and (stuck := find_stuck(findings)):
            erased.stopped = PartlyFailed(describe_stuck(self.uri, stuck))


def _has_unread_index(look: Any) -> bool:
    """Whether the latest version has an index in which only a new build is sure to have no key."""
    return any(
        s.kind is Kind.INDEX and s.rows is None and s.group in look.index_names
        for s in look.sightings
    )


def _has_collected(job: JobOnTable) -> bool:
    found = job.report
    done = (getattr(found, name, 0) for name in ("dropped", "deleted", "versions_expired"))
    return any(done)


def _of(erased: Erased) -> Erasure:
    if erased.record is None:
        raise MemWalError("the erasure has no record")
    return erased.record


def describe_pin(pin: Pin) -> AuditItem:
    """A tag or a checkpoint that goes, as a line of the audit trail."""
    return AuditItem(
        action="drop",
        kind="checkpoint" if pin.checkpoint else "tag",
        path=layout.tag_path(pin.tag),
        version=pin.version,
        reason="--through-tags",
    )


def describe_entry(seen: Sighting) -> AuditItem:
    """A WAL entry that becomes a sentinel."""
    return AuditItem(
        action="replace",
        kind="wal_entry",
        path=seen.path,
        shard_id=seen.shard_id,
        reason="its rows are merged; a sentinel keeps its position",
    )


def describe_record(path: str) -> AuditItem:
    """A run's record that goes since it names a key."""
    return AuditItem(action="delete", kind="run-record", path=path, reason="it names a key")


def find_kept(jobs: Sequence[JobOnTable]) -> dict[str, str]:
    """Garbage's reasons for what is still there after its last pass, by path."""
    found = {}
    for job in jobs:
        for item in getattr(job.report, "items", ()):
            dropped = item.action == "drop" and item.done
            found[item.path] = _DROPPED if dropped else item.reason
    return found


def write_finding(found: Finding) -> str:
    """One line of a proof."""
    import json

    document = {
        "path": found.path,
        "kind": found.kind.value,
        "state": found.state.value,
        "why": found.why,
        "until": iso_time(found.until_nanos),
    }
    return json.dumps(document)
