"""Mergers killed with SIGKILL at every step, and writers that go on beside merges."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from tests.support import builders
from tests.support.builders import KINDS, ONE_COMMIT, TWO_PASSES, Delete, Put, Table
from tests.support.nursery import killed, start

pytestmark = pytest.mark.nightly


# ---- killed mergers

REPORT = "report"
STEPS = {
    ONE_COMMIT: ["commit", "committed", REPORT],
    TWO_PASSES: ["delete_pass", "between_passes", "commit", "committed", REPORT],
}


def merge_and_die(uri: str, shard: str, tombstones_max: int, step: str, nth: int) -> None:
    """Runs in a process of its own: merge, and be killed the nth time that `step` is about to be.

    With nth = 0 it only says that it is there, and whoever listens does the killing.
    """
    seen = 0

    def steps(name: str) -> None:
        nonlocal seen
        if name == step:
            seen += 1
            if nth == 0:
                print(name, flush=True)
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    table = Table(uri=uri, kind=KINDS["int64"])
    limits = MergeLimits(tombstones_in_commit_max=tombstones_max, generations_per_commit_max=2)
    merger = table.merger(limits=limits, steps=steps)
    merger.run(ShardId(shard), MergeRequest())
    steps(REPORT)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Five generations, each with tombstones; merged two at a time."""
    table = builders.make_table(tmp_path_factory.mktemp("original") / "t", rows=range(6))
    for number in range(5):
        key = 10 + 2 * number
        table.flush(
            table.shards[0],
            Put([key, key + 1, 0], 100 * number + 1),
            Delete([key - 1, 5 - number]),
        )
    return table


@pytest.fixture
def table(original: Table, tmp_path: Path) -> Table:
    return original.copied(tmp_path / "t")


def check_after_kill(table: Table, version: int) -> None:
    """What a killed merger left is right, the next run finishes, and no reader saw a thing."""
    seen = builders.check_versions(table, version, exact=False)
    for done in table.merge_all():
        assert done.error is None, done
    builders.check_versions(table, seen, exact=False)
    builders.check_merged(table)
    assert [done.outcome for done in table.merge_all()] == ["nothing_to_do"]


@pytest.mark.parametrize(
    ("tombstones_max", "step"),
    [(most, step) for most, steps in STEPS.items() for step in steps],
    ids=lambda value: {ONE_COMMIT: "one commit", TWO_PASSES: "two passes"}.get(value, value),
)
def test_a_merger_killed_at_a_step(table: Table, tombstones_max: int, step: str) -> None:
    version = int(table.dataset.version)
    epochs = builders.epochs(table)
    nth = 1 if step == REPORT else 2
    assert killed(merge_and_die, table.uri, table.shards[0], tombstones_max, step, nth)
    merged = table.progress().get(table.shards[0], 0)
    assert merged == {REPORT: 5, "committed": 4}.get(step, 2)
    assert builders.epochs(table) == epochs
    check_after_kill(table, version)


@pytest.mark.parametrize("after", range(1, 4))
def test_a_merger_killed_while_it_commits(table: Table, after: int) -> None:
    """No step is exact here: the kill comes as soon as the commit is announced."""
    version = int(table.dataset.version)
    with start(merge_and_die, table.uri, table.shards[0], TWO_PASSES, "commit", 0) as process:
        for _ in range(after):
            assert process.stdout.readline() == "commit\n"
        process.kill()
    check_after_kill(table, version)


# ---- a live writer

BATCHES = 150
BATCH_ROWS = 5


def operations() -> Iterator[Put | Delete]:
    for number in range(BATCHES):
        first = 3 * number
        yield Put(range(first, first + BATCH_ROWS), 1000 * number)
        if number % 4 == 3:
            yield Delete([first, first - 3])


def write_live(uri: str, shard: str) -> None:
    """One writer session that flushes all the time, and says when it has begun."""
    table = Table(uri=uri, kind=KINDS["int64"])
    schema = table.dataset.schema
    with table.writer(ShardId(shard), max_memtable_rows=2 * BATCH_ROWS) as writer:
        for op in operations():
            builders.apply(table, writer, schema, op, {})
            print("written", flush=True)


@pytest.mark.races
def test_a_live_writer_in_another_process_is_left_alone(tmp_path: Path) -> None:
    """Nothing that the writer was told is written is lost, and its claim is untouched."""
    table = builders.make_table(tmp_path / "t", rows=range(10))
    (shard,) = table.shards
    commits = 0
    with start(write_live, table.uri, shard) as process:
        assert process.stdout.readline() == "written\n"
        while process.poll() is None:
            for done in table.merge_all():
                assert done.error is None, done
                commits += done.commits
    assert process.returncode == 0
    assert commits > 1, "no merge ran beside the writer"
    assert builders.epochs(table) == {shard: 1}
    for done in table.merge_all():
        assert done.error is None, done
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    assert table.progress()[shard] == manifest.current_generation - 1
    # The last state of every key is all that can be told: the writer chose where to cut.
    effects: builders.Effects = {}
    for op in operations():
        builders.apply(table, Mock(), table.dataset.schema, op, effects)
    table.effects[shard] = [effects]
    builders.same_rows(table.base_rows(), table.truth(), "base after a live writer")
    builders.same_rows(table.lsm_rows(), table.truth(), "LSM read after a live writer")
