"""What a repair decides, on evidence made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memwal.errors import Refused
from memwal.format import layout
from memwal.format.replay import WalEntry
from memwal.jobs.repair.model import (
    Damage,
    Evidence,
    Flush,
    PutManifest,
    PutStopper,
    RaiseProgress,
    ShardEvidence,
)
from memwal.jobs.repair.plan import OTHER, find_damage, find_hints, find_manifests, find_progress
from memwal.jobs.verify.plan import Check, Hint
from memwal.model import (
    FlushedGeneration,
    ShardId,
    ShardManifest,
    ShardStatus,
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
        newer=("its hint says 6",),
        hint=6,
        readable={4: base},
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


def path_of(version: int) -> str:
    return layout.shard_manifest_path(SHARD, version)


def manifest_put(damage: Damage) -> PutManifest:
    (put,) = (effect for effect in damage.effects if isinstance(effect, PutManifest))
    return put


def test_a_lost_manifest_is_followed_by_one_with_a_higher_epoch() -> None:
    (damage,) = find_manifests(make_evidence(lost_newest()))
    assert (damage.fences, damage.lost) == (True, ())
    *stoppers, put, flush = damage.effects
    assert isinstance(put, PutManifest) and isinstance(flush, Flush)
    assert stoppers == [PutStopper(path=path_of(v), at_nanos=0) for v in (5, 6)]
    assert put.manifest.version == 7  # a name that was taken is not used for another manifest
    assert put.manifest.writer_epoch == 5  # each of the two versions that are lost may be a claim
    assert put.manifest.replay_after_wal_entry_position == 3
    assert put.manifest.current_generation == 2
    assert [g.generation for g in put.manifest.flushed_generations] == [1]


@pytest.mark.parametrize(("hint", "named", "version"), [(6, 131, 132), (50_000, 5, 6)])
def test_a_manifest_goes_above_what_was_recorded(hint: int, named: int, version: int) -> None:
    """A hint that is far off is not what a writer came to: no name is taken for it."""
    (damage,) = find_manifests(make_evidence(lost_newest(hint=hint, named_version=named)))
    assert manifest_put(damage).manifest.version == version
    taken = [e.path for e in damage.effects if isinstance(e, PutStopper)]
    assert taken == [path_of(v) for v in range(5, version)]


@pytest.mark.parametrize(
    ("entries", "lost"),
    [
        ((entry(1, 1), entry(2, 1), entry(6, 3, epoch=3)), "WAL entries 3 to 5, which are gone"),
        ((entry(1, 1), entry(2, 1), entry(3, 3, epoch=3)), "generation 2, which the WAL lacks"),
        ((entry(1, 1), entry(2, 1), torn(3), entry(4, 2, epoch=3)), "WAL entries 1 to 4"),
        ((entry(1, 1), entry(2, 1), entry(3, 2), entry(5, 2)), "WAL entries 1 to 5"),
    ],
    ids=["gone", "not proven whole", "torn", "not continuous"],
)
def test_a_shard_is_not_set_back_to_less_than_it_had(
    entries: tuple[WalEntry, ...], lost: str
) -> None:
    (damage,) = find_manifests(make_evidence(lost_newest(entries=entries)))
    assert damage.effects == () and any(lost in text for text in damage.lost)


def test_a_shard_whose_manifest_saw_more_of_the_wal_is_not_set_back() -> None:
    base = replace(manifest(4, 1, replay=2), wal_entry_position_last_seen=9)
    found = lost_newest(readable={4: base})
    (damage,) = find_manifests(make_evidence(found))
    assert damage.effects == () and damage.lost


def test_entries_whose_columns_are_not_the_table_s_are_not_replayed() -> None:
    unfit = {5: Refused("MW-K06", "field 7 is 'a' in the entry and 'b' in the table")}
    (damage,) = find_manifests(make_evidence(lost_newest(unfit=unfit)))
    assert (damage.effects, damage.evidence) == ((), str(unfit[5]))
    assert damage.lost
    newer = replace(manifest(4, 1, replay=2), unknown_fields=("ShardManifest.77",))
    (damage,) = find_manifests(make_evidence(lost_newest(readable={4: newer})))
    assert not damage.effects and "ShardManifest.77" in damage.evidence
    flushed = lost_newest(unfit={1: unfit[5]})
    assert next(iter(find_manifests(make_evidence(flushed)))).effects


def test_entries_that_name_no_generation_are_not_shared_out() -> None:
    entries = (entry(1, 1), entry(2, 1), entry(3, None), entry(4, None))
    (damage,) = find_manifests(make_evidence(lost_newest(entries=entries)))
    assert damage.effects
    (damage,) = find_manifests(make_evidence(lost_newest(entries=entries, merged=2)))
    assert damage.effects == () and "don't say to which generation" in damage.lost[0]


def test_no_manifest_that_can_be_read_is_no_base() -> None:
    shard = lost_newest(readable={}, damaged={3: "torn"})
    (damage,) = find_manifests(make_evidence(shard))
    assert damage.effects == () and "generations 0badcafe_gen_1" in damage.lost[0]


def test_generations_that_are_merged_are_not_replayed() -> None:
    (damage,) = find_manifests(make_evidence(lost_newest(merged=2), merged=2))
    put = manifest_put(damage)
    assert put.manifest.current_generation == 3
    assert damage.effects[-1] == put  # nothing is left to be flushed


def test_a_sealed_shard_is_not_claimed() -> None:
    base = replace(manifest(4, 1, replay=2), status=ShardStatus.SEALED)
    shard = lost_newest(readable={4: base})
    (damage,) = find_manifests(make_evidence(shard))
    put = manifest_put(damage)
    assert damage.effects[-1] == put
    assert put.manifest.status is ShardStatus.SEALED


def test_a_clone_is_no_damage() -> None:
    shard = lost_newest(newer=(), hint=4)
    (damage,) = find_manifests(make_evidence(shard))
    assert not damage.effects


def test_progress_is_raised_only_if_nothing_built_on_it() -> None:
    versions = [make_version(v, merged) for v, merged in ((1, 3), (2, 1), (3, 1), (5, 1))]
    (damage,) = find_progress(make_evidence(history=tuple(versions), merged=1))
    assert damage.effects == (RaiseProgress(version=5, merged={SHARD: 3}),)
    versions[2] = make_version(3, 2)
    versions[3] = make_version(5, 2)
    (damage,) = find_progress(make_evidence(history=tuple(versions), merged=2))
    assert not damage.effects
    expired = [make_version(v, merged) for v, merged in ((1, 3), (3, 1))]
    (damage,) = find_progress(make_evidence(history=tuple(expired), merged=1))
    assert not damage.effects
    turned = make_evidence(history=tuple(versions), rewound=frozenset({2}), merged=2)
    assert list(find_progress(turned)) == []


def test_a_hint_beyond_a_version_from_which_a_commit_began() -> None:
    found = Hint(path="h", shard_id=None, found=9, newest=5)
    evidence = make_evidence(hints=(found,), digests={"h": "0"})
    (damage,) = find_hints(evidence)
    assert damage.effects
    (damage,) = find_hints(replace(evidence, committed=frozenset({5})))
    assert not damage.effects and damage.lost


def test_what_no_kind_names_is_told() -> None:
    odd = Check(invariant=None, name="one key, one shard", ok=False, detail="key 1")
    (damage,) = find_damage(make_evidence(checks=(odd,)))
    assert (damage.kind, damage.effects, damage.finding) == (OTHER, (), "key 1")
    assert "restore a backup" in damage.evidence and damage.lost
