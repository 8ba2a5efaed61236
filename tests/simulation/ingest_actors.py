"""`memwal ingest` beside all others: runs that die and are resumed, into a WAL that takes some
entries twice, as pylance does when the reply to a PUT is lost: it tries again one position on.

Which calls are done is found out by the real code (`memwal.ingest.progress.resume`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa

from memwal.errors import Corruption
from memwal.ingest.progress import resume
from memwal.model import ShardId
from memwal.store.records.ingests import PlanRecord, Round
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries, WalLimits
from memwal.store.shards.writers import Claim, Tip
from tests.simulation.actors import OUTCOMES, Jobs, Session
from tests.simulation.scheduler import Actor, Violation
from tests.simulation.sim_ports import SimStores
from tests.support.fencing import ShardClaim

# An actor is one thread, and has no others.
resume._READERS_MAX = 1
PLAN = PlanRecord(chunk_rows=1, rows_per_entry_max=1, spec_id=0)
TWICE, FLUSHED = 0.3, 0.2
CALLS_MAX = 8
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])


@dataclass(kw_only=True)
class Ingests:
    """Makes the actors' bodies: one source a shard after the other."""

    jobs: Jobs
    finished: dict[ShardId, int] = field(default_factory=dict)

    def ingest(self, actor: Actor) -> None:
        """One run: from the start, or where one that died had come to."""
        stores, jobs = self.jobs.open(actor), self.jobs
        shard = actor.scheduler.dice.choice(jobs.shards)
        number = self.finished.get(shard, 0)
        calls = self._calls(shard, number)
        try:
            records = Round(stores.objects, f"source-{number}-{shard[:8]}", 1, actor.name)
            records.begin(PLAN)
            writers = resume.ResumingWriters(
                writers=_Writers(stores, jobs),  # type: ignore[arg-type]
                records=records,
                tips={},
                key=("id",),
            )
            opened = writers.open(shard)
            for key, value in calls:
                opened.put(pa.table({"id": [key], "n": [value]}, schema=SCHEMA))
            writers.check_all_used()
            opened.close()
        except Corruption as error:
            if not actor.scheduler.injected["stale_listing"]:
                raise Violation(f"ingest: a source that is whole was refused: {error}") from error
            return
        except OUTCOMES:
            return
        jobs.seen["ingests resumed"] += opened.counts.entries_found > 0
        jobs.seen["ingests finished"] += 1
        self.finished[shard] = max(number + 1, self.finished.get(shard, 0))
        if not actor.scheduler.injected["stale_listing"]:
            self._check(shard, calls)

    def _calls(self, shard: ShardId, number: int) -> list[tuple[int, int]]:
        """A row each, many of the same key as the one before. No value is there twice."""
        jobs, dice = self.jobs, random.Random(f"source {self.jobs.setup.seed} {shard} {number}")
        place, shards = jobs.shards.index(shard), len(jobs.shards)
        chosen = dice.choices((place, place + shards), k=dice.randint(2, CALLS_MAX))
        return [(key, dice.getrandbits(30)) for key in chosen]

    def _check(self, shard: ShardId, calls: list[tuple[int, int]]) -> None:
        """Each call is in the WAL, in the order of the source."""
        stored = self.jobs.truth.wal[shard]
        first = {
            row: position
            for position in sorted(stored, reverse=True)
            for row in stored[position].items()
        }
        missing = [call for call in calls if call not in first]
        if missing:
            raise Violation(f"ingest: rows {missing} were told as written, and are in no entry")
        if sorted(calls, key=lambda call: first[call]) != calls:
            raise Violation("ingest: rows are in the WAL in another order than in the source")


@dataclass(frozen=True)
class _Writers:
    """In the place of `ShardWriters`."""

    stores: SimStores
    jobs: Jobs

    @property
    def wal(self) -> WalEntries:
        return WalEntries(self.stores.objects, WalLimits(entries_in_flight_max=1))

    @property
    def manifests(self) -> ShardManifests:
        return self.stores.manifests

    def open(self, shard_id: ShardId, *more: object) -> _OpenShard:
        session = Session(stores=self.stores, jobs=self.jobs, shard=shard_id)
        return _OpenShard(session, session.open())


class _OpenShard:
    """In the place of `OpenShard`."""

    def __init__(self, session: Session, claimed: ShardClaim) -> None:
        self._session, self._claimed = session, claimed
        self.claim = Claim(
            shard_id=session.shard,
            writer_epoch=claimed.writer_epoch,
            start_position=session.next_position - 1,
            first_generation=claimed.manifest.current_generation,
        )

    @property
    def tip(self) -> Tip:
        position = self._session.next_position - 1
        return Tip(writer_epoch=self.claim.writer_epoch, position=position, calls=0)

    def put(self, rows: pa.Table) -> None:
        session, dice = self._session, self._session.stores.actor.scheduler.dice
        changes = dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))
        session.put(self._claimed, changes)
        if dice.random() < TWICE:
            session.jobs.seen["entries stored twice"] += 1
            session.put(self._claimed, changes)
        if dice.random() < FLUSHED:
            self._claimed = session.flush(self._claimed)

    def close(self) -> None:
        self._claimed = self._session.flush(self._claimed)

    def count_generations(self) -> int:
        return self._claimed.manifest.current_generation - self.claim.first_generation
