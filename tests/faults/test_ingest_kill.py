"""Ingests of operands killed with -9 once in every phase, and gone on with by the next one.

Columns are summed, appended to an ordered list and deleted: a row that is lost, written twice or
out of its key's order shows. Bad rows are set aside, each once. Between kills somebody merges now
and then.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.support.ingest_counters import CHANGES, FILES, Counters, make_counters
from tests.support.ingest_killed import PHASES, ingest_and_die_in
from tests.support.nursery import start
from tests.support.sampling import SEED

pytestmark = [pytest.mark.nightly, pytest.mark.races]

BAD_PER_FILE = 2
NTH_MAX = {"plan": 2, "claim": 3, "session": 3, "rejects": 2, "close": 3}


def test_operands_of_ingests_that_are_killed_in_every_phase_count_once(tmp_path: Path) -> None:
    counters = make_counters(tmp_path, SEED, bad_per_file=BAD_PER_FILE)
    chance, landed, left = random.Random(SEED), CHANGES, [*PHASES]
    while left:
        code = kill_in(counters, left[0], chance)
        assert code in (0, -signal.SIGKILL)
        if code == 0:  # its phase did not come so often
            check_all(counters, landed)
            counters.land()
            landed += CHANGES
            continue
        if chance.random() < 0.25:
            counters.flush_what_is_left()
            counters.merge()
        assert counters.rows_in_wal() <= landed, left[0]
        left.pop(0)
    counters.ingest()
    check_all(counters, landed)


def kill_in(counters: Counters, phase: str, chance: random.Random) -> int:
    """An ingest that is killed in a phase, or comes to its end."""
    seconds = chance.uniform(0.0, 0.02) if phase == "flush" or chance.random() < 0.3 else 0.0
    nth, progress_seconds = (
        chance.randint(1, NTH_MAX.get(phase, 8)),
        chance.choice([0.0, 0.02, 1e9]),
    )
    words = counters.words()
    with start(ingest_and_die_in, phase, nth, seconds, progress_seconds, words) as process:
        process.communicate()
    return process.wait()


def check_all(counters: Counters, landed: int) -> None:
    """Every row is there once, and every bad one was set aside once."""
    assert counters.rows_in_wal() == landed
    bad = counters.read_bad_rows()
    assert len(bad) == len({*bad}) == BAD_PER_FILE * FILES * landed // CHANGES
    truth = counters.truth()
    assert counters.read() == truth
    counters.merge()
    assert counters.table.base_rows() == truth
