"""The simulation of clones: progress that is not the table's own is never believed unseen."""

from __future__ import annotations

import pytest

from tests.simulation import simulate
from tests.simulation.weather import Setup, cloned

pytestmark = pytest.mark.integration

_NOTICED_WITHIN = 40


def test_progress_that_came_with_a_clone_is_noticed_where_a_view_believes_it() -> None:
    """The simulated views believe it: readers miss rows, or garbage takes what nobody merged."""
    failures = (
        simulate.run_setup(cloned(Setup.of(seed))).failure for seed in range(_NOTICED_WITHIN)
    )
    found = next((failure for failure in failures if failure is not None), None)

    assert found is not None
    assert "5: " in found or "6: " in found
