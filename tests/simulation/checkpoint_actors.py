"""Whoever keeps moments of the table: makes checkpoints, reads them, and drops them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memwal.errors import LostRace, Missing
from memwal.format import layout
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest
from memwal.store.records.checkpoints import StoredCheckpoints
from tests.simulation.actors import OUTCOMES, Jobs
from tests.simulation.scheduler import Actor
from tests.simulation.sim_ports import SimStores

NAMES = ("daily", "export")
DROPS = 0.2
EXPIRES: tuple[float | None, ...] = (None, None, 50.0, 2000.0)


@dataclass(frozen=True)
class _Tags:
    """The Tags port."""

    stores: SimStores
    checkpointed: set[int]

    def tag(self, name: str, version: int) -> None:
        def make() -> None:
            try:
                self.stores.lake.tag(name, version)
                self.checkpointed.add(version)
            except Missing as error:
                raise LostRace(str(error)) from None

        self.stores.actor.step(f"tag {version} as {name}", make)


def keep_or_drop(jobs: Jobs, actor: Actor) -> None:
    """`memwal checkpoint create`, or `drop` where there is one of that name."""
    stores = jobs.open(actor)
    dice = actor.scheduler.dice
    checkpoints = StoredCheckpoints(stores.objects, readers_max=1)
    name = dice.choice(NAMES)
    try:
        known = [c for c in checkpoints.list() if c.name == name and c.ready]
        if known and dice.random() < DROPS:
            for checkpoint in known:
                # From here on it may be gone, whatever becomes of the drop.
                jobs.truth.checkpoints.pop(checkpoint.key, None)
                checkpoints.remove(checkpoint)
                jobs.seen["checkpoints dropped"] += 1
            return
        with jobs.lease_of(stores, "checkpoint") as lease:
            lease.is_on = True
            began = {shard: jobs.truth.flushed(shard) for shard in jobs.shards}
            made = CheckpointMaker(
                uri=stores.lake.uri,
                views=stores,
                checkpoints=checkpoints,
                tags=_Tags(stores, jobs.truth.checkpointed),
                clock=stores.clock,
                take_lease=lease.take,
                before_commit=lease.check,
            ).create(
                CheckpointRequest(
                    name=name,
                    holder=actor.name,
                    expires_seconds=dice.choice(EXPIRES),
                )
            )
            jobs.truth.promise(made, began, lagging=bool(actor.scheduler.injected["stale_listing"]))
            jobs.seen["checkpoints made"] += 1
    except OUTCOMES:
        return


def drop_all(jobs: Jobs, actor: Actor) -> None:
    """Drop every one that was finished; the others are for garbage."""
    checkpoints = StoredCheckpoints(jobs.open(actor).objects, readers_max=1)
    jobs.truth.checkpoints.clear()
    for checkpoint in checkpoints.list():
        if checkpoint.ready:
            checkpoints.remove(checkpoint)


def find_left(paths: Iterable[str]) -> list[str]:
    """Records and tags of checkpoints among the paths of a bucket."""
    marks = (f"{layout.CHECKPOINTS}/", f"_refs/tags/{layout.checkpoint_tag('')}")
    return [path for path in paths if path.startswith(marks)]
