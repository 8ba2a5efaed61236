"""Index catch-up and compaction killed with SIGKILL at every step: the next run ends the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from memwal.config import Settings
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.report import JobReport
from tests.support.builders import KINDS, Table
from tests.support.indexed import (
    BASE_ROWS,
    check_caught_up,
    facts,
    make_indexed,
    resolved,
    state,
    write_and_merge,
)
from tests.support.nursery import killed, start
from tests.support.progress import Quiet

pytestmark = pytest.mark.nightly

NAMES = ("key_idx", "flat_idx", "text_idx")
LIMITS = Settings(segment_rows_min=20)

# method -> the steps of its run. A vector index appends while the others build segments.
STEPS = {
    "append": ["append", "append_done"],
    "segments": ["build", "built", "commit_segments", "committed_segments"],
    "retrain": ["build", "commit_segments", "retrain", "retrain_done"],
    "record": ["record", "recorded"],
    "compaction": ["append", "rewrite", "commit", "committed", "restore", "record", "recorded"],
}


def run(table: Table, method: str, steps: Callable[[str], None] = lambda step: None) -> JobReport:
    if method == "compaction":
        return run_compaction(
            CompactionOptions(tables=[resolved(table)], engine="local", steps=steps), Quiet()
        )
    asked = "auto" if method == "record" else method
    return run_index_catchup(
        IndexCatchupOptions(
            tables=[resolved(table).with_settings(LIMITS)],
            engine="local",
            request=CatchupRequest(method=asked),  # type: ignore[arg-type]
            steps=steps,
        ),
        Quiet(),
    )


def run_and_die(uri: str, method: str, step: str) -> None:
    """Runs in a process of its own, and is killed when `step` is about to be.

    With a step that there is none of, it says when it is at work, and whoever listens kills it.
    """

    def steps(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)
        print(name, flush=True)

    run(Table(uri=uri, kind=KINDS["int64"]), method, steps)


@pytest.fixture(scope="module")
def uncovered(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Three merges that no index covers."""
    table = make_indexed(tmp_path_factory.mktemp("uncovered") / "t", NAMES)
    write_and_merge(table, 1, 2, 3)
    return table


@pytest.fixture(scope="module")
def unrecorded(uncovered: Table, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The same, covered but with the entries gone."""
    table = uncovered.copied(tmp_path_factory.mktemp("unrecorded") / "t")
    assert run(table, "append").exit_code == 0
    table.dataset.optimize.compact_files(target_rows_per_fragment=10 * BASE_ROWS)
    assert not state(table).index_catchup
    return table


@pytest.fixture
def table(method: str, uncovered: Table, unrecorded: Table, tmp_path: Path) -> Table:
    """What the method has to work on."""
    return (unrecorded if method == "record" else uncovered).copied(tmp_path / "t")


@pytest.fixture(scope="module")
def unharmed(
    uncovered: Table, unrecorded: Table, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], object]:
    """How a run of the method ends that nobody kills."""

    @cache
    def end(method: str) -> object:
        original = unrecorded if method == "record" else uncovered
        table = original.copied(tmp_path_factory.mktemp("unharmed") / "t")
        assert run(table, method).exit_code == 0
        return end_state(table)

    return end


def end_state(table: Table) -> object:
    """What two runs must agree on: rows, coverage, progress. Not the way that led there."""
    found = facts(table)
    covered = {i.name: not found.uncovered(i) for i in found.indexes}
    return (
        sorted(table.base_rows().items()),
        covered,
        {name: dict(entry) for name, entry in state(table).index_catchup.items()},
        len(found.fragments),
    )


def finish_like_an_unharmed_run(table: Table, method: str, unharmed: object) -> None:
    """On the same host, at once: the lease of a run whose process is gone is taken over."""
    claim = table.stores.leases.current()
    assert claim is not None
    assert run(table, method).exit_code == 0
    check_caught_up(table, NAMES)
    assert end_state(table) == unharmed
    assert run(table, "record").outcome == "nothing_to_do"


@pytest.mark.parametrize(
    ("method", "step"), [(method, step) for method, steps in STEPS.items() for step in steps]
)
def test_a_run_killed_at_a_step(
    table: Table, unharmed: Callable[[str], object], method: str, step: str
) -> None:
    rows = table.lsm_rows()
    assert killed(run_and_die, table.uri, method, step)
    assert table.lsm_rows() == rows
    finish_like_an_unharmed_run(table, method, unharmed(method))
    assert table.lsm_rows() == rows


@pytest.mark.parametrize("milliseconds", [3, 30])
@pytest.mark.parametrize("method", ["append", "segments", "compaction"])
def test_a_run_killed_at_any_time(
    table: Table, unharmed: Callable[[str], object], method: str, milliseconds: int
) -> None:
    with start(run_and_die, table.uri, method, "never") as process:
        process.stdout.readline()
        time.sleep(milliseconds / 1000)
        process.kill()
        process.communicate(timeout=120)
    finish_like_an_unharmed_run(table, method, unharmed(method))
