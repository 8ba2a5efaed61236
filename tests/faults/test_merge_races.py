"""Two mergers on one shard: interleaved by hand at every step, and in processes.

Whatever wins: nothing is lost, doubled or stuck, and no reader sees a change.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from memwal.errors import LostRace, StoreUnavailable
from memwal.jobs.merge.plan import Deletes, FoldFacts, MergeLimits
from memwal.jobs.merge.ports import CommitStats, Fold, MergeTable
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.rows.keys import new_keys_are_compared
from tests.support import builders
from tests.support.builders import KINDS, ONE_COMMIT, TWO_PASSES, Delete, Put, Table
from tests.support.sampling import FULL, grid

pytestmark = pytest.mark.integration

QUICK = MergeLimits(conflict_wait_seconds_max=0.02)
ROUTES = {"one commit": ONE_COMMIT, "two passes": TWO_PASSES}

Ops = Sequence[Put | Delete]
LaidOut = Callable[..., Table]

# Four generations each: key 0 may be in the base already, the rest is new.
WORKLOADS: dict[str, tuple[Sequence[int], Sequence[Ops]]] = {
    "inserts only": ((), [[Put([1, 2], 10)], [Put([2, 3], 20)], [Put([4], 30)], [Put([1], 40)]]),
    "insert, then delete": ((), [[Put([1, 2], 10)], [Delete([1])], [Put([3], 30)], [Delete([2])]]),
    "all deleted again": ((), [[Put([1], 10)], [Delete([1])], [Put([1], 30)], [Delete([1])]]),
    "delete, then insert": (
        (0, 1, 2),
        [[Delete([0, 1])], [Put([0], 20), Delete([2])], [Delete([0])], [Put([0, 1, 2], 40)]],
    ),
    "updates with an anchor in the base": (
        (0, 1),
        [[Put([0, 2], 10)], [Put([3], 20), Delete([2])], [Put([2], 30)], [Delete([3, 1])]],
    ),
    "one new key, over and over": (
        (),
        [[Put([1], 10)], [Put([1], 20), Delete([2])], [Put([1, 2], 30)], [Put([1], 40)]],
    ),
}
TWO_KEYS: tuple[Sequence[int], Sequence[Ops]] = (
    (),
    [[Put([0, 1], 10)], [Delete([0])], [Put([0], 30)], [Delete([1])]],
)

FIRST_PREFIX = 3
PREFIXES = (1, 2, 3, 4) if FULL else (2, 4)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Table]:
    """Tables by workload and kind of key; each is made once, and tests take copies."""

    @cache
    def make(workload: str, kind: str) -> Table:
        base, generations = TWO_KEYS if kind == "bool" else WORKLOADS[workload]
        folder = tmp_path_factory.mktemp("original") / "t"
        table = builders.make_table(folder, kind, rows=base)
        for ops in generations:
            table.flush(table.shards[0], *ops)
        return table

    return make


@pytest.fixture
def laid_out(originals: Callable[[str, str], Table], tmp_path: Path) -> LaidOut:
    """Makes a table with the workload flushed and nothing merged."""
    numbers = count()

    def copy(workload: str, kind: str = "int64") -> Table:
        return originals(workload, kind).copied(tmp_path / str(next(numbers)))

    return copy


def routes(workload: str) -> list[str]:
    """Where nothing is deleted there is one way only."""
    ops = chain.from_iterable(WORKLOADS[workload][1])
    return [*ROUTES] if any(isinstance(op, Delete) for op in ops) else ["one commit"]


def limits_of(route: str) -> MergeLimits:
    return replace(QUICK, tombstones_in_commit_max=ROUTES[route])


def finish(table: Table, version: int, **settings: Any) -> None:
    """Check what is there, merge the rest, check again."""
    version = builders.check_versions(table, version, exact=False)
    for done in table.merge_all(**settings):
        assert done.error is None, done
    builders.check_versions(table, version, exact=False)
    builders.check_merged(table)


# ---- deterministic interleavings


class Intrusion:
    """Steps that run something, once, just before the named step is taken."""

    def __init__(self, step: str, work: Callable[[], None]) -> None:
        self._step = step
        self._work: Callable[[], None] | None = work

    @property
    def happened(self) -> bool:
        return self._work is None

    def __call__(self, step: str) -> None:
        if step == self._step and self._work is not None:
            work, self._work = self._work, None
            work()


def interleave(table: Table, step: str, prefix: int, limits: MergeLimits) -> bool:
    """Run a merger of the first three generations, and inside its `step` a second, whole one."""
    (shard,) = table.shards
    version = int(table.dataset.version)

    def second() -> None:
        other = table.merger(limits=limits)
        done = other.run(shard, MergeRequest(until_generation=prefix))
        assert done.error is None, done

    intrusion = Intrusion(step, second)
    first = table.merger(limits=limits, steps=intrusion)
    done = first.run(shard, MergeRequest(until_generation=FIRST_PREFIX))
    assert done.error is None, done
    wanted = max(prefix, FIRST_PREFIX) if intrusion.happened else FIRST_PREFIX
    assert table.progress()[shard] == wanted
    finish(table, version, limits=limits)
    return intrusion.happened


def deleted_by(table: Table, prefix: int) -> list[builders.Key]:
    """Keys that the first generations, folded, leave deleted."""
    folded: builders.Effects = {}
    for effects in table.effects[table.shards[0]][:prefix]:
        folded.update(effects)
    return [key for key, row in folded.items() if row is None]


@pytest.mark.parametrize(
    ("step", "course"),
    grid(["commit", "committed"], [(w, r) for w in WORKLOADS for r in routes(w)]),
    ids=str,
)
def test_a_second_merger_around_the_commit(
    laid_out: LaidOut, step: str, course: tuple[str, str]
) -> None:
    workload, route = course
    # Once the first has landed, what it covers is nothing to do, however much of it is asked for.
    for prefix in PREFIXES if step == "commit" else (FIRST_PREFIX, FIRST_PREFIX + 1):
        table = laid_out(workload)
        assert interleave(table, step, prefix, limits_of(route))


@pytest.mark.parametrize(
    ("step", "workload"),
    grid(
        ["delete_pass", "between_passes"],
        [w for w in WORKLOADS if "two passes" in routes(w)],
    ),
    ids=str,
)
def test_a_second_merger_around_the_delete_pass(
    laid_out: LaidOut, step: str, workload: str
) -> None:
    for prefix in PREFIXES:
        table = laid_out(workload)
        happened = interleave(table, step, prefix, limits_of("two passes"))
        assert happened or not deleted_by(table, FIRST_PREFIX)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_merger_with_every_type_of_key(laid_out: LaidOut, kind: str) -> None:
    """New keys in both folds: what Lance compares, and what the guard has to make up for."""
    for workload in ("inserts only", "insert, then delete"):
        for route, prefix in product(routes(workload), PREFIXES if kind == "bool" else [2]):
            table = laid_out(workload, kind)
            assert interleave(table, "commit", prefix, limits_of(route))


def test_two_shards_that_insert_much_at_once(tmp_path: Path) -> None:
    """Lance refuses one of two racing commits with 200 and more new keys each: both must land."""
    table = builders.make_table(tmp_path / "t", shards=2)
    first, second = table.shards
    for number in range(2):
        table.flush(first, Put(range(number * 1000, number * 1000 + 300), 1))
        table.flush(second, Put(range(5000 + number * 1000, 5300 + number * 1000), 2))
    version = int(table.dataset.version)

    def other() -> None:
        assert table.merger(limits=QUICK).run(second, MergeRequest()).error is None

    merger = table.merger(limits=QUICK, steps=Intrusion("commit", other))
    done = merger.run(first, MergeRequest())
    assert done.error is None
    finish(table, version)


# ---- why there is a guard


def type_texts(kind: str) -> tuple[str, ...]:
    return tuple(str(column) for _, column in KINDS[kind].columns)


def unguarded(table: Table, dataset: Any, rows: pa.Table, mark: int, use_index: bool) -> None:
    """What one would write without knowing better."""
    (
        dataset.merge_insert(list(table.kind.names))
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .conflict_retries(0)
        .use_index(use_index)
        .mark_sstables_as_compacted([CompactedSsTable(table.shards[0], mark)])
        .execute(rows)
    )


def race_unguarded(table: Table, use_index: bool) -> list[Any]:
    """Generation 1, then 1 to 2 from a handle that is older; the base's new keys afterwards."""
    late, early = table.dataset, table.dataset
    rows = pa.Table.from_pylist([table.row(1, 10)], schema=early.schema)
    unguarded(table, early, rows, 1, use_index)
    unguarded(table, late, rows, 2, use_index)
    return [k for k in table.dataset.to_table()["k"].to_pylist() if (k,) != table.kind.key(0)]


@pytest.mark.parametrize(
    ("kind", "join"), [("int64", "index"), ("int8", "scan"), ("int8", "index"), ("bool", "scan")]
)
def test_pylance_doubles_a_key_that_two_racing_folds_insert(
    tmp_path: Path, kind: str, join: str
) -> None:
    """Observed on 14.0.2, and why folds are guarded. When this fails, the guard may go."""
    table = laid_out_for_the_guard(tmp_path, kind, join)
    (key,) = table.kind.key(1)
    assert race_unguarded(table, join == "index") == [key, key]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [k for k in KINDS if new_keys_are_compared(type_texts(k))])
@pytest.mark.parametrize("stable_row_ids", [False, True])
@pytest.mark.parametrize("many", [1, 3000])
def test_pylance_notices_a_key_that_two_racing_scan_joins_insert(
    tmp_path: Path, kind: str, stable_row_ids: bool, many: int
) -> None:
    """What an anchor that is not in the base yet rests on."""
    table = builders.make_table(tmp_path / "t", kind, enable_stable_row_ids=stable_row_ids)
    late, early = table.dataset, table.dataset
    first = [table.row(key, 10) for key in (1, 2)]
    second = [table.row(key, 20) for key in range(1, 1 + many)]
    unguarded(table, early, pa.Table.from_pylist(first, schema=early.schema), 1, False)
    with pytest.raises(OSError, match="Too many concurrent writers"):
        unguarded(table, late, pa.Table.from_pylist(second, schema=late.schema), 2, False)


def test_pylance_leaves_a_key_that_the_longer_fold_deletes(tmp_path: Path) -> None:
    """A shorter fold inserts a key, the longer one has only its tombstone: they share no row."""
    table = laid_out_for_the_guard(tmp_path, "int64", "scan")
    late, early = table.dataset, table.dataset
    unguarded(table, early, pa.Table.from_pylist([table.row(1, 10)], schema=early.schema), 1, False)
    (
        late.merge_insert("k")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete(f"k IN ({table.kind.key(1)[0]})")
        .conflict_retries(0)
        .use_index(False)
        .mark_sstables_as_compacted([CompactedSsTable(table.shards[0], 2)])
        .execute(late.schema.empty_table())
    )
    assert table.progress() == {table.shards[0]: 2}
    assert table.kind.key(1) in table.base_rows()


def laid_out_for_the_guard(path: Path, kind: str, join: str) -> Table:
    # One row: an index on an empty table is passed over, and the join is a scan.
    return builders.make_table(path / "t", kind, rows=[0], indexed=join == "index")


# ---- processes

ROUNDS = 6


@dataclass(frozen=True)
class Part:
    """One merger's share of a round; plain data, for another process."""

    uri: str
    kind: str
    shard: str
    tombstones_max: int
    generations_max: int


def merge_part(part: Part) -> ShardReport:
    table = Table(uri=part.uri, kind=KINDS[part.kind])
    limits = replace(
        QUICK,
        tombstones_in_commit_max=part.tombstones_max,
        generations_per_commit_max=part.generations_max,
    )
    merger = table.merger(limits=limits)
    return merger.run(ShardId(part.shard), MergeRequest())


def race(table: Table, kind: str, number: int, workers: Sequence[Executor]) -> None:
    """Both mergers on what is pending, with prefixes of different lengths."""
    version = int(table.dataset.version)
    parts = [
        Part(
            uri=table.uri,
            kind=kind,
            shard=table.shards[0],
            tombstones_max=(number % 2) * ONE_COMMIT,
            generations_max=generations,
        )
        for generations in ((1, 2, 64)[number % 3], (64, 3)[number % 2])
    ]
    running = [w.submit(merge_part, part) for w, part in zip(workers, parts, strict=True)]
    for done in [future.result() for future in running]:
        assert done.error is None, done
    builders.check_versions(table, version, exact=False)
    builders.check_merged(table)


def flush_round(table: Table, number: int) -> None:
    """Insert, delete and insert again, keys old and new."""
    capacity = table.kind.keys_max
    fresh = [0, 1] if capacity == 2 else [(number * 5 + at) % min(capacity, 100) for at in range(5)]
    half = fresh[: len(fresh) // 2]
    (shard,) = table.shards
    for place, op in enumerate([Put(fresh, 1), Delete(half), Put(half, 3), Delete(fresh[-1:])]):
        ops = [replace(op, n=100 * number + 10 * place) if isinstance(op, Put) else op]
        table.flush(shard, *ops)


@pytest.fixture(scope="module")
def processes() -> Any:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        yield [stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in range(2)]


@pytest.mark.nightly
@pytest.mark.races
@pytest.mark.parametrize("kind", ["int64", "int8", "bool", "utf8"])
def test_two_mergers_in_processes(tmp_path: Path, processes: Sequence[Executor], kind: str) -> None:
    table = builders.make_table(tmp_path / "t", kind)
    for number in range(ROUNDS):
        flush_round(table, number)
        race(table, kind, number, processes)


# ---- lost replies


@dataclass(frozen=True)
class FaultyFold:
    """A Fold whose writes fail by script: before they are done, or after (a lost reply)."""

    inner: Fold
    faults: list[str]
    error: Exception

    @property
    def facts(self) -> FoldFacts:
        return self.inner.facts

    @property
    def double_keys(self) -> int:
        return self.inner.double_keys

    @property
    def bytes_read(self) -> int:
        return self.inner.bytes_read

    def rebase(self, view: TableView) -> Fold:
        return replace(self, inner=self.inner.rebase(view))

    def delete_pass(self) -> tuple[int, int]:
        return self._call("delete_pass", lambda: self.inner.delete_pass())

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        return self._call("commit", lambda: self.inner.commit(deletes, mark))

    def _call(self, what: str, effect: Callable[[], Any]) -> Any:
        fault = next((f for f in self.faults if f.startswith(what)), None)
        if fault is None:
            return effect()
        self.faults.remove(fault)
        if fault.endswith("after"):
            effect()
        raise self.error


@dataclass(frozen=True)
class FaultyTable:
    """A MergeTable that hands out faulty folds; they share one script."""

    inner: MergeTable
    faults: list[str]
    error: Exception

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> Fold:
        inner = self.inner.fold(view, shard_id, generations)
        return FaultyFold(inner=inner, faults=self.faults, error=self.error)


def run_with_faults(
    table: Table, limits: MergeLimits, faults: Sequence[str], error: Exception, **settings: Any
) -> ShardReport:
    merger = table.merger(limits=limits)
    faulty = FaultyTable(inner=merger.table, faults=list(faults), error=error)
    return replace(merger, table=faulty, **settings).run(table.shards[0], MergeRequest())


@pytest.mark.parametrize(
    ("course", "faults"),
    grid(
        # A pass of its own for deletes comes first: of one commit, only its faults are to be had.
        [*product(["two passes", "one commit"], ["insert, then delete", "delete, then insert"])],
        [
            ("delete_pass before",),
            ("delete_pass after", "commit after"),
            ("commit before",),
            ("commit after",),
            ("commit before", "commit after"),
        ],
    ),
    ids=str,
)
def test_a_lost_reply_is_looked_up(
    laid_out: LaidOut, course: tuple[str, str], faults: Sequence[str]
) -> None:
    route, workload = course
    for error in (StoreUnavailable("the reply was lost"), LostRace("so it seemed")):
        table = laid_out(workload)
        version = int(table.dataset.version)
        limits = replace(limits_of(route), generations_per_commit_max=2)
        done = run_with_faults(table, limits, faults, error)
        assert done.error is None, done
        assert done.to_generation == 4
        if "commit after" in faults:
            assert done.commits_found_landed == 1
        builders.check_versions(table, version, exact=False)
        builders.check_merged(table)


@dataclass(frozen=True)
class BlindAfter:
    """Views that can't be read any more once `blind` holds something."""

    inner: Any
    blind: list[bool]

    def __getattr__(self, name: str) -> Any:
        if self.blind:
            raise StoreUnavailable("the store is gone")
        return getattr(self.inner, name)


@pytest.mark.parametrize("fault", ["commit before", "commit after"])
def test_progress_that_cannot_be_read_is_reported_as_unknown(laid_out: LaidOut, fault: str) -> None:
    table = laid_out("insert, then delete")
    version = int(table.dataset.version)
    blind: list[bool] = []
    merger = table.merger(limits=QUICK)

    def steps(step: str) -> None:
        if step == "commit":
            blind.append(True)

    done = run_with_faults(
        table,
        QUICK,
        [fault],
        StoreUnavailable("the reply was lost"),
        views=BlindAfter(merger.views, blind),
        steps=steps,
    )
    assert (done.outcome, done.exit_code, done.commits) == ("failed", 1, 0)
    assert "may or may not have landed" in (done.error or "")
    assert "the reply was lost" in (done.error or "")
    finish(table, version)


def test_a_store_that_stays_away_is_given_up(laid_out: LaidOut) -> None:
    table = laid_out("inserts only")
    done = run_with_faults(table, QUICK, ["commit before"] * 9, StoreUnavailable("503"))
    assert (done.outcome, done.exit_code) == ("failed", 1)
    assert "503" in (done.error or "")
    finish(table, int(table.dataset.version))
