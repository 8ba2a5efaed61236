"""Tables whose rows add up, by a row-merge policy or for want of a key: exactly at any time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from memwal.model import ShardId
from tests.simulation import simulate
from tests.simulation.lake import Lake, Version
from tests.simulation.row_rules import COUNTERS, value_of
from tests.simulation.weather import Setup, counting

pytestmark = pytest.mark.integration


def test_a_fold_with_an_older_base_is_noticed() -> None:
    class Careless(Lake):
        """Takes a merge that was folded with rows which have changed since."""

        def merge(
            self,
            read: int,
            live: Mapping[int, int],
            gone: frozenset[int],
            marks: Mapping[ShardId, int],
        ) -> Version:
            self.version(read)
            return super().merge(self.latest.number, live, gone, marks)

    found = []
    for seed in range(3, 60):  # the first that comes to it
        setup = counting(Setup.of(seed))
        found.append(simulate.Simulation(setup, Careless).run().failure)
        if found[-1] is not None:
            break

    assert "5: " in str(found[-1]), f"{len(found)} seeds noticed nothing"


@pytest.mark.parametrize(
    ("older", "newer", "wanted"),
    [
        (None, value_of(4), value_of(4)),
        (None, 7, value_of(7)),
        (None, None, None),
        (value_of(4), 7, value_of(11)),
        (value_of(4), value_of(5), value_of(5)),
        (value_of(4), None, None),
        (3, 7, 10),
        (3, value_of(4), value_of(4)),
        (3, None, None),
    ],
)
def test_the_nine_pairs(older: int | None, newer: int | None, wanted: int | None) -> None:
    together = {1: older}
    COUNTERS.onto(together, {1: newer})
    assert together == {1: wanted}
    for base in ({}, {1: value_of(100)}):
        one, other = dict(base), dict(base)
        COUNTERS.apply(one, {1: older})
        COUNTERS.apply(one, {1: newer})
        COUNTERS.apply(other, together)
        assert one == other
