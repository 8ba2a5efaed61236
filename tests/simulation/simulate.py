"""Runs seeds: `python simulate.py --seeds 300`, `--seed 17 --trace` for one of them."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from uuid import UUID

from actors import GRACE_SECONDS, RETENTION_SECONDS, Jobs, decode_entry
from lake import Lake
from scheduler import Actor, FaultRates, Scheduler
from sim_ports import SimStores
from truth import Auditor, Truth, Violation
from upkeep_actors import UPKEEP, Upkeep

from memwal import layout
from memwal.model import ShardId
from memwal.plan.merge import MergeLimits
from memwal.testing import MemoryBucket

STEPS_MAX = 1500
Body = Callable[[Actor], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one seed runs: sizes, faults, and which actors take part."""

    seed: int
    shards: int
    keys: int
    rates: FaultRates
    jobs: tuple[str, ...]
    leases_on: bool
    steps_max: int = STEPS_MAX

    @classmethod
    def of(cls, seed: int) -> Setup:
        """Chosen by the seed: every run has faults and actors of its own (swarm testing)."""
        dice = random.Random(f"setup {seed}")
        kinds = [k for k in FaultRates.__dataclass_fields__ if dice.random() < 0.5]
        rates = FaultRates(**{k: dice.choice((0.002, 0.01, 0.03)) for k in kinds})
        all_jobs = ("merge", "merge", "index_catchup", "snapshot", "garbage", "garbage", "reader")
        chosen = [j for j in all_jobs if dice.random() < 0.8]
        upkeep = random.Random(f"upkeep {seed}")
        if upkeep.random() < 0.5:
            chosen += [j for j in UPKEEP if upkeep.random() < 0.5]
        return cls(
            seed=seed,
            shards=dice.choice((1, 1, 2)),
            keys=dice.choice((2, 5, 12)),
            rates=rates,
            jobs=tuple(dict.fromkeys(chosen)) or ("merge",),
            leases_on=dice.random() < 0.7,
        )


@dataclass(kw_only=True)
class Outcome:
    """What came of a seed. `failure` is None when all held."""

    setup: Setup
    steps: int = 0
    checks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    trace: list[str] = field(default_factory=list)


class Simulation:
    """One seed's world."""

    def __init__(self, setup: Setup, lake: type[Lake] = Lake) -> None:
        self.setup = setup
        self.scheduler = Scheduler(seed=setup.seed, rates=setup.rates)
        self.truth = Truth()
        self.shards = [ShardId(str(UUID(int=n + 1, version=4))) for n in range(setup.shards)]
        self.lake = lake(bucket=MemoryBucket(), now_nanos=self.scheduler.now_nanos)
        self.auditor = Auditor(
            lake=self.lake,
            truth=self.truth,
            shards=self.shards,
            grace_seconds=GRACE_SECONDS,
            clocks_agree=lambda: not self.scheduler.injected["clock_jump"],
        )
        self.scheduler.audit = self.auditor.audit
        self.jobs = Jobs(
            open=self._open,
            truth=self.truth,
            shards=self.shards,
            keys=setup.keys,
            refreshed=self.auditor.refreshed,
            leases_on=setup.leases_on,
        )
        # A refresh that overwrites progress brings a generation back above a plain write for the
        # moment until it is repaired.
        self.upkeep = Upkeep(jobs=self.jobs, shard_rows="snapshot" not in setup.jobs)
        self.number = 0

    def _open(self, actor: Actor) -> SimStores:
        return SimStores(actor, self.lake, self._watch)

    def _watch(self, actor: str, path: str, data: bytes | None) -> None:
        parts = path.split("/")
        if data is None:
            self.auditor.watch_delete(actor, path)
            return
        if parts[0] == layout.MEM_WAL and parts[2] == "wal":
            position = layout.parse_wal_entry_name(parts[-1])
            assert position is not None
            self.truth.wal[ShardId(parts[1])][position] = decode_entry(data)
        self.auditor.watch(actor, path, data)

    def run(self) -> Outcome:
        """Chaos, then quiet; everything must have healed at the end."""
        outcome = Outcome(setup=self.setup)
        try:
            while self.scheduler.steps < self.setup.steps_max:
                self._populate()
                self.scheduler.run(min(self.setup.steps_max, self.scheduler.steps + 20))
            self.scheduler.stop()
            self.scheduler.note("---- quiet")
            self._heal()
        except AssertionError as error:
            outcome.failure = str(error)
        finally:
            self.scheduler.stop()
        outcome.steps, outcome.checks = self.scheduler.steps, self.auditor.checks
        outcome.injected, outcome.trace = self.scheduler.injected, self.scheduler.trace
        outcome.commits = self.commits()
        return outcome

    def commits(self) -> Counter[str]:
        """What was committed, by kind."""
        found = Counter(
            "drop"
            for m in self.truth.manifests.values()
            for a, b in pairwise(m)
            if len(b.flushed_generations) < len(a.flushed_generations)
        )
        for line in self.scheduler.trace:
            for word in ("merge to", "delete pass", "index id", "replace the", "delete _mem"):
                if word in line:
                    found[word] += 1
        return found

    def _populate(self) -> None:
        """Start what is not running: a writer a shard, sometimes two; each job, at its pace."""
        dice = self.scheduler.dice
        running = Counter(a.name.split("-")[0] for a in self.scheduler.actors if not a.done)
        for shard in self.shards:
            if running["writer"] < len(self.shards) + (dice.random() < 0.2):
                self._spawn("writer", self.jobs.writer(shard, dice.randrange(1, 8)))
        for job in self.setup.jobs:
            most = 2 if job in ("merge", "reader") else 1
            if running[job] < most and dice.random() < (0.2 if job in UPKEEP else 0.4):
                self._spawn(job, self._body(job))

    def _body(self, job: str) -> Body:
        dice = self.scheduler.dice
        if job == "merge":
            limits = MergeLimits(
                generations_per_commit_max=dice.choice((1, 2, 64)),
                tombstones_in_commit_max=dice.choice((0, 0, 200)),
                conflict_attempts_max=5,
            )
            return self.jobs.merge(self.shards, limits)
        if job == "garbage":
            return self.jobs.garbage(wal=dice.random() < 0.7, retention=dice.random() < 0.8)
        body: Body = getattr(self.upkeep if job in UPKEEP else self.jobs, job)
        return body

    def _spawn(self, name: str, body: Body) -> Actor:
        self.number += 1
        return self.scheduler.spawn(f"{name}-{self.number}", body)

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
        for _ in range(3):
            scheduler.now_seconds += GRACE_SECONDS + RETENTION_SECONDS + 1
            self._alone("garbage", garbage)
        self._check_healed()

    def _alone(self, name: str, body: Body) -> None:
        self._spawn(name, body)
        self.scheduler.run(self.scheduler.steps + 100_000)

    def _check_rescued(self) -> None:
        """Every acknowledged row is in a generation, without a writer."""
        for shard in self.shards:
            known = self.truth.manifests[shard]
            covered = known[-1].replay_after_wal_entry_position if known else 0
            left = [p for p in self.truth.acknowledged[shard] if p > covered]
            if left:
                raise Violation(f"8: rescue left positions {left} of shard {shard[:4]}")

    def _forget_references(self) -> None:
        for name in list(self.lake.tags):
            self.lake.untag(name)
        for name in list(self.lake.branches):
            self.lake.unrefer(name)
            self.lake.unbranch(name)

    def _check_healed(self) -> None:
        latest = self.lake.latest
        for shard in self.shards:
            flushed = self.truth.flushed(shard)
            if latest.merged.get(shard, 0) != flushed:
                raise Violation(f"8: merged {latest.merged.get(shard, 0)} of {flushed}")
            for name in self.lake.indexes:
                if flushed and latest.catchup.get(name, {}).get(shard, 0) != flushed:
                    raise Violation(f"8: {name} has caught up to {latest.catchup.get(name)}")
            left = {
                path.split("/")[2]
                for path in self.lake.bucket.objects
                if path.startswith(layout.shard_folder(shard)) and "_gen_" in path
            }
            leaked = {n for n in left if (layout.parse_generation_folder(n) or 0) <= flushed}
            if leaked:
                raise Violation(f"a leak: {sorted(leaked)} of {flushed} generations are left")


def run_seed(seed: int) -> Outcome:
    """One seed."""
    return run_setup(Setup.of(seed))


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
    parser.add_argument("--seed", type=int, help="this one only, with its trace")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = run_seed(arguments.seed)
        if outcome.failure is not None:
            outcome = shrink(outcome)
        print("\n".join(outcome.trace))
        print(outcome.setup, outcome.failure)
        return int(outcome.failure is not None)
    started = time.perf_counter()
    total, failed = Counter[str](), []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        outcome = run_seed(seed)
        total += outcome.injected + outcome.commits
        total["steps"] += outcome.steps
        total["checks"] += outcome.checks
        if outcome.failure is not None:
            failed.append(seed)
            print(f"seed {seed}: {outcome.failure[-1500:]}")
            if arguments.until_failure:
                break
    print(f"{arguments.seeds} seeds in {time.perf_counter() - started:.1f} s: {dict(total)}")
    print(f"failed: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
