"""Garbage runs that are killed, raced, refused by the store, or robbed of their lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import LostRace, StoreUnavailable
from memwal.format import layout
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply.deletions import Deleter, GenerationDropper, make_deletions
from memwal.jobs.garbage.model import Action, GarbageLimits, GarbagePlan, Item
from memwal.jobs.garbage.survey import Survey
from memwal.model import ShardId, ShardManifest, ShardStatus
from memwal.ports import DeleteResult, Objects
from memwal.run import stores as _wiring
from memwal.store.objects.opening import open_objects
from memwal.store.shards.manifests import ShardManifests
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryObjects
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import KINDS, Put, Table
from tests.support.nursery import killed

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


# ---- kill -9

STEPS = ["before_expire", "before_drop", "dropped", "before_delete", "mid_delete"]


def run_and_die(uri: str, step: str) -> None:
    """Runs in a process of its own, until nothing is left to do or `step` is about to be taken."""

    def steps(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    table = Table(uri=uri, kind=KINDS["int64"])
    for _ in range(5):
        runs.run(table, steps=steps, **OPTIONS)


OPTIONS: dict[str, Any] = {
    "retention": 0,
    "wal": True,
    "lease": False,
    "delete_call_objects_max": 3,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two shards with everything still to do; each test takes a copy."""
    table = runs.laid_out(tmp_path_factory.mktemp("garbage") / "t", shards=2, generations=2)
    table.flush(table.shards[0], Put([900], 1))
    return table


@pytest.fixture(scope="module")
def wanted(original: Table, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The end state without a kill."""
    table = original.copied(tmp_path_factory.mktemp("unharmed") / "t")
    runs.collect(table, **OPTIONS)
    return runs.files(table)


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_is_finished_by_the_next(
    original: Table, wanted: dict[str, int], tmp_path: Path, step: str
) -> None:
    table = original.copied(tmp_path / "t")
    truth, epochs = table.truth(), builders.epochs(table)
    assert killed(run_and_die, table.uri, step)
    assert runs.files(table) != wanted
    builders.same_rows(table.lsm_rows(), truth, "after the kill")
    runs.age(table, 25 * 3600, "_maintenance/tmp")  # what it had staged goes after a day
    runs.collect(table, **OPTIONS)
    builders.same_rows(table.lsm_rows(), truth, "at the end")
    assert builders.epochs(table) == epochs
    assert runs.files(table) == wanted


def test_what_is_left_of_a_half_deleted_generation_is_no_table(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t", generations=1)
    (generation,) = runs.manifest(table).flushed_generations
    runs.garbage(table)
    seen: list[list[str]] = []

    def steps(name: str) -> None:
        if name == "mid_delete":
            left = runs.files(table, f"{layout.shard_folder(table.shards[0])}/{generation.path}")
            seen.append([p for p in left if "/_versions/" in p])
            assert left
            with pytest.raises(ValueError, match="not found"):
                builders.lance.dataset(
                    f"{table.uri}/{layout.shard_folder(table.shards[0])}/{generation.path}"
                )

    runs.garbage(table, steps=steps)
    assert seen == [[]]


# ---- beside a live writer


def test_a_drop_that_loses_its_race_is_redone_on_what_the_winner_left(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t")
    flushed: list[int] = []

    def steps(name: str) -> None:
        if name == "before_drop" and not flushed:
            flushed.append(table.flush(table.shards[0], Put([700], 1)))

    report = runs.garbage(table, steps=steps)
    assert (report.outcome, report.dropped) == ("done", 3)
    assert runs.listed(table) == flushed == [4]
    assert runs.manifest(table).current_generation == 5
    builders.same_rows(table.lsm_rows(), table.truth(), "LSM read")


# ---- drops, in memory

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def in_memory(*faults: Fault) -> tuple[FaultyObjects, ShardManifests]:
    objects = FaultyObjects(MemoryObjects(), *faults)
    manifests = ShardManifests(objects)
    first = ShardManifest(
        shard_id=SHARD,
        version=1,
        writer_epoch=3,
        current_generation=3,
        replay_after_wal_entry_position=7,
        flushed_generations=tuple(
            runs.builders.FlushedGeneration(generation=n, path=f"0a1b2c3d_gen_{n}") for n in (1, 2)
        ),
    )
    manifests.commit(None, first)
    return objects, manifests


def drop_of(*numbers: int) -> GarbagePlan:
    return GarbagePlan(
        items=tuple(
            Item(
                kind="generation",
                shard_id=SHARD,
                path=f"{layout.shard_folder(SHARD)}/0a1b2c3d_gen_{n}",
                bytes=1,
                action=Action.DROP,
                reason="",
                generation=n,
            )
            for n in numbers
        )
    )


def dropper(manifests: ShardManifests, **settings: Any) -> GenerationDropper:
    return GenerationDropper(manifests=manifests, clock=ManualClock(), **settings)


def latest(manifests: ShardManifests) -> ShardManifest:
    found = manifests.latest(SHARD)
    assert found is not None
    return found


def ignore(done: int) -> None: ...


def test_a_lost_reply_to_a_drop_is_found_landed() -> None:
    lost = Fault(operation="put_if_absent", nth=2, when="after", error=StoreUnavailable("no reply"))
    _, manifests = in_memory(lost)
    (done,) = dropper(manifests).run(drop_of(1), ignore)
    assert (done.error, latest(manifests).version) == (None, 2)
    assert [g.generation for g in latest(manifests).flushed_generations] == [2]


def test_a_drop_gives_up_after_so_many_lost_races() -> None:
    _, manifests = in_memory()

    def overtake(step: str) -> None:
        if step == "before_drop":
            current = latest(manifests)
            manifests.commit(current, current)

    (done,) = dropper(manifests, steps=overtake, limits=GarbageLimits(drop_attempts_max=4)).run(
        drop_of(1), ignore
    )
    assert isinstance(done.error, LostRace)
    assert done.attempts == 4
    assert len(latest(manifests).flushed_generations) == 2


def test_a_drop_that_someone_else_made_writes_nothing() -> None:
    _, manifests = in_memory()
    dropper(manifests).run(drop_of(1, 2), ignore)
    (done,) = dropper(manifests).run(drop_of(1, 2), ignore)
    assert (done.error, latest(manifests).version) == (None, 2)


def test_a_shard_that_is_sealed_meanwhile_is_left_alone() -> None:
    _, manifests = in_memory()
    current = latest(manifests)
    manifests.commit(current, builders.replace(current, status=ShardStatus.SEALED))
    (done,) = dropper(manifests).run(drop_of(1), ignore)
    assert done.error is not None
    assert done.error.exit_code == 5
    assert latest(manifests).version == 2


# ---- failing deletes


class Stubborn:
    """A store that will not delete some objects, by a part of their path."""

    def __init__(self, inner: Objects, part: str) -> None:
        self._inner = inner
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        wanted = list(paths)
        kept = [p for p in wanted if self._part in p]
        done = self._inner.delete([p for p in wanted if self._part not in p])
        return DeleteResult(deleted=done.deleted, failed=tuple((p, "AccessDenied") for p in kept))


@pytest.mark.parametrize("part", ["bloom_filter.bin", "_versions/"])
def test_a_failed_delete_is_told_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    table = runs.collectable(tmp_path / "t")
    truth = table.truth()
    runs.garbage(table)
    with monkeypatch.context() as patch:
        patch.setattr(_wiring, "open_objects", lambda *a: Stubborn(open_objects(*a), part))
        report = runs.garbage(table)
    assert (report.outcome, report.exit_code, report.deleted) == ("partial", 6, 0)
    errors = [item.error for item in report.items if item.error is not None]
    assert len(errors) == 3 and all("AccessDenied" in error for error in errors)
    assert runs.folders(table) == [1, 2, 3]
    if part == "_versions/":
        assert all((f / "bloom_filter.bin").exists() for f in generation_folders(table))
    again = runs.garbage(table)
    assert (again.outcome, again.deleted) == ("done", 3)
    assert runs.folders(table) == []
    builders.same_rows(table.lsm_rows(), truth, "LSM read")


def generation_folders(table: Table) -> list[Path]:
    return sorted((Path(table.uri) / layout.shard_folder(table.shards[0])).glob("*_gen_*"))


def test_a_store_that_goes_away_leaves_the_rest_to_the_next_run(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t")
    runs.garbage(table)
    deletions = make_deletions(plan_of(table))
    gone = Fault(operation="delete", nth=3, error=StoreUnavailable("gone"))
    objects = FaultyObjects(table.stores.objects, gone)
    done = Deleter(objects=objects, limits=GarbageLimits(delete_call_objects_max=2)).run(deletions)
    assert sum(d.error is not None for d in done) >= 1
    assert 0 < sum(d.objects for d in done) < sum(len(s) for d in deletions for s in d.stages)
    runs.collect(table)
    assert runs.folders(table) == []


def plan_of(table: Table) -> GarbagePlan:
    from memwal.jobs.garbage.plan import plan_garbage

    stores, limits = table.stores, GarbageLimits(grace_seconds=0)
    now = stores.clock.now_nanos()
    view = stores.views.table()
    evidence = runs.evidence_of(table).read(
        {s.shard_id: s.manifest for s in view.shards}, limits=limits, now_nanos=now, verified=True
    )
    return plan_garbage(
        Survey(view=view, version=view.version, evidence=evidence, limits=limits, now_nanos=now)
    )


# ---- what must never be


@pytest.mark.parametrize(
    ("check", "in_order"),
    [("check_item", False), ("check_item", True), ("invariants.check_writer_untouched", None)],
)
def test_a_broken_invariant_ends_its_table_only_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, in_order: bool | None
) -> None:
    odd, well = runs.collectable(tmp_path / "odd"), runs.collectable(tmp_path / "well")
    if in_order is not None:
        assert runs.run(odd, well).outcome == "done"
    before = runs.files(odd)

    def broken(found: Any, *_: Any) -> None:
        if getattr(found, "in_order", None) == in_order and odd.shards[0] in (
            getattr(found, "shard_id", None),
            *getattr(found, "path", "").split("/"),
        ):
            raise InvariantBroken(10, "it is another's")

    monkeypatch.setattr(f"memwal.jobs.garbage.apply.deletions.{check}", broken)
    report = runs.run(odd, well)
    assert (report.outcome, report.exit_code) == ("partial", 6)
    failed, done = report.tables
    assert (failed.outcome, failed.exit_code) == ("failed", 1)
    assert f"{odd.uri}: invariant 10: it is another's. A bug in memwal" in str(failed.error)
    assert (done.outcome, done.error) == ("done", None)
    assert runs.files(odd) == before
    assert runs.listed(well) == []
    monkeypatch.undo()
    runs.collect(odd)
    assert not runs.folders(odd)


# ---- the lease


@pytest.mark.parametrize(
    ("step", "retention"), [("before_drop", None), ("before_delete", None), ("before_expire", 0)]
)
def test_a_run_that_lost_its_lease_goes_no_further(
    tmp_path: Path, step: str, retention: float | None
) -> None:
    table = runs.collectable(tmp_path / "t", shards=2)
    if step == "before_delete":
        runs.garbage(table)
    if step == "before_expire":
        table.flush(table.shards[0], Put([700], 1))
        table.merge_all()
    broken: list[int] = []

    def steps(name: str) -> None:
        if name == step and not broken:
            claim = table.stores.leases.break_("test")
            assert claim is not None
            broken.append(claim.token)

    report = runs.run(
        table, retention=retention, steps=steps, delete_call_objects_max=2, drops_in_flight_max=1
    )
    assert broken
    # The step under way is finished: a lease saves work, it is no lock.
    listed = [len(runs.listed(table, s)) for s in table.shards]
    if step == "before_drop":
        assert (report.exit_code, sorted(listed)) == (6, [0, 3])
    elif step == "before_expire":
        assert (report.exit_code, sorted(listed)) == (6, [3, 4])  # versions were expired
    else:
        assert report.exit_code == 6
        assert sum(len(runs.folders(table, s)) for s in table.shards) == 6


def test_no_version_expires_once_the_lease_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memwal.run.tables import OpenTable

    table = runs.laid_out(tmp_path / "t")
    versions, take = table.versions(), OpenTable.take_lease

    def take_and_lose(self: OpenTable, *args: Any, **options: Any) -> None:
        take(self, *args, **options)
        table.stores.leases.break_("test")

    monkeypatch.setattr(OpenTable, "take_lease", take_and_lose)
    runs.run(table, retention=0)
    assert table.versions() == versions


def test_the_plan_is_made_again_under_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed between the first look and the lease counts: here, a version came back."""
    table = runs.laid_out(tmp_path / "t")
    version = max(v for v in table.versions() if not table.progress(v))
    (stored,) = (tmp_path / "t/_versions").glob(layout.table_manifest_names(version)[0])
    aside = stored.rename(tmp_path / "aside")
    runs.expire(table)
    from memwal.run.tables import OpenTable

    take = OpenTable.take_lease

    def late(self: OpenTable, *args: Any, **options: Any) -> None:
        take(self, *args, **options)
        aside.rename(stored)

    monkeypatch.setattr(OpenTable, "take_lease", late)
    report = runs.garbage(table)
    assert report.outcome == "nothing_to_do"
    assert runs.listed(table) == [1, 2, 3]
