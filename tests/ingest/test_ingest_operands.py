"""Operands through `memwal ingest`, into a table whose rows are folded by a policy.

Here every row counts, not only a key's newest: a row that is lost or written twice shows in the
folded values. They are compared with the plain model (tests/support/policy_model.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ingest_counters import CHANGES, Counters, make_counters
from tests.support.ingest_killed import ingest_and_die
from tests.support.nursery import killed

pytestmark = pytest.mark.integration


@pytest.fixture
def counters(tmp_path: Path) -> Counters:
    return make_counters(tmp_path)


def test_operands_are_folded_exactly(counters: Counters) -> None:
    done = counters.ingest()
    assert (done["rows"], done["rows_written"], len(done["shards"])) == (CHANGES, CHANGES, 3)
    truth = counters.truth()
    assert counters.read() == truth
    counters.merge()
    assert counters.table.base_rows() == truth
    assert counters.read() == truth
    assert counters.ingest()["outcome"] == "nothing_to_do"


@pytest.mark.nightly
@pytest.mark.parametrize("merged", [False, True], ids=["merged last", "merged in between"])
def test_killed_and_resumed_half_way_each_operand_counts_once(
    counters: Counters, merged: bool
) -> None:
    for nth in (20, 35):
        assert killed(ingest_and_die, nth, counters.words())
        assert 0 < counters.rows_in_wal() < CHANGES
        if merged:
            counters.flush_what_is_left()
            counters.merge()
    # Some operands are in the base before others are read.
    assert bool(counters.table.stores.views.table().mem_wal.merged) is merged
    done = counters.ingest()
    assert (done["outcome"], done["rows"], done["resumed"]) == ("done", CHANGES, True)
    assert counters.rows_in_wal() == CHANGES
    truth = counters.truth()
    assert counters.read() == truth
    counters.merge()
    assert counters.table.base_rows() == truth
    assert counters.read() == truth
