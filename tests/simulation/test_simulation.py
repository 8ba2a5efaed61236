"""Seeds of the simulation, and that a run can be replayed and is noticed when it goes wrong."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from memwal.errors import LostRace
from memwal.model import ShardId
from memwal.testing import MemoryBucket
from tests.simulation import simulate
from tests.simulation.lake import Lake
from tests.support.sampling import many

pytestmark = [pytest.mark.integration, pytest.mark.long]

SEEDS = int(os.environ.get("SIMULATION_SEEDS", many(300, 100)))
_CHUNK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_seeds(first: int) -> None:
    injected = 0
    for seed in range(first, min(SEEDS, first + _CHUNK)):
        outcome = simulate.run_seed(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        injected += outcome.injected.total()
    assert injected > 0


def test_a_seed_replays_step_by_step() -> None:
    one, other = simulate.run_seed(3), simulate.run_seed(3)

    assert one.trace == other.trace
    assert (one.steps, one.checks) == (other.steps, other.checks)


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
