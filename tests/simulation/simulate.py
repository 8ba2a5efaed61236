"""Runs seeds: `python simulate.py --seeds 300`; `--seed 17 --trace` for one of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from rich.console import Console

from memwal.format import layout
from memwal.jobs.merge.plan import MergeLimits
from memwal.model import ShardId
from memwal.store.records.cursors import StoredCursors
from memwal.testing import MemoryBucket
from tests.simulation import checkpoint_actors
from tests.simulation.actors import GRACE_SECONDS, RETENTION_SECONDS, Jobs, decode_entry
from tests.simulation.explore import explore
from tests.simulation.ingest_actors import Ingests
from tests.simulation.lake import Lake
from tests.simulation.manifest_names import ClaimLimits
from tests.simulation.row_rules import APPENDS, COUNTERS, NEWEST_WINS, WINDOWED
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.sim_ports import SimStores
from tests.simulation.table_users import TableUsers
from tests.simulation.truth import Auditor, Truth, Violation
from tests.simulation.upkeep_actors import UPKEEP, Upkeep
from tests.simulation.weather import Setup

Body = Callable[[Actor], None]
ORPHANED_STEPS = 600
PACES = dict.fromkeys(UPKEEP, 0.2) | {
    "restorer": 0.3,
    "alterer": 0.2,
    "overwriter": 0.1,
    "adopter": 0.1,
}
"""How likely an actor that is not running is started at a look."""


@dataclass(kw_only=True)
class Outcome:
    """What came of a seed. `failure` is None when all held."""

    setup: Setup
    steps: int = 0
    checks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    trace: list[str] = field(default_factory=list)


class Simulation:
    """One seed's world."""

    def __init__(self, setup: Setup, lake: type[Lake] = Lake) -> None:
        self.setup = setup
        self.scheduler = Scheduler(seed=setup.seed, rates=setup.rates, pace=setup.pace)
        windowed = WINDOWED if setup.windowed else NEWEST_WINS
        keyed = COUNTERS if setup.counters else windowed
        self.truth = Truth(rules=APPENDS if setup.keyless else keyed)
        self.shards = [ShardId(str(UUID(int=n + 1, version=4))) for n in range(setup.shards)]
        inherited = dict.fromkeys(self.shards[: setup.inherited_shards], setup.inherited)
        copied = {key: self.truth.rules.value(key) for key in range(setup.keys) if inherited}
        self.truth.copied = {
            shard: {k: v for k, v in copied.items() if k % len(self.shards) == place}
            for place, shard in enumerate(self.shards)
        }
        self.lake = lake(
            bucket=MemoryBucket(),
            now_nanos=self.scheduler.now_nanos,
            key_type=setup.key_type,
            inherited=inherited,
            copied=copied,
        )
        self.auditor = Auditor(
            lake=self.lake,
            truth=self.truth,
            shards=self.shards,
            grace_seconds=GRACE_SECONDS,
            retention_seconds=RETENTION_SECONDS,
            clocks_agree=lambda: not self.scheduler.injected["clock_jump"],
            deletes_apart=min(_deletes_in_commit(setup)) < setup.keys,
        )
        self.scheduler.audit = self.auditor.audit
        self.jobs = Jobs(
            open=self._open,
            truth=self.truth,
            shards=self.shards,
            setup=setup,
            refreshed=self.auditor.refreshed,
        )
        # A refresh that overwrites progress brings a generation back above a plain write for the
        # moment until it is repaired.
        shard_rows = "snapshot" not in setup.jobs or setup.counters
        self.upkeep = Upkeep(jobs=self.jobs, shard_rows=shard_rows)
        self.users = TableUsers(jobs=self.jobs)
        self.ingests = Ingests(jobs=self.jobs)
        self.number = 0

    def _open(self, actor: Actor) -> SimStores:
        claims = ClaimLimits(
            grace_seconds=GRACE_SECONDS,
            now_seconds=lambda: self.scheduler.now_seconds,
            seen=self.jobs.seen,
        )
        return SimStores(
            actor, self.lake, self._watch, self.truth.rules, claims, self.setup.lease_seconds
        )

    def _watch(self, actor: str, path: str, data: bytes | None) -> None:
        try:
            self._judge(actor, path, data)
        except Violation as found:
            self.auditor.found = found
            raise

    def _judge(self, actor: str, path: str, data: bytes | None) -> None:
        parts = path.split("/")
        if (cursor := layout.parse_cursor_path(path)) is not None:
            self.truth.move_cursor(cursor, data, self.lake.latest.number)
        if data is None:
            self.auditor.watch_delete(actor, path)
            if parts[:2] == ["_refs", "tags"]:
                self.lake.tags.pop(parts[2].removesuffix(".json"), None)
            return
        if parts[0] == layout.MEM_WAL and parts[2] == "wal":
            position = layout.parse_wal_entry_name(parts[-1])
            assert position is not None
            self.auditor.watch_entry(actor, ShardId(parts[1]), position, decode_entry(data))
        self.auditor.watch(actor, path, data)

    def run(self) -> Outcome:
        """Chaos, then quiet; everything must have healed at the end."""
        outcome = Outcome(setup=self.setup)
        try:
            while self.scheduler.steps < self.setup.steps_max:
                self._populate()
                self.scheduler.run(min(self.setup.steps_max, self.scheduler.steps + 20))
            sleepers = self._sleepers()
            self.scheduler.stop()
            if self.setup.orphaned:
                self._orphan()
            else:
                self.scheduler.note("---- quiet")
                for path in self.truth.forks:
                    self.lake.bucket.objects.pop(path, None)  # as garbage asks for
                self.truth.forks.clear()
                self._heal()
                if sleepers:
                    self._wake(sleepers)
                    self._heal()
                self._check_healed()
        except AssertionError as error:
            outcome.failure = str(error)
        finally:
            self.scheduler.stop()
        outcome.steps, outcome.checks = self.scheduler.steps, self.auditor.checks
        outcome.injected, outcome.trace = self.scheduler.injected, self.scheduler.trace
        outcome.seen = self.jobs.seen + self.changes()
        return outcome

    def _sleepers(self) -> list[Actor]:
        """Writers that are in the middle of something, taken from the scheduler."""
        if not self.setup.woken:
            return []
        actors = self.scheduler.actors
        found = [a for a in actors if a.name.startswith("writer") and not a.done]
        self.scheduler.actors = [a for a in actors if a not in found]
        return found

    def _wake(self, sleepers: list[Actor]) -> None:
        """They go on as if nothing had happened, some time after all WAL that may go is gone."""
        self.scheduler.note("---- sleepers wake")
        self.jobs.seen["writers woken"] += len(sleepers)
        for actor in sleepers:
            actor.wake_seconds = 0.0
        self.scheduler.actors = sleepers
        self.scheduler.run(self.scheduler.steps + 100_000)

    def _orphan(self) -> None:
        """The table is overwritten, restored, overwritten again; its shards go when all is over."""
        scheduler, dice = self.scheduler, self.scheduler.dice
        scheduler.note("---- overwritten")
        self.auditor.orphaned = True
        self.lake.overwrite()
        adopt = self.jobs.garbage(wal=True, retention=True, adopt=True)
        others = (self.upkeep.referrer, self.upkeep.cleaner, self.users.undecided)
        until = scheduler.steps + ORPHANED_STEPS
        while scheduler.steps < until:
            self._spawn("garbage", adopt)
            self._spawn("user", dice.choice(others))
            scheduler.run(min(until, scheduler.steps + 60))
            scheduler.now_seconds += dice.choice((0.0, 100.0, 700.0))
        scheduler.stop()
        scheduler.faults_on = False
        # Longer than any claim that a holder made when its clock had jumped ahead.
        scheduler.now_seconds += 100_000.0
        self._alone("checkpoint", self._drop_checkpoints)
        self._forget_references()
        if self.lake.latest.has_mem_wal:
            self.lake.overwrite()
        for _ in range(2):
            scheduler.now_seconds += GRACE_SECONDS + RETENTION_SECONDS + 1
            self._alone("garbage", adopt)
        left = [path for path in self.lake.bucket.objects if path.startswith(layout.MEM_WAL)]
        if left:
            raise Violation(f"a leak: {left[0]} and {len(left) - 1} more of an overwritten table")

    def changes(self) -> Counter[str]:
        """What was committed, by kind."""
        found = Counter(
            f"versions by {kind.split()[0]}" for kind in self.lake.kinds if kind != "create"
        )
        for manifests in self.truth.manifests.values():
            for before, after in pairwise(manifests):
                found["epochs claimed"] += after.writer_epoch > before.writer_epoch
                gone = len(before.flushed_generations) - len(after.flushed_generations)
                found["generations dropped"] += max(0, gone)
                found["generations flushed"] += after.current_generation > before.current_generation
        return found

    def _populate(self) -> None:
        """Start what is not running: a writer a shard, sometimes two; each job, at its pace."""
        dice = self.scheduler.dice
        running = Counter(a.name.split("-")[0] for a in self.scheduler.actors if not a.done)
        for shard in self.shards:
            if running["writer"] < len(self.shards) + (dice.random() < 0.2):
                self._spawn("writer", self.jobs.writer(shard, dice.randrange(1, 8)))
        for job in self.setup.jobs:
            most = {"merge": self.setup.mergers, "reader": 2}.get(job, 1)
            if running[job] < most and dice.random() < PACES.get(job, 0.4):
                self._spawn(job, self._body(job))

    def _body(self, job: str) -> Body:
        dice = self.scheduler.dice
        if job == "merge" and not self.setup.watched:
            limits = MergeLimits(conflict_attempts_max=5)
            return self.jobs.merge(self.shards, limits, whole=True)
        if job == "merge":
            limits = MergeLimits(
                generations_per_commit_max=dice.choice(
                    (2, 3, 64) if self.setup.shared else (1, 2, 64)
                ),
                tombstones_in_commit_max=dice.choice(_deletes_in_commit(self.setup)),
                conflict_attempts_max=5,
            )
            return self.jobs.merge(self.shards, limits)
        if job == "garbage":
            wal, retention = dice.random() < 0.7, dice.random() < 0.8
            return self.jobs.garbage(wal=wal, retention=retention, full=False)
        owners = (self.jobs, self.upkeep, self.users, self.ingests)
        body: Body = next(getattr(owner, job) for owner in owners if hasattr(owner, job))
        return body

    def _spawn(self, name: str, body: Body) -> Actor:
        self.number += 1
        actor = self.scheduler.spawn(f"{name}-{self.number}", body)
        if name == "garbage":
            actor.skew_seconds = self.setup.fast_seconds
        if name in ("compaction", "reader", "checkpoint"):
            actor.skew_seconds = self.setup.aging_fast_seconds
        return actor

    def _heal(self) -> None:
        """Without faults, each job once more, until there is nothing left to do (invariant 8)."""
        scheduler = self.scheduler
        scheduler.faults_on = False
        scheduler.now_seconds += 100_000.0
        merge = self.jobs.merge(self.shards, MergeLimits())
        garbage = self.jobs.garbage(wal=True, retention=True)
        if "rescue" in self.setup.jobs:
            self._alone("rescue", self.upkeep.rescue)
            self._check_rescued()
        self._alone("user", self.users.bring_back)
        self._alone("user", self.users.adopter)
        self._alone("checkpoint", self._drop_checkpoints)
        self._forget_references()
        for shard in self.shards:
            self._alone("writer", self.jobs.writer(shard, 1))
            self._alone("writer", self.jobs.writer(shard, 3))
        self._alone("snapshot", self.jobs.snapshot)
        for _ in range(2):
            self._alone("merge", merge)
            self._alone("index_catchup", self.jobs.index_catchup)
            self._alone("snapshot", self.jobs.snapshot)
        if "compaction" in self.setup.jobs:
            self._alone("compaction", self.upkeep.compaction)
        # One right after the other: what is young, or was dropped a moment ago, has to stay.
        self._alone("garbage", garbage)
        self._alone("garbage", garbage)
        for _ in range(3):
            scheduler.now_seconds += GRACE_SECONDS + RETENTION_SECONDS + 1
            self._alone("garbage", garbage)

    def _alone(self, name: str, body: Body) -> None:
        self._spawn(name, body)
        self.scheduler.run(self.scheduler.steps + 100_000)

    def _drop_checkpoints(self, actor: Actor) -> None:
        checkpoint_actors.drop_all(self.jobs, actor)
        cursors = StoredCursors(self.jobs.open(actor).objects)
        for cursor in cursors.list():
            cursors.drop(cursor.name)

    def _check_rescued(self) -> None:
        """Every acknowledged row is in a generation, without a writer."""
        for shard in self.shards:
            covered = self.truth.replay[shard][-1]
            left = [p for p in self.truth.acknowledged[shard] if p > covered]
            if left:
                raise Violation(f"8: rescue left positions {left} of shard {shard[:4]}")

    def _forget_references(self) -> None:
        for name in list(self.lake.tags):
            if not name.startswith(layout.checkpoint_tag("")):
                self.lake.untag(name)
        for name in list(self.lake.branches):
            self.lake.unrefer(name)
            self.lake.unbranch(name)

    def _check_healed(self) -> None:
        latest = self.lake.latest
        if kept := checkpoint_actors.find_left(self.lake.bucket.objects):
            raise Violation(f"a leak: {kept} are left of checkpoints")
        if self.setup.keyless:
            return
        for shard in self.shards:
            flushed = self.truth.flushed(shard)
            if latest.merged.get(shard, 0) != flushed:
                raise Violation(f"8: merged {latest.merged.get(shard, 0)} of {flushed}")
            # Of a table without rows Lance records nothing, so what it merged stays, too.
            for name in self.lake.indexes if latest.rows else ():
                if flushed and latest.catchup.get(name, {}).get(shard, 0) != flushed:
                    raise Violation(f"8: {name} has caught up to {latest.catchup.get(name)}")
            left = {
                path.split("/")[2]
                for path in self.lake.bucket.objects
                if path.startswith(layout.shard_folder(shard)) and "_gen_" in path
            }
            leaked = {n for n in left if (layout.parse_generation_folder(n) or 0) <= flushed}
            if leaked and latest.rows:
                raise Violation(f"a leak: {sorted(leaked)} of {flushed} generations are left")


def _deletes_in_commit(setup: Setup) -> tuple[int, ...]:
    """Of mergers' limits on deletes in a commit of rows, the ones that they are drawn from."""
    if not setup.watched:
        return (MergeLimits().tombstones_in_commit_max,)
    return (1, 200) if setup.shared else (0, 0, 200)


def run_seed(seed: int) -> Outcome:
    """One seed."""
    return run_setup(Setup.drawn(seed))


def run_setup(setup: Setup) -> Outcome:
    """One setup."""
    with on_one_core():
        return Simulation(setup).run()


@contextmanager
def on_one_core() -> Iterator[None]:
    """The threads of a run take turns: on one core, the baton passes in half the time."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def shrink(outcome: Outcome, run: Callable[[Setup], Outcome] = run_setup) -> Outcome:
    """The same seed with as few fault kinds and jobs, and as short, as still fails."""
    best = outcome
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(best.setup):
            tried = run(smaller)
            if tried.failure is not None:
                best, changed = tried, True
                break
    return best


def _smaller(setup: Setup) -> Sequence[Setup]:
    found = [replace(setup, rates=replace(setup.rates, **{k: 0.0})) for k in setup.rates.names()]
    if len(setup.jobs) > 1:
        found += [
            replace(setup, jobs=tuple(j for j in setup.jobs if j != job)) for job in setup.jobs
        ]
    if setup.steps_max > 100:
        found.append(replace(setup, steps_max=setup.steps_max // 2))
    return found


def main() -> int:
    """Exit code 1 when a seed fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only, cut short and with its trace")
    parser.add_argument("--trace", action="store_true", help="the trace also when all is well")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--report", type=Path, help="write what was explored as JSON")
    parser.add_argument("--quiet", action="store_true", help="failures only")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed, trace=arguments.trace)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    console = Console(quiet=arguments.quiet)
    explored = explore(seeds, arguments.processes, console, until_failure=arguments.until_failure)
    for seed, failure in explored.failures.items():
        *before, last = failure.strip().splitlines()
        print("\n".join([f"seed {seed}: {last}", *before]))
    console.print(explored.table())
    if arguments.report is not None:
        arguments.report.write_text(json.dumps(explored.document(), indent=1) + "\n")
    return int(bool(explored.failures))


def replay(seed: int, *, trace: bool) -> int:
    """One seed; a failing one is cut to what still fails."""
    outcome = run_seed(seed)
    if outcome.failure is not None:
        outcome = shrink(outcome)
    if trace or outcome.failure is not None:
        print("\n".join(outcome.trace))
    print(outcome.setup, outcome.failure)
    return int(outcome.failure is not None)


if __name__ == "__main__":
    sys.exit(main())
