"""Erases rows: every step, and in which order.

1. Look at everything below the table. Refuse where a tag or a checkpoint would keep the rows, and
   ask whether shards may be claimed.
2. Take the lease, and store the record with the keys: from now on any run can go on.
3. Write tombstones to the shards that have rows to be merged, delete the rows of the base, and note
   how far each shard goes. What has a key and lies above that was written since: it is a new row,
   and stays.
4. Merge, so that the tombstones are in the base.
5. Rewrite fragments until no file of the latest version hides a row with a key, and build all
   indexes anew. Then the version is noted as clean.
6. Delete tags and checkpoints, if that was asked for, and run records that name a key.
7. Expire versions and collect garbage, by the gates that garbage always has. WAL entries of which
   only the position is still needed become sentinels.
8. Look again at everything, and judge: the proof. Where nothing holds a key any more, note that,
   delete the stored keys, and then note that the erasure is done.

It may be killed anywhere (invariant 8): the record says which steps are behind it, and a step that
was cut short is made again. Deletes that landed unnoted are made twice, which at worst deletes a
key again that was written in between. The keys go before the record says done: one that is open and
clean, but has no keys, only has its end left to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from memwal.errors import LostRace, MemWalError, PartlyFailed, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import (
    Finding,
    Judge,
    ObjectKind,
    SearchResult,
    check_pins,
    count_holders,
    describe_stuck,
    find_spent,
    find_until,
    mark_shards,
)
from memwal.jobs.erase.report import EraseTableReport
from memwal.jobs.garbage.plan import Permission
from memwal.model import Erasure, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, AuditItem, JobOnTable, describe_error
from memwal.text import iso_time

if TYPE_CHECKING:
    from memwal.jobs.erase.job import EraseOptions
    from memwal.jobs.erase.keys import Keys
    from memwal.jobs.erase.search import TableSearch
    from memwal.jobs.erase.store import ErasedTable
    from memwal.run.stores import Stores
    from memwal.run.tables import OpenTable

_REWRITES_MAX = 8
_PASSES_MAX = 4
_Drop: TypeAlias = tuple[AuditItem, Callable[[], None]]
_DROPPED = "dropped; its folder is deleted once the grace is over"


@dataclass(kw_only=True)
class Eraser:
    """Erases the rows of one table's keys. `run_job` runs another job under this run's lease.

    `fence_off` keeps a refresh that was cut off from lowering progress, which brings rows back.
    `record` is the open erasure that it goes on with, or a new one that is not stored yet. The
    fields without a parameter are what the run has come to. `first` is what it saw at first, `look`
    what it saw last before anything was rewritten, and at the end that of the proof.
    """

    table: OpenTable
    stores: Stores
    keys: Keys
    search: TableSearch
    erased: ErasedTable
    options: EraseOptions
    permission: Permission
    run_job: Callable[[str], JobOnTable]
    fence_off: Callable[[], None]
    must_stop: Callable[[Sequence[JobOnTable]], bool]
    record: Erasure
    is_stored: bool
    first: SearchResult = field(init=False)
    look: SearchResult = field(init=False)
    found: dict[str, int] = field(init=False, default_factory=dict)
    confirmed: set[ShardId] = field(init=False, default_factory=set)
    claimed: list[str] = field(init=False, default_factory=list)
    dropped: list[AuditItem] = field(init=False, default_factory=list)
    jobs: list[JobOnTable] = field(init=False, default_factory=list)
    warnings: list[str] = field(init=False, default_factory=list)

    def plan(self, view: TableView) -> EraseTableReport:
        """What holds the keys now, and what is in the way; changes nothing."""
        self._begin_look(view)
        stopped = None
        try:
            if self.look.any and not self._is_deleted:
                self.claimed += self.erased.plan(view, self.look)
            check_pins(self.stores.uri, self.look.pins, self.options.request.through_tags)
        except Refused as error:  # with all that holds the keys beside it
            stopped = error
        left = [found for found in self._judge() if found.is_left]
        return self._report(view, left if self.look.any else (), stopped)

    def run(self, view: TableView) -> EraseTableReport:
        """Erase, or go on with it. Raises what kept it from beginning."""
        self._begin_look(view)
        check_pins(self.stores.uri, self.look.pins, self.options.request.through_tags)
        if not (self.is_stored or self.look.any):
            return self._report(view, ())
        if not self._is_deleted:
            self._ask(self.erased.plan(view, self.look))
        self.table.take_lease("erase", self.options)
        self.fence_off()
        self._begin()
        stopped, seen = None, None
        try:
            self._delete()
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
        return Judge(
            look=self.look,
            erasure=self.record,
            permission=self.permission,
            kept=find_kept(self.jobs),
            now_nanos=self.stores.clock.now_nanos(),
        ).list_findings()

    def _report(
        self, view: TableView, findings: Sequence[Finding], error: MemWalError | None = None
    ) -> EraseTableReport:
        nothing = not (self.is_stored or self.look.any)
        told = describe_error(error, NOTHING_TO_DO if nothing else DONE)
        if error is not None and self.is_stored and (self.claimed or self._is_deleted):
            told["outcome"] = PARTIAL
        return EraseTableReport(
            **told,
            cause=error,
            table=self.table.resolved.name,
            version_before=view.version,
            version_after=self.look.version,
            erasure=self.record if self.is_stored else None,
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

    # ---- record and deletes

    def _begin(self) -> None:
        """Store the record, or take it as it is under the lease: another run may have gone on."""
        erasures = self.stores.erasures
        if (found := find_open(self.stores, self.keys)) is not None:
            self.record, self.is_stored = found, True
            return
        if self.is_stored:
            ended = f"another run has ended erasure {self.record.erasure_id} meanwhile"
            raise LostRace(f"{self.stores.uri}: {ended}")
        for other in erasures.list():
            begun = other.state != "open" or other.planned or other.deleted_version
            if not begun and erasures.read_keys(other.erasure_id) is None:
                erasures.drop(other.erasure_id)
        self._before("record")
        erasures.begin(self.record, self.keys.table)
        self.is_stored = True

    def _now(self) -> str:
        return str(iso_time(self.stores.clock.now_nanos(), "milliseconds"))

    def _before(self, step: str) -> None:
        self.table.before_commit()
        self.options.steps(step)

    def _ask(self, shards: Iterable[ShardId]) -> None:
        """Ask for shards that nobody has confirmed yet. Raises Refused for a no."""
        asked = [shard for shard in shards if shard not in self.confirmed]
        yes, name = self.options.request.yes, self.table.resolved.name
        if asked and not (yes or self.options.confirm(name, asked)):
            raise Refused("MW-R01", f"{self.stores.uri}: claiming shards was not confirmed (--yes)")
        self.confirmed.update(asked)

    def _delete(self) -> None:
        """Step 3; all of it again, where it was cut short."""
        if self._is_deleted:
            return
        view = self.stores.views.table()
        self.look = self.search.look(view)
        claims, marks = self.erased.plan(view, self.look), mark_shards(view, self.look)
        self._ask(claims)
        self._note(planned=tuple(claims))
        for shard, keys in claims.items():
            self._before("tombstones")
            marks[shard] = self.erased.write(shard, keys)
            self.claimed.append(shard)
            self.options.steps("written")
        if self.look.fragments:
            self._before("delete")
            self.erased.delete_rows()
            self.options.steps("deleted")
        self._note(written=tuple(claims), marks=marks, deleted_version=self._latest)

    @property
    def _is_deleted(self) -> bool:
        """Whether step 3 is done."""
        return (self.record.deleted_version or self.record.clean_version) is not None

    def _note(self, **changed: Any) -> None:
        self.table.before_commit()
        self.record = replace(self.record, **changed)
        self.stores.erasures.put(self.record)

    # ---- the base

    def _clean(self) -> None:
        """Steps 4 and 5: a version of which no file and no index holds an erased row.

        Of what is clean already, those indexes are tried again that could not be built anew. Where
        one has gone, it begins anew after that: versions before it name the former files.
        """
        self._run_job("merge")
        record, names = self.record, self.erased.list_indexes()
        first, missed = record.clean_version is None, record.not_rebuilt
        if first:
            self._check_merged()
            self._rewrite()
        left, built = {}, []
        for name in names if first else [name for name in names if name in missed]:
            self._before("rebuild")
            try:
                self.erased.rebuild(name)
                built.append(name)
            except MemWalError as error:
                left[name] = f"could not be built anew: {error}. Drop it, or run again"
        if first:
            self._run_job("index-catchup")
        self._before("leave")
        texts, latest = (ObjectKind.VERSION, ObjectKind.TRANSACTION), self._latest
        if any(s.kind in texts and s.rows and s.newest >= latest for s in self.look.sightings):
            self.erased.commit_nothing()  # it names a key, as a delete's condition does
        clean = self._latest if first or missed.keys() - left.keys() else record.clean_version
        built = [*record.rebuilt, *built]
        self._note(rebuilt=tuple(built), not_rebuilt=left, clean_version=clean)

    def _rewrite(self) -> None:
        vain, least = 0, inf
        while vain < _REWRITES_MAX:
            self._run_job("compaction")
            if not self.search.hides_rows(self._latest):
                return
            left = getattr(self.jobs[-1].report, "tasks_left", 0)  # one takes so many at most
            vain, least = vain + (left >= least), min(left, least)
        raise PartlyFailed(
            f"{self.stores.uri}: files of the latest version still hide erased rows, and "
            f"{_REWRITES_MAX} rewrites left no less to do: others commit to it; run again"
        )

    @property
    def _latest(self) -> int:
        return self.stores.views.table_version()

    def _check_merged(self) -> None:
        """Raise PartlyFailed while a shard's tombstones are not in the base: its rows still are."""
        record, merged = self.record, self.stores.views.table().mem_wal.merged
        late = [s for s in record.written if merged.get(ShardId(s), 0) < record.marks[s].generation]
        if late:
            where = f"{self.stores.uri}: the tombstones of shard {', '.join(late)}"
            raise PartlyFailed(f"{where} are not merged; run again")

    # ---- what keeps rows

    def _let_go(self) -> None:
        """Step 6: tags, checkpoints and run records."""
        found: list[_Drop] = []
        for pin in self.look.pins if self.options.request.through_tags else ():
            kind, path = "tag" if pin.checkpoint is None else "checkpoint", layout.tag_path(pin.tag)
            drop = partial(self.erased.drop_pin, pin)
            found.append((_describe("drop", kind, path, "--through-tags", pin.version), drop))
        for seen in self.look.sightings:
            if seen.kind is ObjectKind.RUN_RECORD and seen.rows:
                item = _describe("delete", "run-record", seen.path, "it names a key")
                found.append((item, partial(self.erased.delete, seen.path)))
        self._drop(found)

    def _drop(self, found: Sequence[_Drop]) -> None:
        self.table.intend([item for item, _ in found])
        for item, drop in found:
            self._before("drop")
            drop()
            self.dropped.append(item)

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
        spent = find_spent(look.sightings, view.shards, self.record)
        why = "its rows are merged; a sentinel keeps its position"
        self._drop(
            [
                (
                    _describe("replace", "wal_entry", s.path, why, shard_id=s.shard_id),
                    partial(self.erased.empty, s),
                )
                for s in spent
            ]
        )
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
        record, erasures = self.record, self.stores.erasures
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
        elif stopped is None and (stuck := describe_stuck(self.stores.uri, findings)):
            stopped = PartlyFailed(stuck)
        return self._report(view, findings, stopped)


def find_open(stores: Stores, keys: Keys) -> Erasure | None:
    """The open erasure of these keys, if there is one."""
    for record in stores.erasures.list():
        if record.state == "open":
            stored = stores.erasures.read_keys(record.erasure_id)
            if stored is not None and keys.same_as(stored):
                return record
    return None


def _describe(
    action: str,
    kind: str,
    path: str,
    why: str,
    version: int | None = None,
    shard_id: str | None = None,
) -> AuditItem:
    return AuditItem(
        action=action, kind=kind, path=path, reason=why, version=version, shard_id=shard_id
    )


def find_kept(jobs: Sequence[JobOnTable]) -> dict[str, str]:
    """Garbage's reasons for what is still there after its last pass, by path."""
    items = (item for job in jobs for item in getattr(job.report, "items", ()))
    return {i.path: _DROPPED if i.action == "drop" and i.done else i.reason for i in items}
