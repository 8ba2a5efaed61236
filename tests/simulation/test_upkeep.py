"""Upkeep in the simulation: every actor gets to act, and what each is there for is noticed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import pytest

from memwal.jobs.garbage import apply, survey
from memwal.jobs.rescue import plan as rescue
from memwal.jobs.status import until as wait
from tests.simulation import checkpoint_actors, simulate
from tests.simulation.lake import Lake, Version
from tests.simulation.scheduler import FaultRates
from tests.simulation.upkeep_actors import UPKEEP

pytestmark = pytest.mark.integration

USUAL = ("merge", "index_catchup", "garbage")


def setup(seed: int, *jobs: str, rates: FaultRates | None = None) -> simulate.Setup:
    return simulate.Setup(
        seed=seed,
        shards=1,
        keys=4,
        rates=rates or FaultRates(),
        jobs=(*USUAL, *jobs),
        leases_on=False,
    )


def first_failure(
    jobs: Sequence[str],
    lake: type[Lake] = Lake,
    first: int = 0,
) -> str:
    """What the first seed that fails says, of twelve from one on that is known to come to it."""
    for seed in range(first, first + 12):
        found = simulate.Simulation(setup(seed, *jobs), lake).run()
        if found.failure is not None:
            return found.failure
    raise AssertionError("no seed noticed")


ACTS = (
    "compaction on ",
    "delete tag ",
    "refer to branch ",
    "delete branch ",
    "expire versions",
    "user: append",
    "user: update",
    "user: delete",
    "time_traveller-",
    "wal_reader-",
    "status-",
    "wait-",
    " as memwal-checkpoint.",
    "put _maintenance/cursors/",
)


def test_every_actor_acts_and_all_is_well() -> None:
    missing, claims = set(ACTS), 0
    for seed in range(20):
        # Time passes quickly, so that shards are idle for long enough to be rescued.
        quick = replace(setup(seed, *UPKEEP, rates=FaultRates(delay=0.05)), pace=8.0)
        outcome = simulate.run_setup(quick)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        missing -= {act for act in missing if any(act in line for line in outcome.trace)}
        chaos = outcome.trace[: next(n for n, t in enumerate(outcome.trace) if "quiet" in t)]
        claims += sum("rescue-" in t and "put_if_absent _mem_wal" in t for t in chaos)
        if claims and not missing:
            return
    raise AssertionError(f"in no seed: {missing}, {claims} claims of a rescue")


def test_rows_that_a_compaction_loses_are_noticed() -> None:
    class Forgetful(Lake):
        def rewrite(self, read: int, groups: Sequence[frozenset[int]]) -> Version:
            key = next(iter(self.latest.rows), None)
            if key is not None:
                self.write("delete", {}, frozenset({key}))
            return super().rewrite(read, groups)

    assert first_failure(["compaction"], Forgetful)[:3] in ("1: ", "5: ")


def test_a_cleanup_that_takes_a_tagged_version_is_noticed() -> None:
    class Careless(Lake):
        def expire(self, numbers: Set[int]) -> list[Version]:
            tags, self.tags = self.tags, {}
            try:
                return super().expire(numbers)
            finally:
                self.tags = tags

    assert "6: version" in first_failure(["referrer", "time_traveller", "cleaner"], Careless)


def test_garbage_that_overlooks_branches_is_noticed() -> None:
    class Unseen(Lake):
        """Its branches are nowhere to be found, and keep no version on main either."""

        def branch(self, name: str, version: int) -> None:
            self.branches[name] = self.version(version)

        def refer(self, name: str) -> None:
            pass

    assert "6: generation" in first_failure(["referrer", "cleaner"], Unseen, first=9)


def run_with_checkpoints(seed: int) -> str | None:
    """Time passes quickly, so that all but checkpoints is expired and collected."""
    quick = setup(seed, "checkpoint", rates=FaultRates(delay=0.02))
    return simulate.run_setup(replace(quick, pace=10.0, flushes=0.9)).failure


def test_garbage_that_overlooks_checkpoints_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_actors, "DROPS", 0.0)
    monkeypatch.setattr(checkpoint_actors, "EXPIRES", (None,))
    assert run_with_checkpoints(8) is None
    monkeypatch.setattr(survey.Gates, "checkpoint_holds", lambda *_: None)
    found = (failure for seed in range(8, 100) if (failure := run_with_checkpoints(seed)))
    assert "and gone" in next(found)


def test_garbage_that_overlooks_cursors_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int) -> str | None:
        quick = replace(setup(seed, "follower", rates=FaultRates(delay=0.02)), pace=10.0)
        return simulate.run_setup(quick).failure

    assert run(1) is None
    monkeypatch.setattr(apply, "find_cursor", lambda *_: None)
    found = (failure for seed in range(1, 30) if (failure := run(seed)))
    assert "cursor mart is at" in next(found)


def test_a_rescue_of_a_shard_that_is_not_idle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "_refusal", lambda *_: None)
    assert "4: a shard was claimed" in first_failure(["rescue"])


def test_a_wait_that_is_over_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "find_missing", lambda target, reached: {})
    assert "wait: " in first_failure(["wait"])
