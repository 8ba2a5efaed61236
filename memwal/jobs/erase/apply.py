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
from typing import TYPE_CHECKING, Any

from memwal.errors import LostRace, MemWalError, PartlyFailed, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import (
    Finding,
    Judge,
    ObjectKind,
    Pin,
    SearchResult,
    check_pins,
    count_holders,
    describe_stuck,
    find_spent,
    find_until,
)
from memwal.jobs.erase.report import EraseTableReport
from memwal.jobs.erase.request import ResumeRequest
from memwal.jobs.garbage.plan import Permission
from memwal.model import Erasure, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, AuditItem, JobOnTable
from memwal.text import iso_time

if TYPE_CHECKING:
    from memwal.jobs.erase.job import EraseOptions
    from memwal.jobs.erase.keys import Keys
    from memwal.jobs.erase.search import TableSearch
    from memwal.jobs.erase.store import Claims, TableChanges, TableTombstones
    from memwal.run.stores import Stores
    from memwal.run.tables import OpenTable

_REWRITES_MAX = 8
_PASSES_MAX = 4
_DROPPED = "dropped; its folder is deleted once the grace is over"


@dataclass(kw_only=True)
class Eraser:
    """Erases the rows of one table's keys. `run_job` runs another job under this run's lease.

    `record` is the open erasure that it goes on with, if any; the other fields without a parameter
    are what the run has come to. `first` is what it saw at first, `look` what it saw last before
    anything was rewritten, and at the end that of the proof.
    """

    table: OpenTable
    stores: Stores
    keys: Keys
    search: TableSearch
    tombstones: TableTombstones
    changes: TableChanges
    options: EraseOptions
    request: ResumeRequest
    permission: Permission
    holder: str
    run_job: Callable[[str], JobOnTable]
    must_stop: Callable[[Sequence[JobOnTable]], bool]
    record: Erasure | None = None
    first: SearchResult = field(init=False)
    look: SearchResult = field(init=False)
    found: dict[str, int] = field(init=False, default_factory=dict)
    claimed: list[str] = field(init=False, default_factory=list)
    dropped: list[AuditItem] = field(init=False, default_factory=list)
    jobs: list[JobOnTable] = field(init=False, default_factory=list)
    warnings: list[str] = field(init=False, default_factory=list)

    @property
    def uri(self) -> str:
        """The table's address."""
        return self.stores.uri

    def plan(self, view: TableView) -> EraseTableReport:
        """What holds the keys now, and what is in the way; changes nothing."""
        self._begin_look(view)
        stopped = None
        try:
            if self.look.any and not self._has_written():
                self.claimed += self.tombstones.plan(view, self.look).shards
            check_pins(self.uri, self.look.pins, through_tags=self.request.through_tags)
        except Refused as error:  # with all that holds the keys beside it
            stopped = error
        left = [found for found in self._judge() if found.is_left]
        return self._report(view, left if self.look.any else (), stopped)

    def run(self, view: TableView) -> EraseTableReport:
        """Erase, or go on with it. Raises what kept it from beginning."""
        self._begin_look(view)
        check_pins(self.uri, self.look.pins, through_tags=self.request.through_tags)
        if self.record is None and not self.look.any:
            return self._report(view, ())
        confirmed = self._confirm(view)
        self.table.take_lease("erase", self.options)
        self.record = self._begin(view)
        stopped, seen = None, None
        try:
            self._write(confirmed)
            self._clean()
            self._let_go()
            self._collect()
            seen = self._empty()
        except MemWalError as error:
            stopped = error
        return self._prove(view, seen, stopped)

    def _begin_look(self, view: TableView) -> None:
        self.first = self.look = self.search.look(view)
        self.warnings += self.look.problems
        self.found = count_holders(self.look, self._judge())

    def _judge(self) -> list[Finding]:
        blank = Erasure(erasure_id="", keys=0, began_at="", holder="", version_before=0)
        return Judge(
            look=self.look,
            erasure=self.record or blank,
            permission=self.permission,
            kept=find_kept(self.jobs),
            now_nanos=self.stores.clock.now_nanos(),
        ).list_findings()

    def _report(
        self, view: TableView, findings: Sequence[Finding], error: MemWalError | None = None
    ) -> EraseTableReport:
        outcome = DONE if self.record is not None or self.look.any else NOTHING_TO_DO
        if error is not None:
            outcome = PARTIAL if self.record is not None and self.record.marks else error.outcome
        return EraseTableReport(
            table=self.table.resolved.name,
            outcome=outcome,
            exit_code=0 if error is None else error.exit_code,
            error=None if error is None else str(error),
            cause=error,
            version_before=view.version,
            version_after=self.look.version,
            erasure=self.record,
            keys=self.keys.count,
            rows=self.first.rows,
            found=self.found,
            claimed=tuple(self.claimed),
            dropped=tuple(self.dropped),
            jobs=tuple(self.jobs),
            objects=tuple(findings),
            not_looked_at=self.first.elsewhere,
            warnings=tuple(self.warnings),
        )

    # ---- record and tombstones

    def _begin(self, view: TableView) -> Erasure:
        """The record, as it is under the lease: another run may have begun it, or gone on."""
        erasures = self.stores.erasures
        for other in erasures.list():
            if self.record is not None and other.erasure_id == self.record.erasure_id:
                if other.state == "open":
                    return other
            elif other.state == "open":
                stored = erasures.read_keys(other.erasure_id)
                if stored is not None and self.record is None and self.keys.same_as(stored):
                    return other
                if stored is None and not (other.planned or other.marks):
                    erasures.drop(other.erasure_id)
        if self.record is not None:
            ended = f"another run has ended erasure {self.record.erasure_id} meanwhile"
            raise LostRace(f"{self.uri}: {ended}")
        record = Erasure(
            erasure_id=self.stores.clock.new_id().replace("-", "")[:8],
            keys=self.keys.count,
            began_at=self._now(),
            holder=self.holder,
            run_id=self.options.run_id,
            version_before=view.version,
            retention_seconds=self.permission.retention_seconds,
        )
        self._before("record")
        erasures.begin(record, self.keys.table)
        return record

    def _now(self) -> str:
        return str(iso_time(self.stores.clock.now_nanos(), "milliseconds"))

    def _before(self, step: str) -> None:
        self.table.before_commit()
        self.options.steps(step)

    def _list_todo(self, claims: Claims) -> list[ShardId]:
        """The shards that have no tombstones yet.

        Once some are planned, rows that come to others are new ones, of somebody who wrote the key
        again.
        """
        if (record := self.record) is None:
            return list(claims.shards)
        left = [shard for shard in claims.shards if shard not in record.written]
        return [s for s in left if s in record.planned] if record.planned else left

    def _has_written(self) -> bool:
        record = self.record
        return record is not None and bool(record.marks) and {*record.planned} <= {*record.written}

    def _confirm(self, view: TableView) -> frozenset[ShardId]:
        """Ask before anything is stored. Raises Refused for a no."""
        if self._has_written():
            return frozenset()
        return self._ask(self._list_todo(self.tombstones.plan(view, self.look)))

    def _ask(self, shards: Iterable[ShardId]) -> frozenset[ShardId]:
        asked, name = list(shards), self.table.resolved.name
        if asked and not (self.request.yes or self.options.confirm(name, asked)):
            raise Refused("MW-R01", f"{self.uri}: claiming shards was not confirmed (--yes)")
        return frozenset(asked)

    def _write(self, confirmed: frozenset[ShardId]) -> None:
        """Step 3: tombstones in every shard that needs them and has none yet."""
        if self._has_written():
            return
        view = self.stores.views.table()
        self.look = self.search.look(view)
        claims = self.tombstones.plan(view, self.look)
        todo, record = self._list_todo(claims), self._open
        self._ask(shard for shard in todo if shard not in confirmed)
        marks = {str(shard): mark for shard, mark in claims.marks.items()}
        self._note(
            planned=tuple(map(str, (*record.written, *todo))), marks={**marks, **record.marks}
        )
        for shard in todo:
            self._before("tombstones")
            mark = self.tombstones.write(shard, claims)
            self.claimed.append(str(shard))
            self.options.steps("written")
            record = self._open
            self._note(
                written=(*record.written, str(shard)), marks={**record.marks, str(shard): mark}
            )

    @property
    def _open(self) -> Erasure:
        if self.record is None:
            raise MemWalError("the erasure has no record")
        return self.record

    def _note(self, **changed: Any) -> None:
        self.table.before_commit()
        self.record = replace(self._open, **changed)
        self.stores.erasures.put(self.record)

    # ---- the base

    def _clean(self) -> None:
        """Steps 4 and 5: a version of which no file and no index holds an erased row.

        Of what is clean already, those indexes are tried again that could not be built anew; it
        begins anew after that, since versions before it name the former ones.
        """
        self._run_job("merge")
        first, missed = self._open.clean_version is None, self._open.not_rebuilt
        if first:
            self._check_merged()
            self._rewrite()
        there = self.changes.list_indexes()
        for name in there:
            if name not in self._open.rebuilt if first else name in missed:
                self._rebuild(name)
        left = {name: why for name, why in self._open.not_rebuilt.items() if name in there}
        self._note_built(left)
        if first:
            self._run_job("index-catchup")
        self._leave_latest()
        if first or missed.keys() - left.keys():
            self._note(clean_version=self._latest)

    def _note_built(self, left: Mapping[str, str], *rebuilt: str) -> None:
        """Note which indexes are left. What was clean before begins anew where one is not: versions
        from before name its former files.
        """
        record = self._open
        clean = record.clean_version
        if clean is not None and record.not_rebuilt.keys() - left.keys():
            clean = self._latest
        self._note(rebuilt=(*record.rebuilt, *rebuilt), not_rebuilt=left, clean_version=clean)

    def _rewrite(self) -> None:
        for _ in range(_REWRITES_MAX):
            self._run_job("compaction")
            if not self.search.hidden_rows(self._latest):
                return
        raise PartlyFailed(
            f"{self.uri}: files of the latest version still hide erased rows after "
            f"{_REWRITES_MAX} rewrites: others commit to it; run again"
        )

    @property
    def _latest(self) -> int:
        return self.stores.views.table_version()

    def _leave_latest(self) -> None:
        """Make another version where the latest one names a key, as a delete's condition does."""
        self._before("leave")
        texts, latest = (ObjectKind.VERSION, ObjectKind.TRANSACTION), self._latest
        if any(s.kind in texts and s.rows and s.newest >= latest for s in self.look.sightings):
            self.changes.commit_nothing()

    def _check_merged(self) -> None:
        """Raise PartlyFailed while a shard's tombstones are not in the base: its rows still are."""
        record, merged = self._open, self.stores.views.table().mem_wal.merged
        late = [s for s in record.written if merged.get(ShardId(s), 0) < record.marks[s].generation]
        if late:
            raise PartlyFailed(
                f"{self.uri}: the tombstones of shard {', '.join(late)} are not merged; run again"
            )

    def _rebuild(self, name: str) -> None:
        left = {n: why for n, why in self._open.not_rebuilt.items() if n != name}
        self._before("rebuild")
        try:
            self.changes.rebuild(name)
        except MemWalError as error:
            why = f"could not be built anew: {error}. Drop it, or run again"
            self._note(not_rebuilt={**left, name: why})
            return
        self._note_built(left, name)

    # ---- what keeps rows

    def _let_go(self) -> None:
        """Step 6: tags, checkpoints and run records."""
        pins = self.look.pins if self.request.through_tags else ()
        named = [s.path for s in self.look.sightings if s.kind is ObjectKind.RUN_RECORD and s.rows]
        self.table.intend([*map(describe_pin, pins), *map(describe_record, named)])
        for pin in pins:
            self._before("unpin")
            self.changes.drop_pin(pin)
            self.dropped.append(describe_pin(pin))
        if named:
            self.table.before_commit()
            self.changes.delete(named)
            self.dropped += map(describe_record, named)

    def _collect(self) -> None:
        """Step 7. What one pass drops the next one may delete, and then the WAL below it."""
        for _ in range(_PASSES_MAX):
            self._run_job("garbage")
            report = self.jobs[-1].report
            names = ("dropped", "deleted", "versions_expired")
            if not any(getattr(report, name, 0) for name in names):
                break
        self.warnings += getattr(self.jobs[-1].report, "warnings", ())

    def _empty(self) -> SearchResult | None:
        """Put sentinels in place of WAL entries that hold a key and nobody needs but for their
        positions, which are never free. Returns what it saw, where that stays true.
        """
        view = self.stores.views.table()
        look = self.search.look(view)
        spent = find_spent(look.sightings, view.shards, self._open)
        items = [
            AuditItem(
                action="replace",
                kind="wal_entry",
                path=seen.path,
                shard_id=seen.shard_id,
                reason="its rows are merged; a sentinel keeps its position",
            )
            for seen in spent
        ]
        self.table.intend(items)
        for seen, item in zip(spent, items, strict=True):
            self._before("empty")
            self.changes.empty(seen)
            self.dropped.append(item)
        return None if spent else look

    def _run_job(self, name: str) -> None:
        """Run a job of the chain. Raises PartlyFailed where what follows must not run."""
        done = self.run_job(name)
        self.jobs.append(done)
        if self.must_stop([done]):
            raise PartlyFailed(f"{done.job}: {done.report.error or done.report.outcome}")

    # ---- the proof

    def _prove(
        self, view: TableView, seen: SearchResult | None, stopped: MemWalError | None
    ) -> EraseTableReport:
        """Step 8."""
        record, erasures = self._open, self.stores.erasures
        self.look = seen or self.search.look(self.stores.views.table())
        findings = self._judge()
        self.options.steps("prove")
        erasures.put_proof(record.erasure_id, findings)
        left, now = sum(found.is_left for found in findings), self._now()
        self._note(looked_at=now, left=left, until=find_until(findings))
        if stopped is None and record.clean_version is not None and not left:
            self.options.steps("forget")
            erasures.forget_keys(record.erasure_id)
            self.options.steps("end")
            self._note(state="done", ended_at=now)
            own = erasures.keys_path(record.erasure_id)
            findings = [found for found in findings if found.path != own]
        elif stopped is None and (stuck := describe_stuck(self.uri, findings)):
            stopped = PartlyFailed(stuck)
        return self._report(view, findings, stopped)


def describe_pin(pin: Pin) -> AuditItem:
    """A tag or a checkpoint that goes, as a line of the audit trail."""
    return AuditItem(
        action="drop",
        kind="checkpoint" if pin.checkpoint else "tag",
        path=layout.tag_path(pin.tag),
        version=pin.version,
        reason="--through-tags",
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
