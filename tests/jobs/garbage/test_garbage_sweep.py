"""A pass by difference looks where something changed; whatever is odd makes it a full sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import Corruption, StoreUnavailable
from memwal.format import layout
from memwal.jobs.garbage.apply.deletions import SurveyPlan, add_before
from memwal.jobs.garbage.model import Action, GarbagePlan, Item
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.jobs.garbage.store import cache
from memwal.jobs.garbage.survey import Survey
from memwal.model import ShardId
from memwal.store.objects.local import LocalObjects
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration


def collect(table: Table, **options: Any) -> GarbageTableReport:
    return runs.garbage(table, **{"sweep_objects_min": 1, **options})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = runs.collectable(tmp_path_factory.mktemp("made") / "t", shards=3, generations=1)
    for _ in range(4):
        found = collect(table)
    assert (found.outcome, found.sweep) == ("nothing_to_do", "difference")
    assert found.shards_looked_at == 0
    return table


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """Three shards, collected, and remembered as that."""
    return made.copied(tmp_path / "t")


SWEEP = f"{layout.MAINTENANCE}/cache/sweep.json"


def document(table: Table) -> Path:
    return Path(table.uri) / SWEEP


def flush(table: Table, place: int = 0, *, keys: int = 700) -> None:
    table.flush(table.shards[place], Put([keys], 1))
    for done in table.merge_all():
        assert done.error is None
    runs.catch_up(table)


def test_only_what_changed_is_looked_at(table: Table) -> None:
    flush(table, 1)
    runs.expire(table)

    found = collect(table)

    assert (found.sweep, found.shards_looked_at, found.dropped) == ("difference", 1, 1)
    assert {i.shard_id for i in found.items if i.shard_id} == {table.shards[1]}
    # The second pass finds the folder, since the grace that the first one began is over.
    again = collect(table)
    assert (again.sweep, again.shards_looked_at) == ("difference", 1)
    assert runs.folders(table, table.shards[1]) == []
    assert collect(table).outcome == "nothing_to_do"
    assert collect(table).shards_looked_at == 0


def test_a_pass_waits_for_the_grace(table: Table) -> None:
    flush(table)
    runs.expire(table)
    assert collect(table, grace=3600).dropped == 1
    assert collect(table, grace=3600).shards_looked_at == 0
    assert collect(table, grace=0).deleted > 0


def test_a_version_that_goes_lets_its_generations_go(table: Table) -> None:
    flush(table)
    held = collect(table)
    assert (held.sweep, held.shards_looked_at, held.dropped) == ("difference", 0, 0)
    foreseen = collect(table, execute=False, retention=0)
    assert any(i.action == "drop" for i in foreseen.items)
    found = collect(table, retention=0)
    assert (found.sweep, found.shards_looked_at, found.dropped) == ("difference", 1, 1)
    assert found.versions_expired > 0


def test_a_shard_that_was_never_merged_keeps_versions_though_nothing_is_known_of_it(
    table: Table,
) -> None:
    table.flush(table.add_shard(), Put([900], 1))
    table.dataset.insert(table.dataset.head(1))

    found = collect(table, retention=0)

    assert found.sweep == "difference"
    assert found.versions_expired == 0
    assert any("never merged" in w for w in found.warnings)


def test_a_shard_that_cant_be_read_is_looked_at_by_each_pass(tmp_path: Path) -> None:
    """However much holds its first generation: no version is expired before it is mended."""
    table = runs.laid_out(tmp_path / "t", shards=3, generations=1)
    table.dataset.tags.create("unmerged", 1)
    shard = table.shards[0]
    newest = layout.shard_manifest_path(shard, runs.manifest(table, shard).version)
    whole = (Path(table.uri) / newest).read_bytes()
    (Path(table.uri) / newest).write_bytes(whole[:10])
    assert collect(table).exit_code == Corruption.exit_code

    found = collect(table, retention=0)

    assert (found.sweep, found.shards_looked_at) == ("difference", 1)
    assert (found.exit_code, found.versions_expired) == (Corruption.exit_code, 0)
    (Path(table.uri) / newest).write_bytes(whole)
    assert (collect(table).shards_looked_at, collect(table).shards_looked_at) == (1, 0)


def test_what_could_not_be_deleted_is_looked_at_by_the_next_pass(table: Table) -> None:
    def fail(step: str) -> None:
        if step == "before_delete":
            raise StoreUnavailable("the store is busy")

    flush(table)
    runs.expire(table)
    assert collect(table).dropped == 1
    runs.age(table, 3600)
    assert collect(table, grace=600, sweep_seconds=0.0, steps=fail).outcome == "partial"
    again = collect(table, grace=600)
    assert (again.sweep, again.shards_looked_at, again.deleted) == ("difference", 1, 1)


def test_what_was_kept_where_nobody_looked_again_is_kept() -> None:
    """A hint or stopper is written by what was read under the lease."""
    survey = Survey(view=None, version=1, now_nanos=0)
    shard = ShardId("2a70a90a-6e31-4f15-9617-5cffd8fdc371")
    hint = Item(
        kind="shard_manifest",
        shard_id=shard,
        path=layout.version_hint_path(shard),
        bytes=0,
        action=Action.KEEP,
        reason="leads to no manifest",
        in_order=True,
        replacement=b"{}",
    )
    after = SurveyPlan(survey=survey, plan=GarbagePlan(items=()), shards=frozenset())
    before = SurveyPlan(survey=survey, plan=GarbagePlan(items=(hint,)))
    assert before.has_work
    found = add_before(after, before)
    assert [i.path for i in found.plan.items] == [hint.path]
    assert not found.has_work


def test_a_hint_that_leads_nowhere_is_looked_at_again_before_it_is_mended(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t", shards=2, generations=6)
    shard = table.shards[0]
    for _ in range(5):
        collect(table, numbered_kept_min=1)
    assert collect(table, numbered_kept_min=1).shards_looked_at == 0
    hint = Path(table.uri) / layout.version_hint_path(shard)
    right = hint.read_bytes()
    hint.write_bytes(layout.encode_version_hint(2))

    collect(table, sweep_seconds=0.0, numbered_kept_min=1)

    assert hint.read_bytes() == right
    assert collect(table, numbered_kept_min=1).shards_looked_at == 1
    assert collect(table, numbered_kept_min=1).shards_looked_at == 0


def test_a_tag_on_an_old_version_holds_what_it_needs(table: Table) -> None:
    """What passes remember says nothing of versions: these are read again."""
    table.dataset.tags.create("before", table.dataset.version)
    flush(table)
    flush(table, keys=800)
    runs.expire(table)
    found = collect(table)
    assert (found.sweep, found.dropped) == ("difference", 0)
    table.dataset.tags.delete("before")
    runs.expire(table)
    assert collect(table).dropped == 2


def torn(table: Table) -> None:
    document(table).write_bytes(document(table).read_bytes()[:-20])


def edited(table: Table) -> None:
    text = document(table).read_text()
    document(table).write_text(text.replace('"wal":false', '"wal":true'))


def rewritten(**changes: Any) -> Callable[[Table], None]:
    def rewrite(table: Table) -> None:
        found = json.loads(document(table).read_text())
        body = found["body"] | changes
        stored = {"format": cache.FORMAT, "sha256": cache.make_digest(body), "body": body}
        document(table).write_text(json.dumps(stored))

    return rewrite


def newer(table: Table) -> None:
    found = json.loads(document(table).read_text())
    document(table).write_text(json.dumps({**found, "format": cache.FORMAT + 1}))


def fallen(table: Table) -> None:
    """As after a restore, or in an index that was initialised again."""
    shards = json.loads(document(table).read_text())["body"]["shards"]
    for was in shards.values():
        was["merged_generation"] += 1
    rewritten(shards=shards)(table)


ODD: dict[str, Callable[[Table], None]] = {
    "it is torn": torn,
    "it was edited": edited,
    "a newer memwal wrote it": newer,
    "it is old": rewritten(swept_at_nanos=1),
    "it is of a time to come": rewritten(swept_at_nanos=2**62),
    "it is of a later version": rewritten(version=10**6),
    "its version is another": rewritten(version_at_nanos=5),
    "it has a shard of another name": rewritten(shards={"..": {}}),
    "it has a number that is none": rewritten(shards={"a" * 8: {"next_generation": "1"}}),
    "a shard's progress fell": fallen,
}


@pytest.mark.parametrize("spoil", ODD.values(), ids=ODD)
def test_a_sweep_is_full_when(table: Table, spoil: Callable[[Table], None]) -> None:
    spoil(table)
    before = document(table).read_bytes()
    stray = Path(table.uri) / layout.shard_folder(table.shards[2]) / "stray"
    stray.write_bytes(b"x")
    found = collect(table)
    assert found.sweep == "full"
    assert found.shards_looked_at == 3
    assert any(i.path.endswith("/stray") for i in found.items)
    stays = spoil is newer
    assert (document(table).read_bytes() == before) is stays


def test_a_sweep_is_full_when_asked_for_or_for_the_wal(table: Table) -> None:
    assert collect(table, sweep_seconds=0.0).sweep == "full"
    assert collect(table).sweep == "difference"
    assert collect(table, wal=True).sweep == "full"
    assert collect(table, wal=True).sweep == "difference"


def test_one_that_cant_be_read_ends_no_run(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a full sweep then, what is stored stays, and other tables are collected."""
    other = runs.collectable(tmp_path / "other", generations=1)
    before, get = document(table).read_bytes(), LocalObjects.get

    def fail(self: LocalObjects, path: str, *limit: Any) -> bytes:
        if path == SWEEP:
            raise StoreUnavailable("slow down")
        return get(self, path, *limit)

    monkeypatch.setattr(LocalObjects, "get", fail)
    report = runs.run(table, other, sweep_objects_min=1)
    assert [t.outcome for t in report.tables] == ["nothing_to_do", "done"]
    assert document(table).read_bytes() == before


def test_small_tables_are_always_swept_and_a_look_writes_nothing(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t")
    runs.collect(table)
    assert not document(table).exists()
    runs.garbage(table, execute=False, sweep_objects_min=1)
    assert not document(table).exists()


def test_a_forged_document_lets_nothing_go(table: Table) -> None:
    """It says where to look, and no more."""
    flush(table)  # older versions have not merged it
    shards = {shard: {"waits_since_nanos": 1} for shard in table.shards}
    rewritten(shards=shards)(table)
    found = collect(table)
    assert (found.sweep, found.shards_looked_at) == ("difference", 3)
    assert found.dropped == 0
    assert runs.folders(table) != []
