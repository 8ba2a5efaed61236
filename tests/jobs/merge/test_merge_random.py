"""Random histories against a plain-dict model, checked at every version that a merge makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.jobs.merge.job import MergeUnit, report_shards, run_merge_unit
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from memwal.ports import Engine
from memwal.run.engines.pool import LocalEngine
from tests.support import builders
from tests.support.builders import KINDS, Delete, KeyKind, Put, Table
from tests.support.s3server import S3Server
from tests.support.sampling import seeds

pytestmark = pytest.mark.integration

ROUNDS = 6
KEYS_PER_SHARD_MAX = 40
MANY_NEW_KEYS = 260
"""Enough that two shards' inserts at once conflict every time (seen on pylance 14)."""


def each_seed(full: int, part: int = 1) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", seeds(full, part), ids=lambda seed: f"seed={seed}")


Merge = Callable[[Table, MergeRequest, MergeLimits], Sequence[ShardReport]]


def through_units(engine: Engine[Any, Any]) -> Merge:
    """Merge as the jobs do: a unit a shard, on an engine."""

    def merge(table: Table, request: MergeRequest, limits: MergeLimits) -> Sequence[ShardReport]:
        units = [
            MergeUnit(
                uri=table.uri,
                storage_options=table.options,
                shard_ids=(shard,),
                request=request,
                limits=limits,
            )
            for shard in claimed(table)
        ]
        results = engine.run(run_merge_unit, units, lambda done: None)
        return [
            merge
            for unit, found in zip(units, results, strict=True)
            for merge in report_shards(unit, found)
        ]

    return merge


def together(table: Table, request: MergeRequest, limits: MergeLimits) -> Sequence[ShardReport]:
    """Merge all shards in one unit, with shared commits."""
    unit = MergeUnit(
        uri=table.uri,
        storage_options=table.options,
        shard_ids=tuple(claimed(table)),
        request=request,
        limits=limits,
    )
    return report_shards(unit, run_merge_unit(unit)) if unit.shard_ids else ()


def claimed(table: Table) -> list[ShardId]:
    return [shard for shard in table.shards if table.effects[shard]]


class Story:
    """One random history of one table."""

    def __init__(self, uri: object, seed: int, merge: Merge, **table: Any) -> None:
        self.rng = random.Random(seed)
        self.merge = merge
        self.numbers = builders.numbers()
        self.tombstones_max = self.rng.choice([builders.ONE_COMMIT, builders.TWO_PASSES, 2])
        kind = self.rng.choice(list(KINDS.values()))
        self.shards = min(self.rng.randint(1, 3), kind.keys_max)
        self.keys = min(KEYS_PER_SHARD_MAX, kind.keys_max // self.shards)
        rows = [k for k in range(self.shards * self.keys) if self.rng.random() < 0.4]
        self.table = builders.make_table(
            uri,
            kind,
            rows=rows,
            doubles=rows[:: self.rng.choice([1, 5, 1000])],
            shards=self.shards,
            indexed=self._indexable(kind) and self.rng.random() < 0.7,
            enable_stable_row_ids=self.rng.random() < 0.3,
            **table,
        )
        self.version = int(self.table.dataset.version)

    def play(self, rounds: int = ROUNDS) -> None:
        for _ in range(rounds):
            for _ in range(self.rng.randint(1, 5)):
                self._flush(self.rng.randrange(self.shards))
            if self.rng.random() < 0.5:
                self.rng.choice([self._compact, self._index, self._optimize, self._add_column])()
            self._merge_some()
        self._merge_rest()

    @staticmethod
    def _indexable(kind: KeyKind) -> bool:
        return len(kind.columns) == 1

    # -- writing

    def _flush(self, place: int) -> None:
        """One generation: batches of puts and deletes of the shard's own keys, in any order."""
        ops = [self._op(place) for _ in range(self.rng.randint(1, 4))]
        if self.rng.random() < 0.1 and self.table.kind.keys_max >= 100_000:
            first = self.rng.randrange(100) * self.shards * MANY_NEW_KEYS
            keys = range(1000 + first, 1000 + first + self.shards * MANY_NEW_KEYS)
            ops.append(Put(keys[place :: self.shards], next(self.numbers)))
        self.table.flush(self.table.shards[place], *ops)

    def _op(self, place: int) -> Put | Delete:
        count = self.rng.randint(1, min(8, self.keys))
        keys = [place + self.shards * k for k in self.rng.sample(range(self.keys), count)]
        if self.rng.random() < 0.35:
            return Delete(keys)
        extra = {name: next(self.numbers) for name in self._added() if self.rng.random() < 0.8}
        return Put(keys, next(self.numbers), extra)

    # -- what the table's owner does between merges

    def _added(self) -> list[str]:
        return [n for n in self.table.dataset.schema.names if n.startswith("added_")]

    def _compact(self) -> None:
        self.table.dataset.optimize.compact_files()

    def _index(self) -> None:
        self.table.dataset.create_scalar_index("n", "BTREE", name="n_idx", replace=True)

    def _optimize(self) -> None:
        self.table.dataset.optimize.optimize_indices()

    def _add_column(self) -> None:
        name = f"added_{next(self.numbers)}"
        self.table.dataset.add_columns(pa.field(name, pa.int64()))

    # -- merging

    def _limits(self) -> MergeLimits:
        return MergeLimits(
            generations_per_commit_max=self.rng.choice([1, 2, 3, 64]),
            bytes_per_commit_max=self.rng.choice([1, 2_000, 256 * 2**20]),
            tombstones_in_commit_max=self.tombstones_max,
            conflict_wait_seconds_max=0.05,
        )

    def _merge_some(self) -> None:
        longest = max(len(done) for done in self.table.effects.values())
        until = self.rng.choice([None, self.rng.randint(1, longest)])
        self._checked_merge(MergeRequest(until_generation=until), self._limits())

    def _merge_rest(self) -> None:
        self._checked_merge(MergeRequest(), self._limits())
        builders.check_merged(self.table)

    def _checked_merge(self, request: MergeRequest, limits: MergeLimits) -> None:
        before = self.table.progress()
        for done in self.merge(self.table, request, limits):
            assert done.outcome in ("done", "nothing_to_do"), done
            wanted = len(self.table.effects[done.shard_id])
            wanted = min(wanted, request.until_generation or wanted)
            reached = max(wanted, before.get(done.shard_id, 0))
            assert done.to_generation == reached, done
        one_commit = self.tombstones_max == builders.ONE_COMMIT
        self.version = builders.check_versions(self.table, self.version, exact=one_commit)
        for shard, generation in before.items():
            assert self.table.progress()[shard] >= generation


@each_seed(6)
def test_a_random_history_through_the_local_engine(tmp_path: Path, seed: int) -> None:
    Story(tmp_path / "t", seed, through_units(LocalEngine())).play()


@each_seed(6)
def test_a_random_history_with_shared_commits(tmp_path: Path, seed: int) -> None:
    Story(tmp_path / "t", 4000 + seed, together).play()


@pytest.mark.nightly
@each_seed(1)
def test_a_random_history_on_s3(
    make_s3_uri: Callable[[], str], s3_server: S3Server, seed: int
) -> None:
    options = s3_server.storage_options
    # Few rounds: moto takes half a second for what a disk does in ten milliseconds.
    Story(make_s3_uri(), 2000 + seed, through_units(LocalEngine()), options=options).play(rounds=2)


@pytest.fixture(scope="module")
def spark() -> Iterator[Engine[Any, Any]]:
    from memwal.run.engines.spark import SparkEngine

    engine = SparkEngine(master="local[2]")
    yield engine
    engine.stop()


@pytest.mark.spark
@each_seed(2)
def test_a_random_history_through_spark(tmp_path: Path, spark: Engine[Any, Any], seed: int) -> None:
    Story(tmp_path / "t", 3000 + seed, through_units(spark)).play()
