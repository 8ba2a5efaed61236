"""Garbage planning: each gate alone keeps what it guards, and every candidate says why.

`world()` is a table of which something of every kind may go. Each test spoils one thing about it:
taken out, the gate that it is about would let the candidate go, and the test would fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.cli.requests import parse_duration
from memwal.config import Settings, make_settings
from memwal.errors import Corruption, Refused, Usage
from memwal.format import layout
from memwal.format.replay import SENTINEL_BYTES_MAX
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply.deletions import check_below, make_deletions
from memwal.jobs.garbage.kinds import KINDS, leftover, snapshot
from memwal.jobs.garbage.kinds.generation import split_stages
from memwal.jobs.garbage.kinds.wal_entry import (
    find_coverable,
    find_earlier,
    find_unknown,
    hold_for_claims,
    infer_epochs,
)
from memwal.jobs.garbage.model import (
    Action,
    Evidence,
    GarbageLimits,
    GarbagePlan,
    GenerationFolder,
    Item,
    RetainedVersion,
    ShardEvidence,
    StoredManifest,
    WalFile,
    past_version,
)
from memwal.jobs.garbage.plan import (
    Permission,
    find_expirable,
    find_never_merged,
    permit,
    plan_garbage,
)
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.garbage.survey import Survey
from memwal.jobs.garbage.unit import group_deletions
from memwal.model import (
    BrokenShard,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    StoredFile,
    TableView,
)
from tests.support.views import make_generation, make_manifest, make_state, make_version, make_view

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
OTHER = ShardId("11111111-2222-4333-8444-555555555555")
UUID = "0d9f7a2e-3c4b-4a5d-8e6f-7a8b9c0d1e2f"
SECOND = 10**9
NOW = 1_000_000 * SECOND
OLD = NOW - 7200 * SECOND
YOUNG = NOW - 60 * SECOND
LIMITS = GarbageLimits(grace_seconds=3600, wal=True)

DROPPED, GONE, LISTED = 1, 2, 3
"""Generation 1 has an unlisted folder; 2 is deleted, its WAL entry is not; 3 is listed."""


def path(number: int, prefix: str = "0a1b2c3d") -> str:
    return f"{prefix}_gen_{number}"


def below(name: str) -> str:
    return f"{layout.shard_folder(SHARD)}/{name}"


def file(where: str, *, at: int = OLD, size: int = 10) -> StoredFile:
    return StoredFile(path=where, size_bytes=size, modified_at_nanos=at)


def folder(number: int, prefix: str = "0a1b2c3d", *, at: int = OLD) -> GenerationFolder:
    name = path(number, prefix)
    return GenerationFolder(
        name=name,
        generation=number,
        files=(
            file(below(f"{name}/data/x.lance"), at=OLD),
            file(below(f"{name}/_versions/1.manifest"), at=at),
        ),
    )


def wal(position: int, number: int | None, **facts: Any) -> WalFile:
    at = facts.pop("at", OLD)
    where = layout.wal_entry_path(SHARD, position)
    return WalFile(
        position=position, file=file(where, at=at), generation=number, **{"read": True, **facts}
    )


def version(number: int, merged: int | None, **facts: Any) -> RetainedVersion:
    progress = None if merged is None else {SHARD: merged}
    found = {"name": f"version {number}", "version": number, "on_main": True, "merged": progress}
    return RetainedVersion(**{**found, **facts})


@dataclass(frozen=True, kw_only=True)
class World:
    """A view, evidence and limits, each part replaceable."""

    manifest: ShardManifest
    state: MemWalState
    indexes: tuple[str, ...]
    shard: ShardEvidence
    evidence: Evidence
    limits: GarbageLimits = LIMITS
    broken: tuple[BrokenShard, ...] = ()

    @property
    def view(self) -> TableView:
        return make_view(
            ShardView(manifest=self.manifest, merged_generation=self.state.merged.get(SHARD, 0)),
            state=self.state,
            version=5,
            manifest=make_version(self.state, *self.indexes, version=5),
            broken=self.broken,
        )

    def plan(self) -> GarbagePlan:
        evidence = self.evidence
        if SHARD in evidence.shards:
            evidence = replace(evidence, shards={**evidence.shards, SHARD: self.shard})
        return plan_garbage(self.survey(evidence))

    def survey(self, evidence: Evidence) -> Survey:
        return Survey(
            view=self.view, version=5, evidence=evidence, limits=self.limits, now_nanos=NOW
        )


def world() -> World:
    manifest = make_manifest(
        SHARD, [LISTED], replay_after_wal_entry_position=5, wal_entry_position_last_seen=5
    )
    shard = ShardEvidence(
        shard_id=SHARD,
        folders=(folder(DROPPED), folder(LISTED)),
        wal=(wal(1, DROPPED), wal(2, GONE), wal(6, LISTED + 1)),
        manifests=(
            StoredManifest(version=8, modified_at_nanos=OLD - SECOND),
            StoredManifest(version=9, modified_at_nanos=OLD),
        ),
        past=manifest,
    )
    return World(
        manifest=manifest,
        state=make_state(
            index_uuid=UUID,
            merged={SHARD: LISTED},
            index_catchup={"a": {SHARD: LISTED}, "b": {SHARD: LISTED}},
            maintain_all_indexes=True,
        ),
        indexes=("a", "b"),
        shard=shard,
        evidence=Evidence(
            versions=(version(4, None), version(5, LISTED)),
            shards={SHARD: shard},
        ),
    )


def item(plan: GarbagePlan, name: str) -> Item:
    (found,) = [i for i in plan.items if i.path == name]
    return found


def drop(plan: GarbagePlan) -> Item:
    return item(plan, below(path(LISTED)))


def delete(plan: GarbagePlan) -> Item:
    return item(plan, below(path(DROPPED)))


def wal_delete(plan: GarbagePlan) -> Item:
    return item(plan, layout.wal_entry_path(SHARD, 2))


def edited(where: World, **changes: Any) -> World:
    """Change fields of the parts by name: `manifest__status=…`."""
    parts: dict[str, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        if inner:
            parts.setdefault(part, {})[inner] = value
        else:
            whole[part] = value
    for part, inner_changes in parts.items():
        whole[part] = replace(getattr(where, part), **inner_changes)
    return replace(where, **whole)


def versions(*retained: RetainedVersion) -> dict[str, Any]:
    return {"evidence__versions": retained}


def past(**changes: Any) -> dict[str, Any]:
    return {"shard__past": replace(world().manifest, **changes)}


def caught_up(**numbers: int) -> dict[str, Any]:
    return {"state__index_catchup": {name: {SHARD: number} for name, number in numbers.items()}}


def entries(*stored: WalFile) -> dict[str, Any]:
    """With the highest position, which stays."""
    return {"shard__wal": (*stored, wal(6, LISTED + 1))}


def told_by(replay: int | None) -> dict[str, Any]:
    """An entry that was not read, and a manifest that covers that far."""
    inferred = wal(2, None, read=False, inferred=True, writer_epoch=1)
    cover = replace(
        world().manifest,
        current_generation=LISTED,
        replay_after_wal_entry_position=replay or 0,
        wal_entry_position_last_seen=5,
    )
    shard = {"shard__folders": (folder(LISTED),), "shard__cover": cover if replay else None}
    return entries(inferred) | shard


def stored(*ages: int) -> tuple[StoredManifest, ...]:
    """Manifests of these ages; the last has version 9."""
    first = 10 - len(ages)
    return tuple(
        StoredManifest(version=first + n, modified_at_nanos=at) for n, at in enumerate(ages)
    )


# ---- all gates open


def test_with_all_gates_open_one_of_each_kind_goes() -> None:
    plan = world().plan()
    assert (drop(plan).action, drop(plan).kind) == (Action.DROP, "generation")
    assert drop(plan).generation == LISTED
    assert drop(plan).bytes == 20
    assert (delete(plan).action, delete(plan).kind) == (Action.DELETE, "generation")
    assert delete(plan).objects == 2
    assert (wal_delete(plan).action, wal_delete(plan).kind) == (Action.DELETE, "wal_entry")
    assert all(i.reason for i in plan.items)
    assert not plan.warnings
    assert plan.refusal is None


def test_what_a_run_drops_it_does_not_delete() -> None:
    plan = world().plan()
    assert {i.path for i in plan.deletes}.isdisjoint(i.path for i in plan.drops[SHARD])


def test_a_failed_flush_goes_by_the_gates_of_its_number() -> None:
    """Its retry, of the same number, is listed and kept or dropped for itself."""
    retried = folder(LISTED, "ffffffff")
    plan = edited(world(), shard__folders=(folder(LISTED), retried)).plan()
    assert item(plan, below(retried.name)).action is Action.DELETE
    assert drop(plan).action is Action.DROP


# ---- the gates, one by one

LATEST = version(5, LISTED)
TORN = Corruption("MW-M01", "torn")
NAMED = {"state__maintain_all_indexes": None}

EVERYTHING: dict[str, tuple[dict[str, Any], str]] = {
    "an older version has not merged it": (
        versions(version(4, 0), LATEST),
        "version 4 is retained and has merged up to 0 only",
    ),
    "an older version does not know the shard": (
        versions(replace(version(4, 0), merged={OTHER: 99}), LATEST),
        "version 4 is retained",
    ),
    "a branch has not merged it": (
        versions(LATEST, version(5, 0, name="version 5 of branch dev/x", on_main=False)),
        "branch dev/x",
    ),
    "a version can't be read": (
        versions(version(4, None, problem="torn"), LATEST),
        "version 4 can't be read: torn",
    ),
    "a branch can't be found": ({"evidence__problems": (TORN,)}, "torn"),
    "the latest version is not in the listing": (
        versions(version(4, LISTED), version(5, LISTED, on_main=False)),
        "version 5 is missing",
    ),
    "the MemWAL index went away since the view": (
        versions(version(4, None), version(5, None)),
        "no retained version shows that it was merged",
    ),
    "it is not merged at the latest version": ({"state__merged": {}}, "not known to be merged"),
    "the shard is sealed": ({"manifest__status": ShardStatus.SEALED}, "SEALED"),
    "the shard can't be read": ({"shard__problem": TORN}, "torn"),
}
NOT_LISTED = {"evidence__shards": {}, "shard": ShardEvidence(shard_id=SHARD)}

INDEXES: dict[str, tuple[dict[str, Any], str]] = {
    "an index lags": (caught_up(a=LISTED, b=0), "index 'b' has caught up to 0 only"),
    "an index is absent": (caught_up(a=LISTED), "index 'b' is not known"),
    "an index does not know the shard": (
        {"state__index_catchup": {"a": {SHARD: LISTED}, "b": {OTHER: LISTED}}},
        "index 'b' is not known",
    ),
    "no index is named as maintained": (caught_up() | NAMED, "index 'a' is not known"),
    "all are maintained whatever the list says": (
        caught_up(a=LISTED) | {"state__maintained_indexes": ("a",)},
        "index 'b' is not known",
    ),
    "a maintained index lags": (
        caught_up(a=LISTED) | {"state__maintained_indexes": ("b",)} | NAMED,
        "index 'b' is not known",
    ),
}

FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "a flush of that number may be in progress": (
        {"manifest__current_generation": DROPPED}
        | past(current_generation=LISTED + 1, flushed_generations=()),
        "flush in progress",
    ),
    "no manifest is older than the grace": (
        {"shard__past": None, "shard__manifests": stored(YOUNG)},
        "no manifest is older",
    ),
    "the manifest that was read is not the one from before the grace": (
        {"shard__manifests": stored(OLD, YOUNG)},
        "no manifest is older",
    ),
    "it was named when the grace began": (
        past(flushed_generations=(make_generation(DROPPED),)),
        "named it when the grace began",
    ),
    "it was flushed and dropped within the grace": (
        past(current_generation=DROPPED, flushed_generations=()),
        "flushed after the grace began",
    ),
    "a file of it is young": (
        {"shard__folders": (folder(DROPPED, at=YOUNG), folder(LISTED))},
        "newest file is younger",
    ),
    "no file of it tells its age": (
        {"shard__folders": (replace(folder(DROPPED), files=()), folder(LISTED))},
        "younger than",
    ),
}

WAL: dict[str, tuple[dict[str, Any], str]] = {
    "it is not covered": (
        {"manifest__replay_after_wal_entry_position": 1},
        "the replay position is 1",
    ),
    "it is above the last position seen": (
        {"manifest__wal_entry_position_last_seen": 1},
        "above the last position seen",
    ),
    "it was covered within the grace": (
        past(replay_after_wal_entry_position=1),
        "covered after the grace began",
    ),
    "it was seen within the grace": (
        past(wal_entry_position_last_seen=1),
        "covered after the grace began",
    ),
    "no manifest is older than the grace": (
        {"shard__past": None, "shard__manifests": ()},
        "no manifest is older",
    ),
    "it is the highest position": ({"shard__wal": (wal(2, GONE),)}, "the highest position"),
    "it is young": (entries(wal(2, GONE, at=YOUNG)), "younger than the grace"),
    "it can't be read": (entries(wal(2, GONE, problem="torn")), "can't be read: torn"),
    "it was not read": (entries(wal(2, GONE, read=False)), "not looked at"),
    "it is a fence sentinel": (entries(wal(2, GONE, fence_sentinel=True)), "a fence sentinel"),
    "its generation is not known": (entries(wal(2, None)), "does not say which generation"),
    "its generation is zero": (entries(wal(2, 0)), "does not say which generation"),
    "its generation is dropped now": (entries(wal(2, LISTED)), "is not deleted yet"),
    "its generation is listed": (
        {"manifest__flushed_generations": (make_generation(GONE),)},
        "generation 2, which covers it, is not deleted yet",
    ),
    "its generation has a folder": (
        {"shard__folders": (folder(DROPPED), folder(GONE, "ffffffff"))},
        "generation 2, which covers it, is not deleted yet",
    ),
    "its generation is not flushed": ({"manifest__current_generation": GONE}, "not flushed yet"),
    "an unfinished claim needs it": ({"manifest__writer_epoch": 2}, "claim of epoch 1"),
    "it is told, and no manifest covers it": (told_by(None), "may cover it is not deleted yet"),
    "it is told, and above what a manifest covers": (told_by(1), "may cover it is not deleted yet"),
    "it is told, and a generation is there that may have covered it": (
        told_by(5) | {"shard__folders": (folder(DROPPED), folder(LISTED))},
        "may have covered it is not deleted yet",
    ),
    "it is told, and a retained version needs what may have covered it": (
        told_by(5) | versions(version(4, GONE - 1), LATEST),
        "version 4 is retained",
    ),
}


def each(cases: dict[str, tuple[dict[str, Any], str]]) -> Any:
    return pytest.mark.parametrize(("spoil", "reason"), cases.values(), ids=cases)


def check_kept(found: Item, reason: str) -> None:
    assert found.action is Action.KEEP, found
    assert reason in found.reason, found
    assert not found.stages


@each(EVERYTHING | INDEXES | {"the shard was not listed": (NOT_LISTED, "not listed")})
def test_a_listed_generation_is_kept_when(spoil: dict[str, Any], reason: str) -> None:
    plan = edited(world(), **spoil).plan()
    check_kept(drop(plan), reason)
    assert not plan.drops


@each(EVERYTHING | INDEXES | FOLDERS)
def test_an_unlisted_folder_is_kept_when(spoil: dict[str, Any], reason: str) -> None:
    plan = edited(world(), **spoil).plan()
    check_kept(delete(plan), reason)
    assert all(i.kind == "wal_entry" for i in plan.deletes)


@each(EVERYTHING | WAL)
def test_a_wal_entry_is_kept_when(spoil: dict[str, Any], reason: str) -> None:
    check_kept(wal_delete(edited(world(), **spoil).plan()), reason)


def test_a_wal_entry_waits_for_its_folder() -> None:
    """The folder goes in this run, the entry in the next."""
    plan = world().plan()
    check_kept(item(plan, layout.wal_entry_path(SHARD, 1)), "is not deleted yet")


def test_wal_entries_are_no_candidates_unless_asked_for() -> None:
    plan = edited(world(), limits__wal=False).plan()
    assert not [i for i in plan.items if i.kind == "wal_entry"]


def test_generation_zero_is_never_deleted() -> None:
    zero = folder(0)
    plan = edited(world(), shard__folders=(zero,)).plan()
    check_kept(item(plan, below(zero.name)), "numbered from 1")


def test_a_listed_generation_whose_folder_is_gone_is_dropped() -> None:
    plan = edited(world(), shard__folders=()).plan()
    assert (drop(plan).action, drop(plan).bytes) == (Action.DROP, 0)


# ---- what does not hold anything


@pytest.mark.parametrize(
    "changes",
    [
        versions(version(3, None), version(4, None), LATEST),
        {"indexes": (), **caught_up()},
        {"indexes": ("a", "b", "__lance_frag_reuse", "__lance_mem_wal")},
    ],
    ids=["versions without a MemWAL index", "no indexes", "indexes of Lance itself"],
)
def test_nothing_is_held_by(changes: dict[str, Any]) -> None:
    assert drop(edited(world(), **changes).plan()).action is Action.DROP


def test_only_maintained_indexes_count_when_they_are_named() -> None:
    only = caught_up(a=LISTED) | {"state__maintained_indexes": ("a",)} | NAMED
    assert drop(edited(world(), **only).plan()).action is Action.DROP


def test_a_maintained_index_that_is_gone_holds_nothing_and_is_told() -> None:
    plan = edited(world(), state__maintained_indexes=("a", "gone")).plan()
    assert drop(plan).action is Action.DROP
    assert "'gone'" in plan.warnings[0]


# ---- other things


def test_unknown_things_below_a_shard_are_kept() -> None:
    plan = edited(world(), shard__others=(file(below("notes")),)).plan()
    check_kept(item(plan, below("notes")), "left alone")


def test_a_shard_without_a_usable_manifest_is_kept_and_the_others_are_served() -> None:
    where = world()
    stranger = replace(where.shard, shard_id=OTHER)
    where = edited(where, evidence__shards={SHARD: where.shard, OTHER: stranger})
    name = f"{layout.shard_folder(OTHER)}/{path(DROPPED)}"
    plan = where.plan()
    check_kept(item(plan, name), "the shard has no manifest")
    assert not plan.broken
    torn = BrokenShard(shard_id=OTHER, error=TORN)
    plan = edited(where, broken=(torn,)).plan()
    check_kept(item(plan, name), "torn")
    assert drop(plan).action is Action.DROP
    assert plan.broken == (torn,)


def test_a_shard_that_can_not_be_read_is_told_as_broken() -> None:
    plan = edited(world(), shard__problem=TORN).plan()
    assert plan.broken == (BrokenShard(shard_id=SHARD, error=TORN),)


def test_only_entries_that_may_go_are_worth_reading_newest_first() -> None:
    where = world()
    assert find_coverable((1, 2, 6), where.manifest, where.manifest) == (2, 1)
    assert find_coverable((1, 2), where.manifest, where.manifest) == (1,)
    assert find_coverable((1, 2), where.manifest, None) == ()
    assert find_coverable((), where.manifest, where.manifest) == ()
    behind = replace(where.manifest, wal_entry_position_last_seen=1)
    assert find_coverable((1, 2, 6), where.manifest, behind) == (1,)
    assert find_coverable((1, 2, 6), behind, where.manifest) == (1,)


@pytest.mark.parametrize(
    ("at", "action"),
    [(NOW - 86_400 * SECOND, Action.DELETE), (NOW - 86_399 * SECOND, Action.KEEP)],
)
def test_staged_files_go_after_a_day(at: int, action: Action) -> None:
    run = file("_maintenance/tmp/123-abc", at=at)
    writer = file(f"{layout.wal_entry_path(SHARD, 7)}.tmp.{'0' * 32}", at=at)
    found = edited(world(), evidence__outside={leftover.NAME: (run,)}, shard__staged=(writer,))
    plan = found.plan()
    for staged in (run, writer):
        assert item(plan, staged.path).action is action
        assert item(plan, staged.path).kind == "orphan"


def snapshot_world(at: int = OLD) -> tuple[World, str]:
    found = file(f"_indices/{UUID}/index.lance", at=at)
    return edited(world(), evidence__outside={snapshot.NAME: (found,)}), found.path


def test_a_snapshot_goes_unless_a_version_names_it_or_is_unreadable_or_it_is_young() -> None:
    where, name = snapshot_world()
    assert item(where.plan(), name).action is Action.DELETE
    naming = version(4, None, index_uuids=frozenset({UUID}))
    check_kept(item(edited(where, **versions(naming, LATEST)).plan(), name), "version 4 names it")
    torn = version(4, None, problem="torn")
    check_kept(item(edited(where, **versions(torn, LATEST)).plan(), name), "torn")
    where, name = snapshot_world(YOUNG)
    check_kept(item(where.plan(), name), "younger")


# ---- the manifest from before the grace


def test_the_past_manifest_is_the_last_that_is_old_enough() -> None:
    assert past_version(stored(1, 2, 3), 2) == 8
    assert past_version(tuple(reversed(stored(1, 2, 3))), 2) == 8
    assert past_version(stored(1, 9, 1), 2) == 7, "an odd age leads to an older one"
    assert past_version(stored(3, 4), 2) is past_version((), 2) is None


# ---- tables without a MemWAL index

SHARD_FILES = (
    file(below("manifest/x.binpb")),
    file(layout.wal_entry_path(SHARD, 1)),
    file(below(f"{path(1)}/data/x.lance")),
    file(below(f"{path(1)}/_versions/1.manifest")),
)
ADOPT = GarbageLimits(grace_seconds=3600, adopt_orphans=True)


def orphaned(*versions: RetainedVersion, **facts: Any) -> Evidence:
    shard = ShardEvidence(shard_id=SHARD, **{"files": SHARD_FILES, **facts})
    return Evidence(versions=versions or (version(5, None),), shards={SHARD: shard})


def adopt(evidence: Evidence, limits: GarbageLimits = ADOPT) -> GarbagePlan:
    return plan_garbage(
        Survey(view=None, version=5, evidence=evidence, limits=limits, now_nanos=NOW)
    )


def test_orphaned_shards_go_when_adopted_manifests_last() -> None:
    plan = adopt(orphaned())
    (found,) = plan.deletes
    assert (found.kind, found.path) == ("orphan", layout.shard_folder(SHARD))
    assert found.bytes == 40
    order = [f.path for stage in found.stages for f in stage]
    assert order == [f.path for f in (SHARD_FILES[3], SHARD_FILES[2], *SHARD_FILES[1::-1])]
    assert plan.refusal is None
    assert make_deletions(plan)


@pytest.mark.parametrize(
    ("evidence", "limits", "reason", "refused"),
    [
        (orphaned(), LIMITS, "--adopt-orphans", True),
        (orphaned(version(4, 3), version(5, None)), ADOPT, "version 4 is retained", True),
        (orphaned(version(4, None, problem="torn"), version(5, None)), ADOPT, "torn", False),
        (orphaned(version(4, None)), ADOPT, "version 5 is missing", False),
        (orphaned(files=(*SHARD_FILES, file(below("wal/y"), at=YOUNG))), ADOPT, "younger", False),
        (orphaned(files=()), ADOPT, "nothing in it is known", False),
        (orphaned(problem=Corruption("MW-M01", "unreadable")), ADOPT, "unreadable", False),
    ],
)
def test_orphaned_shards_are_kept_when(
    evidence: Evidence, limits: GarbageLimits, reason: str, refused: bool
) -> None:
    plan = adopt(evidence, limits)
    check_kept(item(plan, layout.shard_folder(SHARD)), reason)
    assert (plan.refusal is not None) == refused


def test_unknown_things_in_an_adopted_shard_are_kept() -> None:
    plan = adopt(orphaned(others=(file(below("notes")),)))
    check_kept(item(plan, below("notes")), "left alone")
    assert below("notes") not in [f.path for s in plan.deletes[0].stages for f in s]


# ---- guards and paths


DAY, HOUR = 86_400.0, 3600.0


@pytest.mark.parametrize(
    ("configured", "asked", "deletes"),
    [
        ({}, {}, False),
        ({}, {"retention_seconds": 7 * DAY}, False),
        ({}, {"execute": True}, True),
        ({}, {"execute": True, "retention_seconds": DAY, "grace_seconds": 600.0}, True),
        ({}, {"execute": True, "retention_seconds": DAY - 1}, "MW-G01"),
        ({}, {"retention_seconds": DAY - 1}, "MW-G01"),
        ({}, {"execute": True, "grace_seconds": 599.0}, "MW-G01"),
        ({}, {"retention_seconds": 0.0, "allow_short_retention": True}, False),
        ({"grace": 2 * HOUR}, {}, False),
        ({"retention": 7 * DAY}, {}, True),
        ({"retention": 7 * DAY}, {"allow_short_retention": True}, True),
        ({"retention": 7 * DAY}, {"retention_seconds": 30 * DAY, "grace_seconds": DAY}, True),
        ({"retention": 7 * DAY}, {"wal": False}, True),
        ({"retention": 7 * DAY}, {"retention_seconds": 3 * DAY}, "MW-G01"),
        ({"retention": 7 * DAY}, {"execute": True, "retention_seconds": 3 * DAY}, "MW-G01"),
        ({"retention": 7 * DAY}, {"retention_seconds": 0.0, "allow_short_retention": True}, False),
        ({"retention": 7 * DAY}, {"grace_seconds": 0.0, "allow_short_retention": True}, False),
        ({"retention": 7 * DAY}, {"grace_seconds": 600.0}, False),
        ({"retention": 7 * DAY}, {"execute": True, "grace_seconds": 600.0}, True),
        ({"retention": 7 * DAY, "grace": 2 * HOUR}, {"grace_seconds": HOUR}, "MW-G01"),
        ({"retention": 7 * DAY}, {"adopt_orphans": True}, False),
        (
            {"retention": 7 * DAY},
            {"execute": True, "retention_seconds": 0.0, "allow_short_retention": True},
            True,
        ),
    ],
)
def test_what_may_be_deleted(
    configured: dict[str, float], asked: dict[str, Any], deletes: bool | str
) -> None:
    request, settings = GarbageRequest(**asked), make_settings(**configured)
    if isinstance(deletes, str):
        with pytest.raises(Refused, match="--allow-short-retention") as refused:
            permit(request, settings)
        assert refused.value.code == deletes
    else:
        assert permit(request, settings).deletes is deletes


def test_what_is_not_asked_for_is_as_configured() -> None:
    configured = make_settings(retention=7 * DAY, grace=2 * HOUR)
    of = partial(Permission, deletes=True, retention_seconds=7 * DAY)
    assert permit(GarbageRequest(), configured) == of(grace_seconds=2 * HOUR, wal=True)
    kept = GarbageRequest(grace_seconds=DAY, wal=False)
    assert permit(kept, configured) == of(grace_seconds=DAY, wal=False)
    asked = GarbageRequest(execute=True, retention_seconds=7 * DAY)
    assert permit(asked, Settings()) == of(grace_seconds=HOUR, wal=False)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused_whatever_is_allowed(seconds: float) -> None:
    for name in ("retention_seconds", "grace_seconds"):
        with pytest.raises(Usage, match=r"_seconds .*expected a number of seconds"):
            permit(GarbageRequest(allow_short_retention=True, **{name: seconds}), Settings())


def test_a_version_is_expirable_by_its_age_unless_it_is_the_latest() -> None:
    evidence = Evidence(
        versions=(
            version(1, None, timestamp_nanos=0),
            version(2, None, timestamp_nanos=NOW),
            version(3, None, timestamp_nanos=0, on_main=False),
            version(layout.DETACHED_BIT | 7, None, timestamp_nanos=0),
            version(4, None, timestamp_nanos=0, problem="torn"),
            version(5, None, timestamp_nanos=0),
        ),
        shards={},
    )
    survey = Survey(view=None, version=5, evidence=evidence, now_nanos=NOW)
    assert find_expirable(survey, 86_400) == {1}


def test_shards_without_any_progress_keep_every_version() -> None:
    """Expired versions would take the proof that a merge needs of when the index was made."""
    where = world()
    assert find_never_merged(where.view) == ()
    unmerged = replace(where, state=replace(where.state, merged={}))
    assert find_never_merged(unmerged.view) == (SHARD,)
    broken = BrokenShard(shard_id=OTHER, error=TORN)
    assert find_never_merged(replace(where, broken=(broken,)).view) == (OTHER,)


def test_a_folder_stops_being_a_table_first() -> None:
    first, rest = split_stages(folder(1))
    assert [f.path for f in first] == [below(f"{path(1)}/_versions/1.manifest")]
    assert [f.path for f in rest] == [below(f"{path(1)}/data/x.lance")]


FORGED = [
    "data",
    "_versions/1.manifest",
    "_mem_wal/notes",
    "_indices/../x/index.lance",
    f"_mem_wal/{SHARD}/manifest",
    f"_mem_wal/{SHARD}/wal/x.arrow",
    f"_mem_wal/{SHARD}/wal/x.arrow.tmp.{'0' * 32}",
    f"_mem_wal/{SHARD}/{'0' * 64}.arrow.tmp.{'0' * 32}",
    f"_mem_wal/{SHARD}/wal/{'0' * 64}.arrow.tmp.{'0' * 31}",
    f"_mem_wal/{SHARD}/../x",
    f"_mem_wal/{SHARD}/0a1b2c3d_gen_01",
    f"_mem_wal/{SHARD}/0a1b2c3d_gen_2",
    f"_mem_wal/{SHARD.upper()}/0a1b2c3d_gen_1",
    "_maintenance/lease/1.json",
    "_maintenance/ingest/nightly/1",
    "_maintenance/ingest/nightly/000001/plan.json",
    "_maintenance/ingest/nightly/000001/staged/run/0",
    "_maintenance/ingest/../000001/staged/run",
    "_maintenance/ingest/Nightly/000001",
]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_path_never_reaches_a_delete(name: str) -> None:
    for kind in (kind.NAME for kind in KINDS):
        forged = Item(
            kind=kind, shard_id=SHARD, path=name, bytes=1, action=Action.DELETE, reason="",
            generation=1,
        )  # fmt: skip
        with pytest.raises(InvariantBroken, match="invariant 10"):
            make_deletions(GarbagePlan(items=(forged,)))


@pytest.mark.parametrize("name", ["a/c", "a/b2/x", "a", "a/b/../c"])
def test_a_file_outside_its_item_never_reaches_a_delete(name: str) -> None:
    with pytest.raises(InvariantBroken):
        check_below("a/b", file(name))


def test_units_hold_whole_items() -> None:
    deletions = make_deletions(world().plan())
    assert [len(u) for u in group_deletions(deletions, 1)] == [1] * len(deletions)
    assert group_deletions(deletions, 1000) == [deletions]
    assert group_deletions((), 10) == []


def test_durations() -> None:
    texts = {"90s": 90, "10m": 600, "7d": 604_800, "0s": 0, "1.5h": 5400, "5ms": 0.005}
    assert {text: parse_duration(text, "--grace") for text in texts} == texts
    for text in ("", "7", "d", "-1d", "1w", "1h30m", "1 h", "٣d", "1e3s", "999999d"):
        with pytest.raises(Usage, match="--grace"):
            parse_duration(text, "--grace")


# ---- claims that may be under way


def entry(position: int, epoch: int | None, *, sentinel: bool = False, **facts: Any) -> WalFile:
    return wal(position, None, writer_epoch=epoch, fence_sentinel=sentinel, **facts)


def held(stored: Iterable[WalFile], current_epoch: int) -> dict[int, int]:
    return dict(hold_for_claims(list(stored), current_epoch))


def test_a_claim_that_left_no_row_holds_the_wal_up_to_the_next_sentinel() -> None:
    stored = [
        entry(1, 1), entry(2, 2, sentinel=True), entry(3, 2), entry(4, 4, sentinel=True),
        entry(5, 4),
    ]  # fmt: skip
    assert held(stored, 4) == dict.fromkeys([1, 2, 3, 4], 3)
    # The current epoch holds nothing: what it may replay is not covered.
    assert held(stored, 3) == {}
    # Nothing newer is known, so that all has to stay.
    assert held(stored, 6) == dict.fromkeys([1, 2, 3, 4, 5], 5)
    assert held([], 1) == {}
    assert held([], 2**63) == {}


def test_a_sentinel_does_not_end_a_claim() -> None:
    """The replay comes after it; `make model` found this, and pylance does it."""
    stored = [entry(1, 1), entry(2, 2, sentinel=True), entry(3, 3, sentinel=True), entry(4, 3)]
    assert held(stored, 3) == dict.fromkeys([1, 2, 3], 2)
    assert held([*stored, entry(5, 2)], 3) == {}


def unread(position: int, size: int = SENTINEL_BYTES_MAX + 1) -> WalFile:
    where = layout.wal_entry_path(SHARD, position)
    return replace(wal(position, None, read=False), file=file(where, size=size))


def inferred(stored: Iterable[WalFile], epoch: int, *of: Any) -> dict[int, int | None]:
    return {
        e.position: e.writer_epoch for e in infer_epochs(tuple(stored), epoch, *of) if e.inferred
    }


def test_sentinels_tell_of_other_entries_where_all_are_known() -> None:
    stored = [unread(1), entry(2, 2, sentinel=True), unread(3), entry(4, 3, sentinel=True)]
    assert inferred(stored, 3) == {1: 1, 3: 2}
    assert inferred([*stored, unread(5)], 3) == {1: 1, 3: 2, 5: 3}
    assert inferred(stored, 4) == {}
    assert inferred(stored, 2**63) == {}
    assert inferred([unread(1), unread(2)], 1) == {1: 1, 2: 1}
    torn = wal(2, None, read=False, problem="torn")
    assert inferred([unread(1), torn, unread(3), entry(4, 3, sentinel=True)], 3) == {}


def test_what_is_as_small_as_a_sentinel_is_not_told() -> None:
    """A claim whose reply was lost may have left a second one."""
    stored = [unread(1), entry(2, 2, sentinel=True), unread(3, SENTINEL_BYTES_MAX), unread(4)]
    assert inferred(stored, 2) == {1: 1, 4: 2}


def test_only_small_files_are_remembered_as_sentinels() -> None:
    """So that none that is too large to be read first is taken to be known."""
    small = entry(1, 2, sentinel=True)
    large = replace(entry(2, 3, sentinel=True), file=unread(2).file)
    assert find_earlier([small, large, entry(3, 4), entry(4, 5, sentinel=True)], 4) == (2,)


def test_entries_above_an_older_sentinel_are_of_the_newer_epoch() -> None:
    stored = [unread(1), entry(2, 3, sentinel=True), entry(3, 2, sentinel=True), unread(4)]
    assert inferred(stored, 3) == {1: 1, 4: 3}


def test_entries_are_told_by_remembered_sentinels_of_earlier_epochs_only() -> None:
    stored = [unread(3), entry(4, 3, sentinel=True), unread(5)]
    assert inferred(stored, 3, 4, [2]) == {5: 3}
    assert inferred(stored, 3, 3, [2]) == {}
    assert inferred(stored, 4, 4, [2, 4]) == {}


def test_a_wal_entry_that_is_told_may_go() -> None:
    found = wal_delete(edited(world(), **told_by(5)).plan())
    assert found.action is Action.DELETE
    assert "every generation that may have covered it is deleted" in found.reason


def test_a_sentinel_may_stand_above_a_newer_one() -> None:
    stored = [entry(1, 1), entry(2, 3, sentinel=True), entry(3, 3), entry(4, 2, sentinel=True)]
    assert held(stored, 3) == dict.fromkeys([1, 2], 2)


def test_nothing_is_held_below_a_missing_position() -> None:
    """What is missing was covered when the epoch was claimed, and so is all below it."""
    stored = [entry(1, 1), entry(3, 2, sentinel=True), entry(4, 3, sentinel=True), entry(5, 3)]
    assert held(stored, 3) == dict.fromkeys([3, 4], 2)
    older = [
        entry(1, 1), entry(2, 2, sentinel=True), entry(3, 3, sentinel=True),
        entry(5, 4, sentinel=True), entry(6, 4),
    ]  # fmt: skip
    assert held(older, 4) == {1: 2, 2: 2, 3: 2, 5: 3}


def test_an_entry_that_was_not_read_proves_nothing() -> None:
    unread = entry(1, 1, read=False)
    torn = entry(1, 1, problem="torn")
    newer = entry(2, 2, sentinel=True)
    for one in (unread, torn, entry(1, None)):
        assert held([one, newer], 2) == {1: 1, 2: 1}
    assert held([entry(1, 1), newer], 2) == {}


def test_a_wal_of_which_only_the_newest_entries_were_read_is_collected_from_there() -> None:
    """The lowest known row stands for its epoch's sentinel: what is above is past all claims."""
    far = [entry(p, 2, sentinel=p == 2, read=p > 5) for p in range(1, 10)]
    assert set(held(far, 2)) == {1, 2, 3, 4, 5, 6}
    # The next run's window reaches further down.
    nearer = [entry(p, 2, sentinel=p == 2, read=p > 3) for p in range(1, 7)]
    assert set(held(nearer, 2)) == {1, 2, 3, 4}
    reopened = [*far, entry(10, 3, sentinel=True), entry(11, 3)]
    assert set(held(reopened, 3)) == {1, 2, 3, 4, 5, 6}


@st.composite
def histories(draw: st.DrawFn) -> list[WalFile]:
    """A WAL that nothing was taken from: claims, some without a sentinel or a row of their own."""
    stored: list[WalFile] = []
    for epoch in range(1, draw(st.integers(1, 6)) + 1):
        rows = draw(st.integers(0, 4))
        if epoch > 1 and (rows or draw(st.booleans())):
            stored.append(entry(len(stored) + 1, epoch, sentinel=True))
        stored += [entry(len(stored) + 1 + i, epoch) for i in range(rows)]
    return stored


def goes(stored: list[WalFile], current_epoch: int) -> set[int]:
    """What the rules on claims, and those on what was read, let go."""
    kept, unknown = held(stored, current_epoch), find_unknown(stored)
    return {
        w.position
        for w in stored
        if w.read and w.problem is None and not w.fence_sentinel
        and w.position not in kept and w.position >= unknown
    }  # fmt: skip


@given(histories(), st.integers(1, 8))
def test_bounded_runs_take_what_one_run_may_take(stored: list[WalFile], entries_max: int) -> None:
    """Whatever a run has read, and whatever runs before it have taken: what is needed stays."""
    epoch = max((w.writer_epoch or 0 for w in stored), default=1)
    free = goes(stored, epoch)
    left = list(stored)
    for _ in range(len(stored) + 1):
        first = len(left) - entries_max
        seen = [replace(w, read=place >= first) for place, w in enumerate(left)]
        gone = goes(seen, epoch)
        assert gone <= free
        left = [w for w in left if w.position not in gone]


def test_a_sentinel_that_can_t_be_read_later_still_ends_a_claim() -> None:
    """Epoch 2 is stalled in its claim. What was above epoch 3's sentinel is gone: no hole of it."""
    stored = [
        entry(1, 1), entry(2, 1), entry(3, 3, sentinel=True), entry(4, 3), entry(5, 3),
        entry(6, 4, sentinel=True), entry(7, 4),
    ]  # fmt: skip
    assert goes(stored, 4) == {4, 5, 7}
    left = [w for w in stored if w.position not in {4, 5}]
    assert goes([replace(w, problem="torn") if w.position == 3 else w for w in left], 4) == {7}


def test_nothing_below_an_unknown_position_goes() -> None:
    """It may be the sentinel that an unfinished claim is led to, with what is above it gone."""
    assert find_unknown([entry(1, 1), entry(2, 2, problem="torn"), entry(3, 2)]) == 2
    assert find_unknown([entry(1, 1, read=False), entry(2, 2)]) == 1
    assert find_unknown([entry(1, 1), entry(2, 2), entry(3, 2, read=False)]) == 0
    assert find_unknown([]) == 0
    highest = wal(6, LISTED + 1)
    below_it, above_it = (wal(p, GONE, writer_epoch=1) for p in (2, 4))
    read = edited(world(), shard__wal=(below_it, wal(3, GONE, writer_epoch=1), above_it, highest))
    torn = edited(world(), shard__wal=(below_it, wal(3, GONE, problem="torn"), above_it, highest))
    assert wal_delete(read.plan()).action is Action.DELETE
    assert wal_delete(torn.plan()).action is Action.KEEP
    assert "below position 3" in wal_delete(torn.plan()).reason
    assert item(torn.plan(), above_it.file.path).action is Action.DELETE
