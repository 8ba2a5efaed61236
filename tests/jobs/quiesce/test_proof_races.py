"""What a quiesce records, and what older versions show, whatever happens to a table: a model.

Chance chooses what happens between any two steps of a quiesce: writers, merges, drops, restores to
any retained version, indexes that go and come, shards that start over, other programs that take
generations off the list without merging them, other quiesces, kills. Whatever it was, a generation
that counts as settled is in the version that is looked at. Recording and reading are memwal's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from memwal.errors import LostRace, Missing
from memwal.format import codec, layout
from memwal.model import MemWalState, ShardId, ShardManifest, ShardView, TableView, VersionManifest
from memwal.rows.progress import SettledRecord, find_holes
from memwal.run.former_merges import keep_proof
from memwal.store.records.former_merges import SettledRecords, TableHistory
from memwal.store.shards.manifests import ShardManifests
from memwal.store.tables.manifests import TableManifests
from memwal.testing.objects import ManualClock, MemoryObjects
from tests.support.sampling import many
from tests.support.views import make_generation

SHARD = ShardId("11111111-1111-4111-8111-111111111111")
RUNS = many(300, 100)
STEPS = 30


class KilledError(Exception):
    """The quiesce dies."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """`merged` is the MemWAL index's progress, None without an index.

    `rows` has each merged generation by the shard's incarnation and its number.
    """

    at_nanos: int
    rows: frozenset[tuple[int, int]] = frozenset()
    merged: int | None = 0
    named: frozenset[str] = frozenset()
    operation: str = "Update"


class Table:
    """One table of one shard."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.clock, self.now = rng, ManualClock(), 0
        self.versions = {1: Version(at_nanos=0)}
        self.objects = MemoryObjects(clock=self.clock)
        self.manifests = ShardManifests(self.objects)
        self.incarnation = self.nesting = self.accepted = 0
        self.start_over()

    # ---- what happens to it

    @property
    def latest(self) -> int:
        return max(self.versions)

    def commit(self, operation: str = "Update", **changes: object) -> None:
        self.now += 1
        self.clock.advance(1)
        latest = replace(self.versions[self.latest], operation=operation, at_nanos=self.now)
        self.versions[self.latest + 1] = replace(latest, **changes)  # type: ignore[arg-type]
        name = layout.table_manifest_names(self.latest)[0]
        self.objects.put(f"{layout.VERSIONS}/{name}", b"")

    def store(self, manifest: ShardManifest) -> None:
        data = codec.encode_shard_manifest(manifest)
        self.clock.advance(1)
        self.objects.put(layout.shard_manifest_path(SHARD, manifest.version), data)
        self.manifest = replace(manifest, raw=data)

    def start_over(self) -> None:
        """Its folder is deleted once no index knows it, and a writer begins, elsewhere in a WAL.

        Nobody goes back behind that: an index of then would take new generations for merged ones.
        """
        self.incarnation += 1
        self.init_again()
        self.born = self.latest
        self.objects.delete([f.path for f in list(self.objects.list(layout.MEM_WAL))])
        self.store(
            ShardManifest(
                shard_id=SHARD,
                version=1,
                writer_epoch=1,
                current_generation=1,
                replay_after_wal_entry_position=self.incarnation,
            )
        )

    def flush(self) -> None:
        number = self.manifest.current_generation
        listed = (*self.manifest.flushed_generations, make_generation(number))
        self.store(
            replace(
                self.manifest,
                version=self.manifest.version + 1,
                current_generation=number + 1,
                flushed_generations=listed,
            )
        )

    def merge(self) -> None:
        version = self.versions[self.latest]
        if version.merged is None:
            return
        shard = self.view().shards[0]
        if shard.pending and not any(find_holes(shard)):
            done = {(self.incarnation, g.generation) for g in shard.pending}
            self.commit(rows=version.rows | done, merged=shard.pending[-1].generation)

    def unlist(self, number: int) -> None:
        kept = [g for g in self.manifest.flushed_generations if g.generation != number]
        version = self.manifest.version + 1
        self.store(replace(self.manifest, version=version, flushed_generations=tuple(kept)))

    def drop(self) -> None:
        for g in self.manifest.flushed_generations:
            if all(g.generation <= (v.merged or 0) for v in self.versions.values()):
                self.unlist(g.generation)

    def rest(self) -> None:
        """All is merged and taken off the list, by whatever program: older versions may lack it."""
        self.flush()
        self.merge()
        if self.rng.random() < 0.5:
            self.expire()
        for g in self.manifest.flushed_generations:
            if g.generation <= (self.versions[self.latest].merged or 0):
                self.unlist(g.generation)
        self.quiesce()

    def init_again(self) -> None:
        self.commit(merged=None)
        self.commit(merged=0)

    def lose(self) -> None:
        """Another program, or a flush that failed."""
        if self.manifest.flushed_generations:
            self.unlist(self.rng.choice(self.manifest.flushed_generations).generation)

    def restore(self) -> None:
        back = self.versions[self.choose_version()]
        self.commit("Restore", rows=back.rows, merged=back.merged, named=back.named)

    def choose_version(self) -> int:
        return self.rng.choice([version for version in self.versions if version >= self.born])

    def expire(self) -> None:
        self.versions = {self.latest: self.versions[self.latest]}

    def collect_manifest(self) -> None:
        version = self.rng.randint(1, self.manifest.version)
        if version < self.manifest.version:
            self.objects.delete([layout.shard_manifest_path(SHARD, version)])

    def happen(self) -> None:
        actions = [self.flush, self.merge, self.drop, self.quiesce, self.lose, self.restore]
        actions += [self.expire, self.start_over, self.collect_manifest]
        actions += [self.rest, self.init_again, self.restore] * 3
        actions += [lambda: self.commit(merged=None)]
        self.rng.choice(actions)()
        self.check()

    # ---- the quiesce

    def records(self) -> SettledRecords:
        lance: Any = _Lance(self)
        history = TableHistory(self.objects, lance, lance, self.manifests)
        return SettledRecords(self.objects, self.manifests, 1, history)

    def view(self, number: int | None = None) -> TableView:
        number = self.latest if number is None else number
        version = self.versions[number]
        manifest = _Lance(self).read(number)
        assert manifest.mem_wal is not None
        view = TableView(
            uri="memory://t",
            version=number,
            primary_key=("id",),
            columns=(),
            rows=0,
            manifest=manifest,
            mem_wal=manifest.mem_wal,
            shards=(ShardView(manifest=self.manifest, merged_generation=version.merged or 0),),
            settled_ids=tuple(sorted(version.named)),
        )
        return self.records().mark(view)

    def quiesce(self) -> None:
        """It records no more than what is at rest, whatever else it has found."""
        if self.versions[self.latest].merged is not None:
            with suppress(LostRace, KilledError):
                keep_proof(self.view(), _Proofs(self), self.clock)

    def between(self) -> None:
        if self.nesting > 1:
            return
        self.nesting += 1
        for _ in range(self.rng.choice([0, 0, 0, 1, 3])):
            self.happen()
        self.nesting -= 1
        if self.rng.random() < 0.1:
            raise KilledError

    # ---- what has to hold

    def check(self) -> None:
        for number in {self.latest, self.choose_version()}:
            version = self.versions[number]
            if version.merged is not None:
                (shard,) = self.view(number).shards
                self.accepted += shard.settled_generation
                for generation in range(1, shard.settled_generation + 1):
                    assert (self.incarnation, generation) in version.rows, (
                        f"version {number} lacks generation {generation}, which counts as settled"
                    )


@dataclass(frozen=True)
class _Lance:
    """What the walk over older versions asks of Lance and of their manifests."""

    table: Table

    def base(self, version: int) -> _Lance:
        return self

    def read_operation(self, version: int) -> str:
        return self.table.versions[version].operation

    def list_times(self) -> dict[int, int]:
        return TableManifests(self.table.objects).list_times()

    def read(self, number: int) -> VersionManifest:
        if number not in self.table.versions:
            raise Missing(f"version {number}")
        version, state = self.table.versions[number], None
        if version.merged is not None:
            merged = {SHARD: version.merged} if version.merged else {}
            state = MemWalState(
                index_uuid="", created_at_millis=None, merged=merged, index_catchup={}
            )
        return VersionManifest(version=number, timestamp_nanos=version.at_nanos, mem_wal=state)


@dataclass(frozen=True)
class _Proofs:
    """The Proofs port: as Lance, a commit of a name lands on whatever is the latest version."""

    table: Table

    def find(self, view: TableView) -> list[SettledRecord]:
        self.table.between()
        return self.table.records().find(view)

    def name(self, view: TableView, record_id: str, kept: Sequence[SettledRecord]) -> None:
        self.table.between()
        now = self.table.versions[self.table.latest].named
        forgotten = set(view.settled_ids) - {record.record_id for record in kept}
        self.table.commit(named=(now - forgotten) | {record_id})

    def follows(self, view: TableView, record_id: str) -> bool:
        self.table.between()
        versions = self.table.versions
        before, after = versions.get(view.version), versions.get(view.version + 1)
        return (
            before is not None
            and after is not None
            and before.at_nanos == view.manifest.timestamp_nanos
            and record_id in after.named
        )

    def put(self, record: SettledRecord) -> None:
        self.table.between()
        self.table.records().put(record)
        self.table.between()


def test_what_counts_as_settled_is_there() -> None:
    accepted = 0
    for seed in range(RUNS):
        table = Table(random.Random(seed))
        try:
            for _ in range(STEPS):
                table.happen()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        accepted += table.accepted > 0
    assert accepted > RUNS / 10
