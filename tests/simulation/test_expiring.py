"""The simulation of tables whose rows expire: no row that lives is purged, whatever clocks say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.simulation import simulate, upkeep_actors
from tests.simulation.lake import Lake, Progress, Version
from tests.simulation.scheduler import Actor, FaultRates
from tests.simulation.weather import Setup, expiring

pytestmark = pytest.mark.integration


def run(seed: int, lake: type[Lake] = Lake, **more: object) -> simulate.Outcome:
    setup = replace(expiring(Setup.of(seed)), **more)  # type: ignore[arg-type]
    with simulate.on_one_core():
        return simulate.Simulation(setup, lake).run()


def first_failure(first: int, lake: type[Lake] = Lake, **more: object) -> str:
    """What the first seed that fails says, of twenty from one on that is known to come to it."""
    for seed in range(first, first + 20):
        found = run(seed, lake, **more)
        if found.failure is not None:
            return found.failure
    raise AssertionError("no seed noticed")


def test_a_purge_by_the_host_s_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compact = upkeep_actors.Upkeep.compaction

    def by_the_host(self: upkeep_actors.Upkeep, actor: Actor) -> None:
        clock = self.jobs.open(actor).clock
        monkeypatch.setattr(upkeep_actors, "read_store_time", lambda *_: clock.now_nanos())
        compact(self, actor)

    monkeypatch.setattr(upkeep_actors.Upkeep, "compaction", by_the_host)
    assert first_failure(4, aging_fast_seconds=3600.0)[:3] in ("1: ", "5: ")


def test_a_purge_of_rows_that_were_renewed_is_noticed() -> None:
    """Of a Lance that did not see that a merge had replaced them."""

    class Blind(Lake):
        def merge(
            self, read: int, live: Mapping[int, int], gone: frozenset[int], marks: Progress
        ) -> Version:
            if gone and not live and not marks:
                return self.write("delete", {}, gone)
            return super().merge(read, live, gone, marks)

    crowded = {
        "keys": 5,
        "flushes": 0.9,
        "deletes": 0.0,
        "rates": FaultRates(delay=0.01),
        "pace": 2.0,
        "leases_on": False,
        "mergers": 3,
        "jobs": ("merge", "compaction"),
    }
    assert run(0, **crowded).failure is None
    assert first_failure(0, Blind, **crowded)[:3] in ("1: ", "5: ")
