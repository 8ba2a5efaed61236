"""Each test has one level, by which it can be selected."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.support import sampling
from tests.support.levels import LEVELS, levels

ROOT = Path(__file__).resolve().parents[2]
# The fakes and real tables; the fakes and S3; Spark and more; what races.
SAMPLES = {
    "tests/jobs/merge/test_turns.py": {"pure", "table"},
    "tests/store/test_run_records.py": {"pure", "server"},
    "tests/store/test_holes.py": {"table"},
    "tests/run/test_submit.py": {"pure", "jvm"},
    "tests/read/test_read_race.py": {"long"},
}


class Collected:
    """The tests that a pytest has selected."""

    items: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect(*words: str) -> list[pytest.Item]:
    """The selected tests of a pytest in this process."""
    collected = Collected()
    given = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *words]
    assert pytest.main(given, plugins=[collected]) in (0, 5)
    return collected.items


def test_every_test_has_one(request: pytest.FixtureRequest) -> None:
    wrong = {item.nodeid: levels(item) for item in request.session.items if len(levels(item)) != 1}
    assert wrong == {}


@pytest.fixture(scope="module")
def sampled() -> list[pytest.Item]:
    return collect(*(str(ROOT / file) for file in SAMPLES))


def test_it_is_what_the_test_needs(sampled: list[pytest.Item]) -> None:
    found: dict[str, set[str]] = {}
    for item in sampled:
        found.setdefault(item.path.relative_to(ROOT).as_posix(), set()).update(levels(item))
    assert found == SAMPLES


@pytest.mark.parametrize("level", [each for each in LEVELS if each != "airflow"])
def test_it_can_be_selected(sampled: list[pytest.Item], level: str) -> None:
    selected = collect("-m", level, *(str(ROOT / file) for file in SAMPLES))
    wanted = [item.nodeid for item in sampled if levels(item) == {level}]
    assert sorted(item.nodeid for item in selected) == sorted(wanted)
    assert wanted


def test_a_part_has_each_value_and_of_three_axes_each_pair() -> None:
    assert sampling.part_of([1, 2, 3], "ab") == [(1, "a"), (2, "b"), (3, "a")]
    axes = [1, 2, 3], "ab", [True, False]
    part = sampling.part_of(*axes)
    assert len(part) == 6
    assert {case[:2] for case in part} == set(product(*axes[:2]))
    assert {case[1:] for case in part} == set(product(*axes[1:]))


def test_the_whole_has_all_of_it() -> None:
    part, whole = (sampling.grid([1, 2], "ab", whole=whole) for whole in (False, True))
    assert [each.values for each in whole] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert [each.values for each in part] == [(1, "a"), (2, "b")]
    assert all(mark.name == "long" for each in whole for mark in each.marks)
