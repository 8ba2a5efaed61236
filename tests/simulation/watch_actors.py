"""`memwal watch` beside all others: its real loop decides, and its rounds are the real jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memwal.config import ResolvedTable, Settings
from memwal.errors import LeaseHeld, MemWalError
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.watch.apply import Watch
from memwal.jobs.watch.plan import Round, TableLook, Target, WatchLimits
from memwal.jobs.watch.ports import Event, LookEnd, RoundEnd, Watched
from memwal.model import TableView
from tests.simulation.actors import Jobs
from tests.simulation.lake import Lake
from tests.simulation.scheduler import Actor
from tests.simulation.sim_ports import SimStores, data_path
from tests.simulation.simulate import Body, Simulation
from tests.simulation.truth import Violation
from tests.simulation.weather import Setup

FRESHNESS_SECONDS = 60.0
TABLE = ResolvedTable(name="t", uri="/t", settings=Settings(), storage_options={})
LIMITS = WatchLimits(upkeep_seconds={"snapshot": 40.0, "garbage": 60.0})


def watching(setup: Setup) -> Setup:
    """The same with watches, which do the work that other jobs did, or beside some of these."""
    others = tuple(job for job in setup.jobs if job in ("reader", "garbage", "user", "wait"))
    return replace(setup, jobs=("watch", *others), orphaned=False, leases_on=True)


@dataclass(kw_only=True)
class WatchPorts:
    """All ports of one watch, in its actor's thread: a look and a round last as long as they do."""

    actor: Actor
    stores: SimStores
    jobs: Jobs
    events: list[Event] = field(default_factory=list)
    is_heard: bool = True
    _looks: list[LookEnd] = field(default_factory=list)
    _ends: list[RoundEnd] = field(default_factory=list)
    _before: TableView | None = None

    def start(self, table: ResolvedTable, work: Round | None = None) -> None:
        """A look, or a round."""
        if work is not None:
            self._ends.append(self._run(work))
            return
        try:
            self._looks.append(LookEnd(table=table, look=self._look()))
        except MemWalError as error:
            self._looks.append(LookEnd(table=table, error=error))

    def _look(self) -> TableLook:
        view = self.stores.table()
        stamps = self.stores.lake.bucket.objects
        times = {
            (shard.shard_id, g.generation): stamps[path][1]
            for shard in view.shards
            for g in shard.manifest.flushed_generations
            if (path := data_path(shard.shard_id, g)) in stamps
        }
        changed, self._before = view != self._before, view
        return TableLook(view=view, flushed_at_nanos=times, changed=changed, requests={})

    def _run(self, work: Round) -> RoundEnd:
        began, held = self.stores.clock.monotonic_seconds(), self.jobs.seen["leases held"]
        bodies = {
            "merge": self.jobs.merge(self.jobs.shards, MergeLimits(conflict_attempts_max=5)),
            "index-catchup": self.jobs.index_catchup,
            "snapshot": self.jobs.snapshot,
            "garbage": self.jobs.garbage(wal=True, retention=True),
        }
        for job in work.jobs:
            bodies[job](self.actor)
        seconds = self.stores.clock.monotonic_seconds() - began
        is_held = self.jobs.seen["leases held"] > held
        self.jobs.seen["rounds of watches"] += 1
        return RoundEnd(work=work, seconds=seconds, error=LeaseHeld("held") if is_held else None)

    def collect(self) -> Sequence[LookEnd]:
        """What ended."""
        found, self._looks = self._looks, []
        return found

    def forget(self, table: str) -> None:
        """Nothing is remembered."""

    def can_take(self, *, large: bool) -> bool:
        """One at a time."""
        return not self._ends

    def wait(self, seconds: float) -> Sequence[RoundEnd]:
        """Time passes."""
        if not self._ends:
            self.actor.sleep(seconds)
        found, self._ends = self._ends, []
        return found

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        """Nothing runs when a turn is over."""
        return ()

    def tell(self, event: Event) -> None:
        """Remember it."""
        self.events.append(event)

    def read_again(self) -> Sequence[Watched] | None:
        """Nothing changes."""
        return None


class WatchSimulation(Simulation):
    """One seed's world, in which watches keep the table fresh, and are killed."""

    def __init__(self, setup: Setup, lake: type[Lake] = Lake) -> None:
        super().__init__(setup, lake)
        self.told: list[Event] = []

    def _body(self, job: str) -> Body:
        return (
            self.watch(self.scheduler.dice.choice((20.0, 200.0)))
            if job == "watch"
            else super()._body(job)
        )

    def watch(self, seconds: float) -> Body:
        """A watch that runs for so long."""

        def body(actor: Actor) -> None:
            ports = WatchPorts(actor=actor, stores=self._open(actor), jobs=self.jobs)
            watch = Watch(
                lookouts=ports,
                workers=ports,
                clock=ports.stores.clock,
                events=ports,
                read_again=ports.read_again,
                limits=LIMITS,
            )
            target = Target(freshness_seconds=FRESHNESS_SECONDS)
            watch.watch([Watched(resolved=TABLE, target=target)])
            until = self.scheduler.now_seconds + seconds
            while self.scheduler.now_seconds < until:
                watch.turn()
            watch.finish()
            self.told += ports.events

        return body

    def _heal(self) -> None:
        """Watches alone bring the table under its target, once nothing goes wrong any more."""
        self.scheduler.faults_on, self.scheduler.pace = False, 0.2
        # Longer than any claim that a holder made when its clock had jumped ahead.
        self.scheduler.now_seconds += 100_000.0
        began = self.scheduler.now_seconds
        for _ in range(2):
            self._spawn("watch", self.watch(2 * FRESHNESS_SECONDS))
        self.scheduler.run(self.scheduler.steps + 100_000)
        took = self.scheduler.now_seconds - began
        if took > 4 * FRESHNESS_SECONDS:
            raise Violation(f"watches of {2 * FRESHNESS_SECONDS:g} s took {took:g} s")
        for shard in self.shards:
            flushed, latest = self.truth.flushed(shard), self.lake.latest
            if latest.merged.get(shard, 0) != flushed:
                raise Violation(f"late: merged {latest.merged.get(shard, 0)} of {flushed}")
            for name in self.lake.indexes if latest.rows else ():
                if latest.catchup.get(name, {}).get(shard, 0) != flushed:
                    raise Violation(f"late: {name} has caught up to {latest.catchup.get(name)}")
        super()._heal()
