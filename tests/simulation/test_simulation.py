"""Seeds of the simulation, and that a run can be replayed and is noticed when it goes wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from memwal.errors import LostRace
from memwal.model import ShardId
from memwal.testing import MemoryBucket
from tests.simulation import simulate
from tests.simulation.lake import Lake
from tests.simulation.simulate import Outcome, run_seed, run_setup
from tests.simulation.watch_actors import WatchSimulation, watching
from tests.simulation.weather import Setup, appending, cloned, counting
from tests.support.sampling import seeds

pytestmark = pytest.mark.integration

_CHUNK = 10


def run_watched(seed: int) -> Outcome:
    with simulate.on_one_core():
        return WatchSimulation(watching(Setup.of(seed))).run()


@dataclass(frozen=True)
class Kind:
    """How a seed is run, how many all of them and a part are, and what some come by, or never."""

    run: Callable[[int], Outcome]
    full: int
    part: int
    seen: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


KINDS = {
    "drawn": Kind(run_seed, 150, 5),
    "clones": Kind(
        lambda seed: run_setup(cloned(Setup.of(seed))),
        50,
        3,
        ("clones adopted", "versions by merge"),
    ),
    # A refresh may lower progress for a moment, and operands would count twice.
    "counters": Kind(
        lambda seed: run_setup(counting(Setup.of(seed))),
        50,
        3,
        ("versions by merge",),
        ("versions by mem_wal",),
    ),
    "without a key": Kind(
        lambda seed: run_setup(appending(Setup.of(seed))),
        50,
        3,
        ("reads with the WAL",),
        ("versions by merge",),
    ),
    "watches": Kind(run_watched, 50, 2, ("rounds of watches",)),
}
CHUNKS = [
    (name, kind_seeds[at : at + _CHUNK])
    for name, kind in KINDS.items()
    for kind_seeds in [seeds(kind.full, kind.part)]
    for at in range(0, len(kind_seeds), _CHUNK)
]


@pytest.mark.parametrize(("name", "chunk"), CHUNKS, ids=str)
def test_seeds(name: str, chunk: range) -> None:
    kind, seen, injected = KINDS[name], Counter[str](), 0
    for seed in chunk:
        outcome = kind.run(seed)
        assert outcome.failure is None, f"{name}, seed {seed}: {outcome.failure}"
        seen += outcome.seen
        injected += outcome.injected.total()
    assert injected > 0
    assert {*kind.seen} <= {what for what, count in seen.items() if count}
    assert not any(seen[what] for what in kind.never)


def test_some_of_the_drawn_seeds_are_clones_counters_and_tables_without_a_key() -> None:
    drawn = [Setup.drawn(seed) for seed in range(200)]

    assert 5 < sum(setup.inherited > 0 for setup in drawn) < 40
    assert 5 < sum(setup.counters for setup in drawn) < 40
    assert 0 < sum(setup.keyless for setup in drawn) < 20
    assert all(Setup.drawn(seed) == Setup.drawn(seed) for seed in range(20))


def test_a_seed_replays_step_by_step() -> None:
    one, other = simulate.run_seed(3), simulate.run_seed(3)

    assert one.trace == other.trace
    assert (one.steps, one.checks) == (other.steps, other.checks)


@pytest.mark.nightly
def test_what_goes_wrong_is_noticed_and_shrunk() -> None:
    class Forgetful(Lake):
        """Loses the newest row of every merge."""

        def merge(self, read, live, gone, marks):  # type: ignore[no-untyped-def]
            return super().merge(read, dict(list(live.items())[:-1]), gone, marks)

    def run(setup: simulate.Setup) -> simulate.Outcome:
        return simulate.Simulation(setup, Forgetful).run()

    found = run(simulate.Setup.of(0))
    least = simulate.shrink(found, run)

    assert found.failure is not None
    assert least.failure is not None
    assert "5: shard" in least.failure
    assert least.setup.rates.names() == []
    assert len(least.setup.jobs) == 1
    assert run(replace(least.setup, seed=least.setup.seed)).failure == least.failure


def test_the_lake_refuses_what_lance_refuses() -> None:
    shard = ShardId("00000000-0000-4000-8000-000000000001")
    lake = Lake(bucket=MemoryBucket(), now_nanos=lambda: 0)
    lake.merge(1, {1: 10}, frozenset(), {shard: 1})

    with pytest.raises(LostRace):
        lake.merge(1, {1: 11}, frozenset(), {shard: 2})
    with pytest.raises(LostRace):
        lake.merge(2, {2: 11}, frozenset(), {shard: 1})
    assert lake.merge(1, {2: 20}, frozenset(), {shard: 2}).merged == {shard: 2}
