"""Garbage of ingests on the fakes: what is read, planned and deleted, and what a rerun finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from memwal.errors import StoreUnavailable, Unsupported
from memwal.jobs.garbage.apply.deletions import Deleter, make_deletions
from memwal.jobs.garbage.kinds import ingest as kind
from memwal.jobs.garbage.kinds.ingest import IngestRound
from memwal.jobs.garbage.model import Action, Evidence, GarbageLimits, GarbagePlan
from memwal.jobs.garbage.survey import Survey
from memwal.ports import Objects
from memwal.store.records.ingests import (
    PlanRecord,
    ProgressRecord,
    Round,
    Rounds,
    StagedRecord,
    is_finished,
)
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryObjects

SHARDS = ("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11", "11111111-2222-4333-8444-555555555555")
LIMITS = GarbageLimits()
DAY = 86_400


class Ingest:
    """One ingest in memory, and the clock that dates its files."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.objects = MemoryObjects(clock=self.clock)

    def round(self, number: int = 1) -> Round:
        return Round(self.objects, "nightly", number, "run")

    def stage(self, number: int = 1, run: str = "run") -> tuple[str, ...]:
        """A file for each shard, one after the other."""
        paths = tuple(
            f"{self.round(number).folder}/staged/{run}/0/{shard}/000000.arrow" for shard in SHARDS
        )
        for path in paths:
            self.objects.put(path, b"rows")
        return paths

    def begin(self, paths: tuple[str, ...], number: int = 1) -> None:
        staged = tuple(
            StagedRecord(shard_id=shard, files=(path,), rows=1)
            for shard, path in zip(SHARDS, paths, strict=True)
        )
        self.round(number).begin(
            PlanRecord(staged=staged, chunk_rows=1, rows_per_entry_max=1, spec_id=0)
        )

    def advance(self, shard: str, *, finished: bool, number: int = 1) -> None:
        done = self.round(number).read_progress(shard).number + 1
        record = ProgressRecord(number=done, run_id="run", split=0, row=done, finished=finished)
        self.round(number).advance(shard, record)

    def seen(self, objects: Objects | None = None) -> list[IngestRound]:
        with ThreadPoolExecutor(1) as pool:
            return list(kind.read_evidence(objects or self.objects, pool))

    def plan(self, objects: Objects | None = None) -> GarbagePlan:
        survey = Survey(
            view=None,
            version=1,
            evidence=Evidence(outside={kind.NAME: self.seen(objects)}),
            limits=LIMITS,
            now_nanos=self.clock.now_nanos(),
        )
        return GarbagePlan(items=tuple(kind.find_items(survey)))

    def actions(self) -> Mapping[str, Action]:
        return {item.path.removeprefix("_maintenance/ingest/"): item.action for item in
                self.plan().items}  # fmt: skip

    def collect(self) -> None:
        plan = self.plan()
        done = Deleter(objects=self.objects, limits=LIMITS).run(make_deletions(plan))
        assert [d.error for d in done] == [None] * len(plan.deletes)

    def paths(self) -> list[str]:
        return [info.path for info in self.objects.list("")]


@pytest.fixture
def ingest() -> Ingest:
    return Ingest()


def test_after_the_collection_a_rerun_knows_that_the_ingest_is_finished(ingest: Ingest) -> None:
    ingest.begin(ingest.stage())
    for shard in SHARDS:
        ingest.advance(shard, finished=True)
    ingest.clock.advance(DAY)
    documents = [path for path in ingest.paths() if "/staged/" not in path]
    ingest.collect()
    assert ingest.paths() == documents
    plan = ingest.round().read_plan()
    assert plan is not None and is_finished(ingest.round(), plan)
    assert ingest.plan().items == ()


def test_after_it_was_given_up_a_rerun_still_finds_it_unfinished(ingest: Ingest) -> None:
    ingest.begin(ingest.stage())
    ingest.advance(SHARDS[0], finished=True)
    ingest.clock.advance(LIMITS.ingest_idle_seconds - 1)
    ingest.collect()
    assert any("/staged/" in path for path in ingest.paths())
    ingest.clock.advance(1)
    ingest.collect()
    assert not any("/staged/" in path for path in ingest.paths())
    plan = ingest.round().read_plan()
    assert plan is not None and not is_finished(ingest.round(), plan)
    assert Rounds(objects=ingest.objects, ingest_id="nightly", run_id="").list_numbers() == [1]


@pytest.mark.parametrize("path", ["*/plan.json", "*/progress/*"])
def test_documents_that_can_not_be_read_now_keep_the_rows(ingest: Ingest, path: str) -> None:
    ingest.begin(ingest.stage())
    for shard in SHARDS:
        ingest.advance(shard, finished=True)
    ingest.clock.advance(100 * DAY)
    broken = Fault(operation="get", path=path, nth=None, error=StoreUnavailable("a storm"))
    [item] = ingest.plan(FaultyObjects(ingest.objects, broken)).items
    assert item.action is Action.KEEP and "a storm" in item.reason
    [item] = ingest.plan().items
    assert item.action is Action.DELETE


def test_a_plan_that_is_stored_while_the_listing_goes_on_is_seen(ingest: Ingest) -> None:
    staged = ingest.stage()
    late = Fault(operation="list", when="after", hook=lambda: ingest.begin(staged))
    [seen] = ingest.seen(FaultyObjects(ingest.objects, late))
    assert seen.planned and not seen.finished and seen.named == set(staged)


def test_a_plan_that_is_gone_when_it_is_read_keeps_the_rows(ingest: Ingest) -> None:
    """Its round was followed by another meanwhile: the next run will see."""
    ingest.begin(ingest.stage())
    path = f"{ingest.round().folder}/plan.json"
    gone = Fault(operation="list", when="after", hook=lambda: drop(ingest.objects, path))
    ingest.clock.advance(100 * DAY)
    [item] = ingest.plan(FaultyObjects(ingest.objects, gone)).items
    assert item.action is Action.KEEP and "vanished" in item.reason


def drop(objects: Objects, path: str) -> None:
    objects.delete([path])


def test_what_belongs_to_no_ingest_is_left_alone(ingest: Ingest) -> None:
    strangers = [
        "notes.txt",
        "nightly/000001",
        "nightly/1/staged/run/x.arrow",
        "nightly/0000001/staged/run/x.arrow",
        "Nightly/000001/staged/run/x.arrow",
        f"nightly/{chr(0x660) * 6}/staged/run/x.arrow",
    ]
    for name in strangers:
        ingest.objects.put(f"_maintenance/ingest/{name}", b"x")
    ingest.clock.advance(100 * DAY)
    assert ingest.seen() == []


def test_a_plan_of_a_newer_build_is_read_unless_it_means_something_else() -> None:
    """What a newer build only adds is passed over; under another format, everything is kept."""
    there = Ingest()
    there.begin(there.stage())
    path = f"{there.round().folder}/plan.json"
    document = json.loads(there.objects.get(path))
    before = there.round().read_plan()
    there.objects.put(path, json.dumps({**document, "colour": "blue"}).encode())
    assert there.round().read_plan() == before
    there.stage(run="dead")
    there.clock.advance(2 * DAY)
    assert set(there.actions().values()) == {Action.KEEP, Action.DELETE}
    there.objects.put(path, json.dumps({**document, "format": 3}).encode())
    with pytest.raises(Unsupported, match="another version of memwal"):
        there.round().read_plan()
    assert set(there.actions().values()) == {Action.KEEP}
