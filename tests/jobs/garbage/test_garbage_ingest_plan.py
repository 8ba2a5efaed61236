"""What of an ingest is garbage: each rule alone, one spoilt at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply.deletions import make_deletions
from memwal.jobs.garbage.kinds import ingest
from memwal.jobs.garbage.kinds.ingest import IngestRound, StagedRows
from memwal.jobs.garbage.model import Action, Evidence, GarbageLimits, GarbagePlan, Item
from memwal.jobs.garbage.plan import plan_garbage
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile

SECOND = 10**9
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
NOW = 1_000 * DAY
LIMITS = GarbageLimits(grace_seconds=3600, ingest_idle_seconds=14 * 86_400)
GRACE, IDLE = NOW - HOUR, NOW - 14 * DAY
"""What is as old as this, or older, is out of the grace, or idle."""


def folder(number: int = 1) -> str:
    return f"_maintenance/ingest/nightly/{number:06d}"


def file(path: str, at: int) -> StoredFile:
    return StoredFile(path=path, size_bytes=10, modified_at_nanos=at)


def rows(run: str, *ages: int, number: int = 1) -> StagedRows:
    path = f"{folder(number)}/staged/{run}"
    return StagedRows(
        path=path, files=tuple(file(f"{path}/0/{n}.arrow", at) for n, at in enumerate(ages))
    )


def unplanned(*ages: int) -> IngestRound:
    return IngestRound(ingest_id="nightly", number=1, staged=(rows("dead", *ages),))


def planned(at: int, *, finished: bool, number: int = 1, staged: bool = True) -> IngestRound:
    """A round whose newest file, its progress, is of that time."""
    named = rows("run", at - DAY, at - DAY, number=number)
    return IngestRound(
        ingest_id="nightly",
        number=number,
        records=(
            file(f"{folder(number)}/plan.json", at - DAY),
            file(f"{folder(number)}/progress/all/000000000003.json", at),
        ),
        staged=(named,) if staged else (),
        planned=True,
        finished=finished,
        named=frozenset(f.path for f in named.files),
    )


def plan(*rounds: IngestRound) -> list[Item]:
    return list(ingest.find_items(survey(*rounds)))


def survey(*rounds: IngestRound) -> Survey:
    """At a table whose MemWAL index is gone: ingests go by the same rules."""
    evidence = Evidence(outside={ingest.NAME: rounds})
    return Survey(view=None, version=1, evidence=evidence, limits=LIMITS, now_nanos=NOW)


def one(*rounds: IngestRound) -> Item:
    [item] = plan(*rounds)
    assert item.kind == "ingest"
    assert bool(item.stages) == (item.action is Action.DELETE)
    return item


def kept(item: Item, text: str) -> bool:
    assert text in item.reason
    return item.action is Action.KEEP


def test_rows_without_a_plan_go_when_nothing_was_added_for_the_idle_time() -> None:
    gone = one(unplanned(IDLE - DAY, IDLE))
    assert (gone.action, gone.path, gone.bytes) == (
        Action.DELETE,
        folder() + "/staged/dead",
        20,
    )
    assert gone.reason == "staged by a run that stored no plan; untouched for 14.0 days"
    assert kept(one(unplanned(IDLE - DAY, IDLE + 1)), "may be staged by a run that goes on")


def test_a_run_that_goes_on_holds_the_rows_of_the_round() -> None:
    """Which of the two dead or slow runs will store the plan, nobody knows."""
    going = replace(unplanned(IDLE), staged=(rows("dead", IDLE), rows("alive", GRACE)))
    assert [item.action for item in plan(going)] == [Action.KEEP, Action.KEEP]


def test_finished_rows_go_after_the_grace() -> None:
    gone = one(planned(GRACE, finished=True))
    assert (gone.action, gone.objects) == (Action.DELETE, 2)
    assert "all of it is in the MemWAL" in gone.reason
    # The documents, by which a rerun knows that there is nothing to do, stay.
    assert {f.path for stage in gone.stages for f in stage} == planned(GRACE, finished=True).named
    assert kept(one(planned(GRACE + 1, finished=True)), "younger than the grace")


def test_unfinished_rows_stay_until_they_were_untouched_for_the_idle_time() -> None:
    held = one(planned(IDLE + 1, finished=False))
    assert kept(held, "needed to finish its ingest, by the same command")
    assert "14 days" in held.reason
    gone = one(planned(IDLE, finished=False))
    assert gone.action is Action.DELETE
    assert "nobody resumed it for 14.0 days" in gone.reason


def test_rows_that_the_plan_does_not_name_go_after_the_grace_though_it_is_unfinished() -> None:
    mine, other = rows("run", GRACE), rows("slower", GRACE)
    found = replace(planned(NOW, finished=False), staged=(mine, other))
    first, second = plan(found)
    assert kept(first, "needed to finish")
    assert (second.action, second.path) == (Action.DELETE, other.path)
    assert "nobody reads these" in second.reason
    young = replace(found, staged=(mine, rows("slower", GRACE + 1)))
    assert kept(plan(young)[1], "younger than the grace")


def test_files_of_a_lost_attempt_stay_with_those_that_count() -> None:
    found = planned(NOW, finished=False)
    attempts = replace(found.staged[0], files=(*found.staged[0].files, file("x", 0)))
    assert kept(one(replace(found, staged=(attempts,))), "needed to finish")


@pytest.mark.parametrize("finished", [True, False])
def test_what_can_not_be_read_keeps_them(finished: bool) -> None:
    torn = replace(planned(IDLE, finished=finished), problem="plan.json: torn")
    assert kept(one(torn), "can't be told: plan.json: torn")


def test_documents_alone_are_no_garbage() -> None:
    assert plan(planned(0, finished=True, staged=False)) == []
    assert plan(planned(0, finished=False, staged=False)) == []


def test_a_round_that_was_followed_goes_whole_and_its_rows_first() -> None:
    past, latest = planned(GRACE, finished=True), planned(NOW, finished=False, number=2)
    first, second = plan(past, latest)
    assert (first.action, first.path, first.objects) == (Action.DELETE, folder(1), 4)
    assert [len(stage) for stage in first.stages] == [2, 2]
    assert all("/staged/" in f.path for f in first.stages[0])
    assert kept(second, "needed to finish")
    young = planned(GRACE + 1, finished=True)
    assert kept(plan(young, latest)[0], "younger than the grace")


def test_a_round_without_a_plan_follows_none() -> None:
    past = planned(0, finished=True, staged=False)
    begun = replace(unplanned(), number=2, staged=(rows("dead", NOW, number=2),))
    assert kept(one(past, begun), "may be staged")


def test_the_rounds_of_another_ingest_are_its_own() -> None:
    other = replace(planned(NOW, finished=False, number=2, staged=False), ingest_id="hourly")
    assert plan(planned(0, finished=True, staged=False), other) == []


def test_a_table_whose_memwal_index_is_gone_goes_by_the_same_rules() -> None:
    [item] = plan_garbage(survey(planned(GRACE, finished=True))).items
    assert (item.kind, item.action) == ("ingest", Action.DELETE)


def test_only_staged_rows_and_whole_rounds_are_deleted() -> None:
    items = plan(planned(GRACE, finished=True), planned(GRACE, finished=True, number=2))
    assert [d.path for d in make_deletions(GarbagePlan(items=tuple(items)))] == [
        folder(1),
        f"{folder(2)}/staged/run",
    ]
    for path in (f"{folder()}/plan.json", f"{folder()}/sessions", "_maintenance/ingest/nightly"):
        forged = replace(items[0], path=path)
        with pytest.raises(InvariantBroken, match="invariant 10"):
            make_deletions(GarbagePlan(items=(forged,)))
