"""What a seed runs: each has a weather, and faults, sizes and actors of its own (swarm testing).

Dice alone seldom bring about what is dangerous, so that some weathers are made for it: two mergers
at one shard's few keys, writers that sleep while their WAL is collected, refreshes beside merges.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.simulation.scheduler import FaultRates
from tests.simulation.upkeep_actors import UPKEEP

STEPS_MAX = 1500
OF_CLONES = ("merge", "index_catchup", "snapshot", "garbage", "reader", "user", "restorer")
AGING = ("reader", "checkpoint", "referrer", "time_traveller", "wal_reader", "user")
ALL_JOBS = ("merge", "merge", "index_catchup", "snapshot", "garbage", "garbage", "reader")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One run.

    `pace` is how fast time passes; `deletes`, `flushes`, `stalls` and `foreign` are how often a
    writer deletes, flushes, sleeps at a dangerous place, and claims as pylance does; `understates`
    is how often a flush tells a replay position below what it covers; `job_stalls` how often the
    `slow_jobs` sleep before one of their steps, lease in hand; `woken` is
    whether writers that sleep at the end of the chaos wake up when everything else has healed.
    """

    seed: int
    shards: int
    keys: int
    rates: FaultRates
    jobs: tuple[str, ...]
    leases_on: bool
    steps_max: int = STEPS_MAX
    weather: str = "mixed"
    pace: float = 1.0
    key_type: str = "int64"
    deletes: float = 0.3
    flushes: float = 0.4
    stalls: float = 0.0
    understates: float = 0.0
    job_stalls: float = 0.0
    slow_jobs: tuple[str, ...] = ("merge", "snapshot")
    foreign: float = 0.0
    woken: bool = False
    mergers: int = 2
    lease_seconds: tuple[float, ...] = (20.0, 300.0, 3600.0)
    watched: bool = True
    """Whether mergers without the lease look out for a refresh, as ours do.

    Those that don't take all that is pending in one commit, a shard at a time, or nothing. Only
    that leaves the base as the repair of lowered progress will say that it is
    (memwal/jobs/merge/apply/__init__.py).
    """
    shared: bool = False
    """Whether the shards of a merge share commits."""
    counters: bool = False
    """Whether the table has a row-merge policy, by which rows add up."""
    windowed: bool = False
    """Whether rows expire."""
    keyless: bool = False
    """Whether the table has no key: then nothing is merged, and every row stays."""
    fast_seconds: float = 0.0
    """How far the clock of the host that collects garbage is ahead of the store's."""
    aging_fast_seconds: float = 0.0
    """The same of the hosts that compact, read and keep checkpoints, by whose clocks rows expire,
    or would.
    """
    inherited: int = 0
    """The table is a clone, whose MemWAL index has that progress of `inherited_shards`, the first.

    The others are of writers that came after it.
    """
    inherited_shards: int = 0
    orphaned: bool = False
    """Whether the table is overwritten at the end, and loses its MemWAL index."""

    @classmethod
    def of(cls, seed: int) -> Setup:
        """Chosen by the seed."""
        dice = random.Random(f"setup {seed}")
        kinds = [k for k in FaultRates.__dataclass_fields__ if dice.random() < 0.5]
        rates = FaultRates(**{k: dice.choice((0.002, 0.01, 0.03)) for k in kinds})
        chosen = [j for j in ALL_JOBS if dice.random() < 0.8]
        upkeep = random.Random(f"upkeep {seed}")
        if upkeep.random() < 0.5:
            chosen += [j for j in UPKEEP if upkeep.random() < 0.5]
        users = random.Random(f"users {seed}")
        of_table = [j for j in ("restorer", "overwriter") if users.random() < 0.5] * (
            users.random() < 0.4
        )
        mixed = cls(
            seed=seed,
            shards=dice.choice((1, 1, 2)),
            keys=dice.choice((2, 5, 12)),
            rates=rates,
            jobs=tuple(dict.fromkeys(chosen)) or ("merge",),
            leases_on=dice.random() < 0.7,
        )
        (name,) = dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        made = _made(name, mixed, dice)
        slow = random.Random(f"slow {seed}").choice((0.0, 0.0, 0.1, 0.3))
        made = replace(made, jobs=(*made.jobs, *of_table), job_stalls=slow)
        if "restorer" in of_table and users.random() < 0.5:
            made = _made("restores", made, users)
        memtable = random.Random(f"memtable {seed}")
        made = replace(made, understates=memtable.choice((0.0, 0.0, 0.5)))
        if random.Random(f"ingest {seed}").random() < 0.15:
            made = replace(made, jobs=(*made.jobs, "ingest"))
        host = random.Random(f"host {seed}")
        made = replace(
            made,
            fast_seconds=host.choice((0.0, 0.0, 45.0, 3600.0)),
            orphaned=host.random() < 0.1,
        )
        together = random.Random(f"together {seed}")
        if together.random() < 0.4 and made.watched:
            return replace(made, shared=True, shards=max(made.shards, together.choice((2, 2, 3))))
        return made

    @classmethod
    def drawn(cls, seed: int) -> Setup:
        """The same; some tables are clones, or of counters, or have no key, or rows that expire."""
        dice = random.Random(f"table {seed}")
        (kind,) = dice.choices(list(TABLES), weights=list(TABLES.values()))
        made = kind(cls.of(seed))
        if random.Random(f"alter {seed}").random() < 0.2 and not (made.keyless or made.inherited):
            made = replace(made, jobs=(*made.jobs, "alterer"))
        stays = made.counters or made.keyless or random.Random(f"expire {seed}").random() >= 0.2
        return made if stays else expiring(made)


def counting(setup: Setup) -> Setup:
    """The same with a table of counters. Merges fold with the base, so users write to it too."""
    # What is stored twice counts twice: that is how it is.
    jobs = tuple(dict.fromkeys((*setup.jobs, "merge", "user", "wal_reader")))
    jobs = tuple(job for job in jobs if job != "ingest")
    return replace(setup, jobs=jobs, counters=True, key_type="int64")


def expiring(setup: Setup) -> Setup:
    """The same with a table whose rows expire, while hosts' clocks may be wrong."""
    dice = random.Random(f"expiring {setup.seed}")
    known = OF_CLONES if setup.inherited else AGING
    more = (job for job in AGING if dice.random() < 0.5 and job in known)
    return replace(
        setup,
        jobs=tuple(dict.fromkeys((*setup.jobs, "compaction", *more))),
        windowed=True,
        pace=max(setup.pace, dice.choice((1.0, 4.0))),
        aging_fast_seconds=dice.choice((0.0, 0.0, 45.0, 3600.0, -45.0, -3600.0)),
    )


def cloned(setup: Setup) -> Setup:
    """The same with a table that is a clone, or a branch, with progress that is not its own."""
    dice = random.Random(f"clone {setup.seed}")
    jobs = tuple(job for job in setup.jobs if job in OF_CLONES)
    if dice.random() < 0.3:
        # An adoption sleeps, while a shard that is the clone's own is merged, and it is restored.
        return replace(
            setup,
            shards=2,
            jobs=("merge", "adopter", "restorer"),
            inherited=dice.choice((1, 3)),
            inherited_shards=1,
            leases_on=False,
            rates=FaultRates(crash_after=0.005),
            flushes=0.9,
            job_stalls=0.4,
            slow_jobs=("adopter",),
            lease_seconds=(20.0,),
            orphaned=False,
        )
    return replace(
        setup,
        jobs=(*jobs, "adopter"),
        inherited=dice.choice((1, 3, 6)),
        inherited_shards=dice.randint(1, setup.shards),
        slow_jobs=(*setup.slow_jobs, "adopter"),
        orphaned=False,
    )


def appending(setup: Setup) -> Setup:
    """The same with a table that has no key, where all that may be done is to read."""
    jobs = ("merge", "snapshot", "garbage", "reader", "wal_reader")
    return replace(setup, jobs=jobs, keyless=True, deletes=0.0, orphaned=False, woken=False)


TABLES: Mapping[Callable[[Setup], Setup], int] = {
    lambda setup: setup: 80, cloned: 9, counting: 8, appending: 3
}  # fmt: skip
WEIGHTS = {"mixed": 3, "duel": 2, "sleepers": 3, "slow flushes": 1, "refreshes": 1}


def _made(name: str, mixed: Setup, dice: random.Random) -> Setup:
    mixed = replace(mixed, weather=name)
    if name == "duel":
        # No lease and few keys: a merger's fold is a part of another's.
        return replace(
            mixed,
            shards=1,
            keys=dice.choice((1, 2, 3, 6)),
            jobs=("merge",),
            leases_on=False,
            rates=FaultRates(crash_after=0.01, delay=dice.choice((0.0, 0.02))),
            deletes=dice.choice((0.3, 0.5, 0.7)),
            key_type=dice.choice(("int64", "int16")),
            flushes=0.9,
            mergers=3,
            steps_max=700,
        )
    if name == "sleepers":
        # The WAL is collected while writers sleep, inside of their claims and before their puts.
        return replace(
            mixed,
            shards=1,
            jobs=("merge", "index_catchup", "garbage", "reader")[: dice.choice((3, 4))],
            rates=FaultRates(crash_after=0.002, delay=0.002),
            leases_on=True,
            pace=dice.choice((8.0, 30.0)),
            flushes=0.7,
            stalls=0.15,
            foreign=dice.choice((0.0, 0.5, 1.0)),
            woken=True,
            steps_max=1000,
        )
    if name == "slow flushes":
        # A generation's files are old when it is listed.
        return replace(
            mixed,
            shards=1,
            jobs=("merge", "index_catchup", "garbage", "reader"),
            rates=FaultRates(),
            pace=dice.choice((2.0, 4.0)),
            flushes=0.9,
            stalls=0.2,
        )
    if name == "refreshes":
        return replace(
            mixed,
            shards=1,
            keys=dice.choice((2, 3, 5)),
            jobs=("merge", "snapshot", "index_catchup")[: dice.choice((2, 3))],
            leases_on=False,
            watched=dice.random() < 0.5,
            rates=replace(mixed.rates, error_after=0.02, clock_jump=0.0),
            deletes=0.5,
            flushes=0.9,
        )
    if name == "restores":
        # Refreshes sleep, and the table is restored meanwhile.
        return replace(
            mixed,
            shards=1,
            jobs=("merge", "snapshot", "restorer"),
            rates=FaultRates(),
            leases_on=False,
            job_stalls=0.3,
            slow_jobs=("snapshot",),
            lease_seconds=(300.0, 3600.0),
            flushes=0.9,
            steps_max=800,
        )
    return mixed
