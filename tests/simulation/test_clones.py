"""The simulation of clones: progress that is not the table's own loses no row, and is let go of."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation import simulate
from tests.simulation.weather import Setup, cloned

pytestmark = [pytest.mark.integration, pytest.mark.long]

SEEDS = int(os.environ.get("SIMULATION_CLONE_SEEDS", "30"))
_CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_seeds(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, min(SEEDS, first + _CHUNK)):
        outcome = simulate.run_setup(cloned(Setup.of(seed)))
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        seen += outcome.seen
    assert seen["clones adopted"] > 0
    assert seen["versions by merge"] > 0


def test_some_of_the_drawn_seeds_are_clones_counters_and_tables_without_a_key() -> None:
    drawn = [Setup.drawn(seed) for seed in range(200)]

    assert 5 < sum(setup.inherited > 0 for setup in drawn) < 40
    assert 5 < sum(setup.counters for setup in drawn) < 40
    assert 0 < sum(setup.keyless for setup in drawn) < 20
    assert all(Setup.drawn(seed) == Setup.drawn(seed) for seed in range(20))
