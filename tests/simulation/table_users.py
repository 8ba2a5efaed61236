"""Users who change the whole table while writers, jobs and readers are at work on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from memwal.jobs.init.apply import Initialiser
from memwal.jobs.init.plan import FoundTable, find_inherited
from memwal.jobs.init.request import InitRequest
from memwal.jobs.schema.apply import Altered, SchemaChanger, Written
from memwal.jobs.schema.plan import SchemaPlan
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.ports import Steps
from memwal.rows.policy import RowPolicy
from memwal.store.shards.inherited import put_adopted
from tests.simulation.actors import OUTCOMES, Jobs
from tests.simulation.scheduler import Actor
from tests.simulation.sim_ports import SimStores

_ADDED = ColumnInfo(field_id=9, name="added", type_text="int64", nullable=False)
BEFORE = "before-overwrite"
CHOSEN_FROM = 4
"""One of so many newest is restored: older ones would undo all that is merged, again and again."""
SLEEPS_SECONDS = (0.0, 20.0, 700.0)


@dataclass(kw_only=True)
class SimInitTable:
    """The InitTable port of a table that has a MemWAL."""

    stores: SimStores
    seen: Counter[str]
    steps: Steps
    version: int = 0

    def read(self, request: InitRequest) -> FoundTable:
        """The latest version, judged by the program."""
        view = self.stores.table()
        self.version = view.version
        return find_inherited(view)

    def name_adopted(self, ranges: Mapping[ShardId, range]) -> None:
        """Record it beside the table (see the port)."""
        put_adopted(self.stores.objects, self.stores.clock.new_id(), ranges)

    def let_go(
        self, inherited: Mapping[ShardId, range], merged: Mapping[ShardId, int]
    ) -> Sequence[Mapping[ShardId, int]]:
        """Replace the MemWAL index entry (see the port)."""
        read, stores = self.version, self.stores
        self.steps("land")
        self.version = stores.actor.step(
            f"let go of progress of {read}", lambda: stores.lake.let_go(read, inherited, merged)
        ).number
        between = [stores.mem_wal(v).merged for v in range(read + 1, self.version)]
        self.seen["adoptions that raced"] += len(between) > 0
        return between

    def set_primary_key(self, columns: Sequence[str]) -> None:
        """The table has one."""
        raise AssertionError

    def put_policy(self, policy: RowPolicy) -> None:
        """Nobody asks for one."""
        raise AssertionError

    def initialize(self, request: InitRequest) -> None:
        """The table has a MemWAL."""
        raise AssertionError


@dataclass(frozen=True, kw_only=True)
class SimSchemaTable:
    """The SchemaTable port of a table whose changed column has no index."""

    stores: SimStores

    def read(self) -> TableView:
        """A fresh view."""
        return self.stores.table()

    def plan(self, view: TableView, columns: int) -> SchemaPlan:
        """What is left to do until the columns were changed so often."""
        now = self.stores.lake.version(view.version).columns
        wanted = view.columns if now >= columns else (*view.columns, _ADDED)
        return SchemaPlan(columns=view.columns, wanted=wanted, defaults={"added": "7"})

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        """Rows are read, and some time later the commit lands."""
        lake, actor = self.stores.lake, self.stores.actor
        rows = len(self.stores.rows(version))
        columns = lake.version(version).columns + 1
        actor.step(f"alter {version}", lambda: lake.alter(version, columns))
        return Written(rows=rows)

    def check(self, view: TableView, plan: SchemaPlan) -> None:
        """Everything is allowed."""

    def name_indexes(self, version: int, ids: frozenset[int]) -> Mapping[int, Sequence[str]]:
        """None is over the column."""
        return {}

    def drop_index(self, name: str) -> None:
        """There is none."""
        raise AssertionError

    def forget_indexes(self, names: Collection[str]) -> bool:
        """There is none."""
        raise AssertionError


@dataclass(frozen=True, kw_only=True)
class TableUsers:
    """Makes these actors' bodies."""

    jobs: Jobs

    def restorer(self, actor: Actor) -> None:
        """Opens an earlier version, and restores it a while later, whatever happened since."""
        stores = self.jobs.open(actor)
        known, latest = stores.lake.versions.values(), stores.lake.latest
        versions = sorted(v.number for v in known if v.has_mem_wal and v.merged != latest.merged)
        if not versions:
            return
        version = actor.scheduler.dice.choice(versions[-CHOSEN_FROM:])
        with suppress(*OUTCOMES):
            actor.step(f"open version {version}", lambda: stores.lake.version(version))
            actor.step(f"restore {version}", self._restore(stores, version))
            self.jobs.seen["versions restored"] += 1

    def overwriter(self, actor: Actor) -> None:
        """Overwrites the table by mistake, and restores what was there before."""
        stores = self.jobs.open(actor)
        lake, dice = stores.lake, actor.scheduler.dice
        version = lake.latest.number
        if not lake.latest.has_mem_wal:
            return
        with suppress(*OUTCOMES):
            actor.step(f"tag {version} as {BEFORE}", lambda: lake.tag(BEFORE, version))
            actor.step("overwrite", lake.overwrite)
            actor.sleep(dice.choice(SLEEPS_SECONDS))
            actor.step(f"restore {version}", self._restore(stores, version))
            self.jobs.seen["overwrites undone"] += 1

    def adopter(self, actor: Actor) -> None:
        """`memwal init --adopt-clone`."""
        stores = self.jobs.open(actor)
        with suppress(*OUTCOMES), self.jobs.lease_of(stores, "snapshot") as lease:
            steps = self.jobs.steps_of(actor)
            _, made = Initialiser(
                table=SimInitTable(stores=stores, seen=self.jobs.seen, steps=steps),
                take_lease=lease.take,
                before_commit=lease.check,
                before_repair=lease.check_unbroken,
                steps=steps,
            ).run(InitRequest(adopt_clone=True))
            self.jobs.seen["clones adopted"] += len(made)

    def alterer(self, actor: Actor) -> None:
        """`memwal schema --apply`."""
        stores = self.jobs.open(actor)
        table = SimSchemaTable(stores=stores)
        columns = stores.lake.latest.columns + 1
        with suppress(*OUTCOMES), self.jobs.lease_of(stores, "schema") as lease:
            done = Altered(plan=SchemaPlan(columns=(), wanted=()))
            SchemaChanger(
                table=table,
                plan=lambda view: table.plan(view, columns),
                clock=stores.clock,
                take_lease=lease.take,
                before_commit=lease.check,
                # A column more is NULL in rows that wait, and no row of this model has one.
                check_rest=lambda view: None,
                steps=self.jobs.steps_of(actor),
            ).run(done)
            self.jobs.seen["columns changed"] += done.commits
            self.jobs.seen["changes of columns that raced"] += done.conflicts

    def undecided(self, actor: Actor) -> None:
        """Brings a version with a MemWAL index back, or overwrites the table once more."""
        stores = self.jobs.open(actor)
        lake = stores.lake
        there = [v.number for v in lake.versions.values() if v.has_mem_wal]
        with suppress(*OUTCOMES):
            if lake.latest.has_mem_wal:
                actor.step("overwrite", lake.overwrite)
            elif there:
                version = actor.scheduler.dice.choice(there)
                actor.step(f"restore {version}", self._restore(stores, version))

    def bring_back(self, actor: Actor) -> None:
        """Restores the newest version with a MemWAL index, where whoever overwrote it has died."""
        stores = self.jobs.open(actor)
        if not stores.lake.latest.has_mem_wal:
            version = max(v.number for v in stores.lake.versions.values() if v.has_mem_wal)
            actor.step(f"restore {version}", self._restore(stores, version))

    def _restore(self, stores: SimStores, version: int) -> Callable[[], None]:
        def restore() -> None:
            self.jobs.truth.restored(stores.lake.restore(version), version)

        return restore
