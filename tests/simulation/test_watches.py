"""The simulation of watches: they keep every promise that the jobs do, and the table fresh."""

from __future__ import annotations

import os

import pytest

from tests.simulation.simulate import on_one_core
from tests.simulation.watch_actors import WatchSimulation, watching
from tests.simulation.weather import Setup
from tests.support.sampling import many

pytestmark = [pytest.mark.integration, pytest.mark.long]

SEEDS = int(os.environ.get("SIMULATION_WATCH_SEEDS", many(20, 10)))
_CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_seeds(first: int) -> None:
    rounds = crashes = 0
    for seed in range(first, min(SEEDS, first + _CHUNK)):
        with on_one_core():
            outcome = WatchSimulation(watching(Setup.of(seed))).run()
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        rounds += outcome.seen["rounds of watches"]
        crashes += sum(outcome.injected[kind] for kind in ("crash_before", "crash_after"))
    assert rounds > 50
    assert crashes > 0
