"""The order of a run's steps, on a table in memory where there is something to do in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memwal.errors import LeaseHeld
from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.apply.deletions import Deleter
from memwal.jobs.garbage.model import GarbageLimits
from memwal.model import FlushedGeneration
from memwal.run.progress import SILENT
from memwal.testing import ManualClock
from tests.simulation.sim_ports import SimExpiry, data_path
from tests.store.race_worlds import LakeWorld

LIMITS = GarbageLimits(grace_seconds=60.0, wal=True, drops_in_flight_max=1)
HOUR = 3600.0


class Recorded:
    """A port whose calls are written down."""

    def __init__(self, calls: list[str], port: object, **told: Callable[..., str]) -> None:
        self._calls, self._port, self._told = calls, port, told

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in self._told:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls.append(self._told[name](*arguments, **named))
            return found(*arguments, **named)

        return call


class World(LakeWorld):
    """One dropped generation and one to be dropped, both merged, and old versions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.lost = False
        for number in (1, 2):
            self.flush(self.shards[0], {number: number})
            self.lake.merge(
                self.lake.latest.number, {number: 1}, frozenset(), {self.shards[0]: number}
            )
            for name in ("key_idx", "n_idx"):
                self.indexes.append([name], 0)
            self._actor.clock.advance(HOUR)
            if number == 1:
                self.collect()
        self.calls.clear()

    def collect(self, **settings: Any) -> TableGarbage:
        calls, stores = self.calls, self.stores

        def check() -> None:
            calls.append("ask for the lease")
            if self.lost:
                raise LeaseHeld("superseded")

        evidence = Recorded(
            calls,
            stores.evidence,
            read=lambda *_, verified, **__: f"look{', trusting nobody' * verified}",
            store_now_nanos=lambda name: "ask for the time",
            remember=lambda before: "remember",
        )
        table = TableGarbage(
            uri="sim://t",
            views=Recorded(calls, stores, table=lambda probed=False: "view"),  # type: ignore[arg-type]
            expiry=Recorded(  # type: ignore[arg-type]
                calls, SimExpiry(stores), expire_versions=lambda seconds: "expire"
            ),
            manifests=Recorded(calls, stores.manifests, commit=lambda *_: "drop"),  # type: ignore[arg-type]
            objects=stores.objects,
            prove_store=lambda: None,
            take_lease=lambda: calls.append("take the lease"),
            before_commit=check,
            progress=SILENT,
            **{
                "evidence": evidence,
                "clock": self._actor.clock,
                "limits": LIMITS,
                "acts": True,
                "retention_seconds": 60.0,
            }
            | settings,
        )
        table.preview()
        objects = Recorded(calls, stores.objects, delete=lambda paths: "delete")
        deleter = Deleter(objects=objects, limits=LIMITS, before_commit=check)  # type: ignore[arg-type]
        collect_garbage([table], lambda batches: [deleter.run(batch) for batch in batches])
        return table


@pytest.fixture
def world() -> World:
    return World()


def test_every_step_in_its_order(world: World) -> None:
    done = world.collect()
    assert (done.error, len(done.dropped), [d.error for d in done.deleted]) == (None, 1, [None])
    assert world.calls == [
        "view", "look",
        "take the lease", "ask for the time",
        "view", "look", "ask for the lease", "expire",
        "view", "look, trusting nobody",
        "ask for the lease", "drop",
        "remember",
        "ask for the lease", "delete",
        "view", "look, trusting nobody",
    ]  # fmt: skip


def test_a_fast_clock_is_noticed_however_long_the_store_takes_to_tell(world: World) -> None:
    class Fast(ManualClock):
        def now_nanos(self) -> int:
            return world._actor.clock.now_nanos() + round(HOUR * 1e9)

    class Slow:
        def store_now_nanos(self, name: str) -> int:
            world._actor.clock.advance(2 * HOUR)
            return world.stores.evidence.store_now_nanos(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(world.stores.evidence, name)

    done = world.collect(clock=Fast(), evidence=Slow())
    assert done.error is None
    assert done.ahead_nanos >= HOUR * 1e9


def test_without_a_retention_nothing_is_expired_nor_looked_at_for_that(world: World) -> None:
    world.lake.expire(world.lake.aged(0.0))
    world.collect(retention_seconds=None)
    assert world.calls[:7] == [
        "view", "look", "take the lease", "ask for the time", "view", "look, trusting nobody",
        "ask for the lease",
    ]  # fmt: skip


def test_a_run_that_only_lists_looks_once(world: World) -> None:
    world.collect(acts=False)
    assert world.calls == ["view", "look"]


def test_a_lease_that_is_lost_before_the_expiry_ends_the_run(world: World) -> None:
    world.lost = True
    versions = dict(world.lake.versions)
    done = world.collect()
    assert isinstance(done.error, LeaseHeld)
    assert (done.dropped, done.deleted, world.lake.versions) == ((), [], versions)
    assert world.calls[-1] == "ask for the lease"


def test_an_idle_run_takes_no_lease(world: World) -> None:
    for _ in range(2):
        world.collect()
        world._actor.clock.advance(HOUR)
    world.calls.clear()
    world.collect()
    assert world.calls == ["view", "look", "remember"]


def test_what_a_run_drops_it_leaves_where_it_is(world: World) -> None:
    world.collect()
    path = data_path(world.shards[0], FlushedGeneration(generation=2, path="00000002_gen_2"))
    assert world.stores.objects.exists(path)
