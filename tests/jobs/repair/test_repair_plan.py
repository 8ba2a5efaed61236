"""What a repair decides, on evidence made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memwal.format.replay import WalEntry
from memwal.jobs.repair.kinds import hint, progress, shard_manifest, wal_entry
from memwal.jobs.repair.model import (
    Action,
    Damage,
    Evidence,
    Flush,
    PutManifest,
    PutSentinel,
    PutStopper,
    RaiseProgress,
    ShardEvidence,
    StoredManifests,
)
from memwal.jobs.repair.plan import OTHER, choose_next, find_damage, hold_losses
from memwal.jobs.verify.plan import Check, Hint
from memwal.model import (
    FlushedGeneration,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    VersionManifest,
)
from tests.support.views import make_manifest, make_state, make_view

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
NANOS = 10**9


def make_version(version: int, merged: int) -> VersionManifest:
    state = make_state(merged={SHARD: merged})
    return VersionManifest(version=version, timestamp_nanos=version, mem_wal=state)


def make_evidence(*shards: ShardEvidence, merged: int = 0, **more: Any) -> Evidence:
    view = make_view(state=make_state(merged={SHARD: merged}), version=5)
    given = Evidence(view=view, checks=(), shards=shards, now_nanos=10_000 * NANOS)
    return replace(given, **more)


def generation(number: int, rows: int | None = 2) -> FlushedGeneration:
    return FlushedGeneration(generation=number, path=f"0badcafe_gen_{number}", physical_rows=rows)


def manifest(version: int, *listed: int, epoch: int = 2, replay: int = 0) -> ShardManifest:
    return make_manifest(
        SHARD,
        map(generation, listed),
        version=version,
        writer_epoch=epoch,
        replay_after_wal_entry_position=replay,
    )


def entry(position: int, number: int | None, *, epoch: int = 2, rows: int = 2) -> WalEntry:
    return WalEntry(
        position=position,
        size_bytes=900,
        written_at_nanos=0,
        writer_epoch=epoch,
        generation=number,
        rows=rows,
        batches=1,
    )


def sentinel(position: int, epoch: int) -> WalEntry:
    return replace(entry(position, None, epoch=epoch, rows=0), fence_sentinel=True)


def torn(position: int) -> WalEntry:
    return WalEntry(position=position, size_bytes=30, written_at_nanos=0, problem="torn", torn=True)


def lost_newest(**more: object) -> ShardEvidence:
    """Manifest 4 is the newest, 6 was there; generation 2 is in the WAL only."""
    base = manifest(4, 1, replay=2)
    found = ShardEvidence(
        shard_id=SHARD,
        merged=0,
        view=None,
        newer=("its hint says 6",),
        hint=6,
        manifests=StoredManifests(readable={4: base}),
        entries=(
            entry(1, 1),
            entry(2, 1),
            sentinel(3, 3),
            entry(4, 2, epoch=3),
            entry(5, 2, epoch=3),
        ),
        folders=frozenset({generation(1).path, generation(2).path}),
    )
    return replace(found, **more)  # type: ignore[arg-type]


def manifest_put(damage: Damage) -> PutManifest:
    (put,) = (effect for effect in damage.effects if isinstance(effect, PutManifest))
    return put


def test_a_lost_manifest_is_followed_by_one_with_a_higher_epoch() -> None:
    (damage,) = shard_manifest.find(make_evidence(lost_newest()))
    assert (damage.action, damage.fences, damage.lost) == (Action.MEND, True, ())
    *stoppers, put, flush = damage.effects
    assert isinstance(put, PutManifest) and isinstance(flush, Flush)
    assert stoppers == [PutStopper(shard_id=SHARD, version=v, at_nanos=0) for v in (5, 6)]
    assert put.manifest.version == 7  # a name that was taken is not used for another manifest
    assert put.manifest.writer_epoch == 5  # each of the two versions that are lost may be a claim
    assert put.manifest.replay_after_wal_entry_position == 3
    assert put.manifest.current_generation == 2
    assert [g.generation for g in put.manifest.flushed_generations] == [1]


@pytest.mark.parametrize(("hint", "named", "version"), [(6, 131, 132), (50_000, 5, 6)])
def test_a_manifest_goes_above_what_was_recorded(hint: int, named: int, version: int) -> None:
    """A hint that is far off is not what a writer came to: no name is taken for it."""
    (damage,) = shard_manifest.find(make_evidence(lost_newest(hint=hint, named_version=named)))
    assert manifest_put(damage).manifest.version == version
    taken = [e.version for e in damage.effects if isinstance(e, PutStopper)]
    assert taken == list(range(5, version))


def test_a_folder_that_nothing_names_is_not_listed() -> None:
    """Its WAL is gone: nothing proves that the flush ended."""
    shard = lost_newest(entries=(entry(1, 1), entry(2, 1), entry(6, 3, epoch=3)))
    (damage,) = shard_manifest.find(make_evidence(shard))
    assert damage.action is Action.SALVAGE
    put = manifest_put(damage)
    assert [g.generation for g in put.manifest.flushed_generations] == [1]
    assert "nothing proves that 0badcafe_gen_2 is complete" in damage.lost[1]
    assert "WAL entries 3 to 5" in damage.lost[0]


def test_a_folder_that_a_checkpoint_names_is_listed() -> None:
    second = generation(2)
    shard = lost_newest(kept=(second,), opened=frozenset({second.path}))
    (damage,) = shard_manifest.find(make_evidence(shard))
    put = manifest_put(damage)
    assert [g.generation for g in put.manifest.flushed_generations] == [1, 2]
    assert put.manifest.current_generation == 3 and damage.lost == ()


def test_a_folder_that_a_checkpoint_names_and_that_does_not_open_is_not_listed() -> None:
    (damage,) = shard_manifest.find(make_evidence(lost_newest(kept=(generation(2),))))
    put = manifest_put(damage)
    assert [g.generation for g in put.manifest.flushed_generations] == [1]
    assert put.manifest.current_generation == 2


def test_generations_that_are_merged_are_not_replayed() -> None:
    (damage,) = shard_manifest.find(make_evidence(lost_newest(merged=2), merged=2))
    put = manifest_put(damage)
    assert put.manifest.current_generation == 3
    assert damage.effects[-1] == put  # nothing is left to be flushed


def test_a_sealed_shard_is_not_claimed() -> None:
    base = replace(manifest(4, 1, replay=2), status=ShardStatus.SEALED)
    shard = lost_newest(manifests=StoredManifests(readable={4: base}))
    (damage,) = shard_manifest.find(make_evidence(shard))
    put = manifest_put(damage)
    assert damage.effects[-1] == put
    assert put.manifest.status is ShardStatus.SEALED


def test_a_clone_is_no_damage() -> None:
    shard = lost_newest(newer=(), hint=4)
    (damage,) = shard_manifest.find(make_evidence(shard))
    assert damage.action is Action.LEAVE and not damage.effects


def test_a_shard_of_an_unknown_spec_is_left() -> None:
    beside = replace(manifest(1), shard_field_entries=(("f", b"x"),))
    other = ShardEvidence(
        shard_id=ShardId("00000000-0000-4000-8000-000000000002"),
        merged=0,
        view=ShardView(manifest=beside, merged_generation=0),
    )
    shard = lost_newest(manifests=StoredManifests(damaged={3: "torn"}))
    (damage,) = shard_manifest.find(make_evidence(shard, other))
    assert damage.action is Action.LEAVE and "to which spec it belongs" in damage.evidence


@pytest.mark.parametrize(("above", "action"), [((1, 2), Action.MEND), ((1, 3), Action.LEAVE)])
def test_a_stopper_takes_a_missing_name_if_nothing_forked(
    above: tuple[int, ...], action: Action
) -> None:
    newest = manifest(6, *above)
    shard = ShardEvidence(
        shard_id=SHARD,
        merged=0,
        view=ShardView(manifest=newest, merged_generation=0),
        manifests=StoredManifests(
            readable={6: newest, 4: manifest(4, 1, 2)}, stored=frozenset({4, 6}), times={4: 77}
        ),
    )
    broken = Check(invariant=None, name="shard manifests", ok=False, detail="leads nowhere")
    (damage,) = shard_manifest.find(make_evidence(shard, checks=(broken,)))
    assert damage.action is action
    wanted = PutStopper(shard_id=SHARD, version=5, at_nanos=77)
    assert damage.effects == ((wanted,) if action is Action.MEND else ())


def wal_of(*entries: WalEntry, newest: ShardManifest | None = None) -> ShardEvidence:
    newest = newest or manifest(4, 1, epoch=3, replay=2)
    view = ShardView(manifest=newest, merged_generation=0)
    return ShardEvidence(shard_id=SHARD, merged=0, view=view, entries=entries)


def test_rows_of_a_torn_entry_are_lost_only_if_no_generation_has_them() -> None:
    """Position 3 is before one of generation 1, which is flushed; position 5 is not."""
    shard = wal_of(
        entry(1, 1), entry(2, 1), torn(3), entry(4, 1, epoch=2), torn(5), sentinel(6, 3),
        entry(7, 2, epoch=3),
    )  # fmt: skip
    covered, lost = wal_entry.find(make_evidence(shard))
    assert (covered.action, covered.lost) == (Action.MEND, ())
    assert lost.action is Action.SALVAGE and "WAL position 5" in lost.lost[0]
    put, flush = lost.effects
    assert isinstance(put, PutSentinel) and put.writer_epoch == 3
    assert isinstance(flush, Flush) and lost.fences


def test_a_torn_sentinel_held_no_rows() -> None:
    shard = wal_of(entry(1, 1), entry(2, 1), torn(3), entry(4, 2, epoch=3))
    (damage,) = wal_entry.find(make_evidence(shard))
    assert (damage.action, damage.lost) == (Action.MEND, ())
    assert "the sentinel of writer epoch 3" in damage.evidence


def test_of_two_torn_entries_none_is_taken_for_the_sentinel() -> None:
    shard = wal_of(entry(1, 1), entry(2, 1), torn(3), torn(4), entry(5, 2, epoch=3))
    assert [d.action for d in wal_entry.find(make_evidence(shard))] == [Action.SALVAGE] * 2


def test_a_live_writers_wal_is_left_alone() -> None:
    shard = wal_of(entry(1, 1), entry(2, 1), sentinel(3, 3), torn(4), entry(5, 2, epoch=3))
    evidence = make_evidence(replace(shard, newest_at_nanos=9_999 * NANOS), idle_seconds=600.0)
    (damage,) = wal_entry.find(evidence)
    assert damage.action is Action.LEAVE and not damage.effects


def test_progress_is_raised_only_if_nothing_built_on_it() -> None:
    versions = [make_version(v, merged) for v, merged in ((1, 3), (2, 1), (3, 1), (5, 1))]
    (damage,) = progress.find(make_evidence(history=tuple(versions), merged=1))
    assert damage.effects == (RaiseProgress(version=5, merged={SHARD: 3}),)
    versions[2] = make_version(3, 2)
    versions[3] = make_version(5, 2)
    (damage,) = progress.find(make_evidence(history=tuple(versions), merged=2))
    assert damage.action is Action.LEAVE
    expired = [make_version(v, merged) for v, merged in ((1, 3), (3, 1))]
    (damage,) = progress.find(make_evidence(history=tuple(expired), merged=1))
    assert damage.action is Action.LEAVE and not damage.effects
    turned = make_evidence(history=tuple(versions), rewound=frozenset({2}), merged=2)
    assert list(progress.find(turned)) == []


def test_a_hint_beyond_a_version_from_which_a_commit_began() -> None:
    found = Hint(path="h", shard_id=None, found=9, newest=5)
    evidence = make_evidence(hints=(found,), digests={"h": "0"})
    (damage,) = hint.find(evidence)
    assert damage.action is Action.MEND
    (damage,) = hint.find(replace(evidence, committed=frozenset({5})))
    assert damage.action is Action.LEAVE and damage.lost


def test_what_no_kind_names_is_told() -> None:
    odd = Check(invariant=None, name="one key, one shard", ok=False, detail="key 1")
    (damage,) = find_damage(make_evidence(checks=(odd,)))
    assert (damage.kind, damage.action, damage.finding) == (OTHER, Action.LEAVE, "key 1")


def test_a_shard_gets_one_manifest_a_round() -> None:
    (damage,) = shard_manifest.find(make_evidence(lost_newest()))
    other = replace(damage, finding="another")
    assert choose_next([damage, other], []) == [damage]
    assert choose_next([damage, other], [damage]) == [other]


def test_a_manifest_waits_for_what_is_mended_in_its_wal() -> None:
    """What it makes of the WAL is planned by entries that can be read by then."""
    (damage,) = shard_manifest.find(make_evidence(lost_newest()))
    sentinel = PutSentinel(shard_id=SHARD, position=1, writer_epoch=1, digest="0")
    torn = replace(damage, kind="wal_entry", path="wal", effects=(sentinel,))
    assert damage.shard_id == SHARD
    assert choose_next([torn, damage], []) == [torn]
    assert choose_next([torn, damage], [torn]) == [damage]
    assert choose_next([damage, torn], []) == [damage]


def test_a_shard_is_not_claimed_while_something_of_it_waits() -> None:
    (fencing,) = shard_manifest.find(make_evidence(lost_newest()))
    waits = replace(fencing, kind="wal_entry", path="wal", loses_rows=True)
    plain = replace(fencing, kind="hint", path="hint", fences=False)
    other = replace(fencing, shard_id=ShardId("another"))
    held = hold_losses([waits, fencing, plain, other], asked=False)
    assert [bool(damage.effects) for damage in held] == [False, False, True, True]
    assert [damage.action is Action.LEAVE for damage in held] == [True, True, False, False]
    assert held[0].evidence.startswith("loses rows: give --from BACKUP, or --accept-loss")
    assert hold_losses([fencing], asked=False) == [fencing]
