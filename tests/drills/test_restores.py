"""Seconds of torture for restores; `make drill` takes minutes. And what its judge finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills import restores
from tests.drills.backups import Run
from tests.drills.restores import Restored, Session, find_untold, judge_moment
from tests.drills.tables import Rows
from tests.support.sampling import many


@pytest.mark.integration
@pytest.mark.long
def test_what_a_restore_brings_back_and_what_it_cuts(tmp_path: Path) -> None:
    verdict = restores.torture(tmp_path / "t", seconds=many(60, 5), seed=3)
    assert verdict.findings == []
    assert verdict.restores and len(verdict.moments) > 3


def rows(*numbers: int) -> Rows:
    """What is there of writer 0 when these of its puts are."""
    found: Rows = {(n + 1,): {"n": n} for n in numbers}
    return {**found, (0,): {"n": max(numbers)}} if numbers else found


OLD = Session(opening=1, opened=2, begun={0: 3, 1: 5, 2: 20}, acked={0: 4, 1: 6, 2: 60})
BETWEEN = Session(opening=25, opened=26, begun={3: 27}, acked={3: 28})
NEW = Session(opening=31, opened=32, begun={4: 33, 5: 35, 6: 90}, acked={4: 34, 5: 36})
RESTORED = Restored(backup="b", begin=10, end=30)
READ = Run(name="read", begin=40, end=50, exit=0, said="")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (rows(0, 4, 5), None),
        (rows(0, 3, 4, 5), None),
        (rows(4, 5), "1 of the puts that b has are lost"),
        (rows(0, 4), "acknowledged puts [5] are lost"),
        (rows(0, 5), "acknowledged puts [4] are lost"),
        (rows(0, 1, 4, 5), "puts [1] were cut by the restore of 'b'"),
        (rows(0, 4, 5, 6), "puts [6] were cut by the restore of 'b'"),
        ({**rows(0, 4, 5), (0,): {"n": 4}}, "put 5 beside put 4"),
    ],
)
def test_a_moment_after_a_restore(found: Rows, problem: str | None) -> None:
    sessions = [OLD, BETWEEN, NEW]
    problems = judge_moment(sessions, [RESTORED], {"b": rows(0)}, READ, found, 0)
    assert problems == ([] if problem is None else [problem])


def test_a_session_from_before_is_told() -> None:
    assert find_untold([OLD, BETWEEN, NEW], [RESTORED]) == []
    late = Session(opening=1, opened=2, begun={7: 70}, acked={7: 71})
    (found,) = find_untold([late], [RESTORED])
    assert found.startswith("put 7 was acknowledged")
