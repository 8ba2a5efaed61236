"""CommitQueue to commit: what a merge does about them, and those that a host's processes take."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.clock import SystemClock
from memwal.errors import LostRace, StandDown
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store.commits import REMEMBERED_SECONDS, WAIT_SECONDS_MAX, HostCommitQueue
from memwal.testing import ManualClock
from memwal.testing.tables import ManualCommitQueue
from tests.jobs.merge.merge_worlds import BASE, Fake, Where, where
from tests.support.builders import Delete, Put

ONE_EACH = MergeLimits(generations_per_commit_max=1)


@pytest.fixture(params=["memory", "lake", pytest.param("local", marks=pytest.mark.integration)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return where(request.param, tmp_path)


def fill(table: Where) -> None:
    one, other = table.shards
    table.flush(one, Put([2, 50], 1))
    table.flush(one, Put([4], 10), Delete([6]))
    table.flush(other, Put([1, 51], 20))


MERGED = {k: 1000 + k for k in BASE} | {2: 1, 50: 2, 4: 10, 1: 20, 51: 21}
del MERGED[6]


def once(work: Callable[[], object]) -> Callable[[], None]:
    """Others do it before the first turn only."""
    done: list[object] = []

    def meanwhile() -> None:
        if not done:
            done.append(work())

    return meanwhile


def alone(table: Where, turns: ManualCommitQueue, limits: MergeLimits = ONE_EACH) -> ShardReport:
    return table.merger(queue=turns, limits=limits).run(table.shards[0], MergeRequest())


# ---- merges


def test_who_waited_commits_on_what_the_others_left(table: Where) -> None:
    """Without a look at it the commit would be refused: both insert, and one updates a row."""
    fill(table)
    table.flush(table.shards[1], Put([50], 3))
    turns = ManualCommitQueue(
        meanwhile=once(lambda: table.merger().run(table.shards[1], MergeRequest()))
    )
    merge = alone(table, turns)
    assert (merge.outcome, merge.commits, merge.conflicts) == ("done", 2, 0)
    assert (turns.turns, turns.losses) == (2, 0)
    assert table.numbers() == MERGED


@pytest.mark.parametrize("until", [1, 2])
@pytest.mark.parametrize("limits", [ONE_EACH, MergeLimits()], ids=["one each", "both"])
def test_a_prefix_that_others_merged_meanwhile_is_not_merged_again(
    table: Where, until: int, limits: MergeLimits
) -> None:
    fill(table)
    others = table.merger(limits=limits)
    turns = ManualCommitQueue(
        meanwhile=once(lambda: others.run(table.shards[0], MergeRequest(until_generation=until)))
    )
    merge = alone(table, turns, limits)
    assert merge.outcome == "done"
    assert merge.commits == 2 - until
    assert (merge.conflicts, merge.commits_found_landed, turns.losses) == (0, 0, 0)
    table.merger().run(table.shards[1], MergeRequest())
    assert table.numbers() == MERGED


@pytest.mark.parametrize("until", [1, 2])
def test_shards_that_share_look_again_as_well(table: Where, until: int) -> None:
    fill(table)
    one, other = table.shards
    turns = ManualCommitQueue(
        meanwhile=once(lambda: table.merger().run(one, MergeRequest(until_generation=until)))
    )
    done = SharedMerger(single=table.merger(queue=turns)).run(table.shards, MergeRequest())
    assert [m.outcome for m in done] == ["done", "done"]
    assert turns.losses == 0
    assert table.numbers() == MERGED
    assert table.progress() == {one: 2, other: 1}


@pytest.mark.parametrize("together", [False, True])
def test_time_that_was_waited_is_not_held_against_a_commit(together: bool) -> None:
    table = Fake()
    fill(table)
    limits = MergeLimits(conflict_seconds_max=60)
    refused: list[str] = []

    def steps(step: str) -> None:
        if step == "commit" and not refused:
            refused.append(step)
            raise LostRace("once")

    turns = ManualCommitQueue(meanwhile=lambda: table.table.clock.sleep(90))
    merger = table.merger(queue=turns, limits=limits, steps=steps)
    if together:
        done = SharedMerger(single=merger).run(table.shards, MergeRequest())
    else:
        done = tuple(merger.run(shard, MergeRequest()) for shard in table.shards)
    assert [(m.outcome, m.error) for m in done] == [("done", None)] * 2
    assert sum(m.commits_shared for m in done) == together
    assert table.numbers() == MERGED


def test_a_refused_commit_is_told(table: Where) -> None:
    fill(table)
    table.flush(table.shards[1], Put([50], 3))
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(table.merger().run(table.shards[1], MergeRequest()))

    turns = ManualCommitQueue(held=False)
    merge = table.merger(queue=turns, steps=steps).run(table.shards[0], MergeRequest())
    assert (merge.outcome, merge.conflicts, turns.losses) == ("done", 1, 1)


@pytest.mark.integration
@pytest.mark.parametrize(("new", "lands"), [(10, True), (200, False)])
def test_lance_refuses_the_second_of_two_commits_that_insert_many(
    tmp_path: Path, new: int, lands: bool
) -> None:
    # Plain pylance: what turns are taken for. When it accepts both, turns can go.
    primary_key = {b"lance-schema:unenforced-primary-key": b"true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=primary_key)])
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": range(5)}, schema=schema), uri)

    def insert(dataset: lance.LanceDataset, first: int) -> None:
        rows = pa.table({"id": range(first, first + new)}, schema=schema)
        dataset.merge_insert(["id"]).when_not_matched_insert_all().conflict_retries(0).execute(rows)

    one, other = (lance.dataset(uri) for _ in range(2))
    insert(one, 1_000)
    if lands:
        insert(other, 1_000_000)
    else:
        with pytest.raises(OSError, match="Too many concurrent writers"):
            insert(other, 1_000_000)
    assert lance.dataset(uri).count_rows() == 5 + new * (1 + lands)


# ---- a host's turns


def host(folder: Path, clock: ManualClock | None = None, uri: str = "t") -> HostCommitQueue:
    return HostCommitQueue(uri, clock or ManualClock(), folder=folder / "turns")


def test_nobody_waits_where_nobody_was_refused(tmp_path: Path) -> None:
    with host(tmp_path).turn() as held:
        assert not held
    assert list(tmp_path.iterdir()) == []


def test_turns_are_remembered_for_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    turns = host(tmp_path, clock)
    turns.lost()
    with turns.turn() as held:
        assert held
    with host(tmp_path, clock, uri="another").turn() as held:
        assert not held
    clock.advance(REMEMBERED_SECONDS + 1)
    with turns.turn() as held:
        assert not held


def test_one_at_a_time(tmp_path: Path) -> None:
    """The second one begins when the first one has ended, also in one process."""
    waits, order = threading.Event(), []
    first = HostCommitQueue("t", SystemClock(), folder=tmp_path / "turns")
    second = HostCommitQueue("t", SystemClock(), waiting=waits.set, folder=tmp_path / "turns")
    first.lost()

    def take() -> None:
        with second.turn() as held:
            order.append(("second", held))

    thread = threading.Thread(target=take)
    with first.turn() as held:
        assert held
        thread.start()
        assert waits.wait(60)
        order.append(("first", held))
    thread.join(60)
    assert order == [("first", True), ("second", True)]


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    turns = HostCommitQueue("t", SystemClock(), folder=tmp_path / "turns")
    turns.lost()
    code = (
        "import sys, time; from pathlib import Path; from memwal.clock import SystemClock\n"
        "from memwal.jobs.merge.store.commits import HostCommitQueue\n"
        "with HostCommitQueue('t', SystemClock(), folder=Path(sys.argv[1])).turn() as held:\n"
        "    print(held, flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "turns")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    waited: list[bool] = []

    def kill() -> None:
        if not waited:
            waited.append(True)
            holder.kill()
            holder.wait(60)

    with HostCommitQueue(
        "t", SystemClock(), waiting=kill, folder=tmp_path / "turns"
    ).turn() as held:
        assert held
    assert waited == [True]


def test_who_waits_in_vain_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    host(tmp_path, clock).lost()
    with host(tmp_path, clock).turn() as first, host(tmp_path, clock).turn() as second:
        assert (first, second) == (True, False)
    assert WAIT_SECONDS_MAX <= sum(clock.slept_seconds) < WAIT_SECONDS_MAX + 1


def test_who_is_cancelled_waits_no_longer(tmp_path: Path) -> None:
    clock = ManualClock()

    def cancelled() -> None:
        raise StandDown("cancelled")

    host(tmp_path, clock).lost()
    waiting = HostCommitQueue("t", clock, waiting=cancelled, folder=tmp_path / "turns")
    with host(tmp_path, clock).turn(), pytest.raises(StandDown), waiting.turn():
        pytest.fail("it was not its turn")
    with waiting.turn() as held:
        assert held


def test_where_no_file_can_be_made_there_are_no_turns(tmp_path: Path) -> None:
    (tmp_path / "turns").write_text("a file")
    turns = host(tmp_path)
    turns.lost()
    with turns.turn() as held:
        assert not held
    assert (tmp_path / "turns").read_text() == "a file"


def test_where_nothing_can_be_locked_there_are_no_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    turns = host(tmp_path)
    turns.lost()
    monkeypatch.setattr(fcntl, "flock", refused)
    with turns.turn() as held:
        assert not held


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    clock = ManualClock()
    turns = host(tmp_path, clock)
    turns.lost()
    (made,) = (tmp_path / "turns").iterdir()
    made.unlink()
    target = tmp_path / "target"
    target.write_text("not ours")
    os.utime(target, (1, 1))
    made.symlink_to(target)
    turns.lost()
    assert target.stat().st_mtime == 1
    with turns.turn() as held:
        assert not held


def test_a_folder_that_may_be_somebody_else_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "turns").symlink_to(tmp_path / "elsewhere")
    old = tmp_path / "elsewhere" / "old.turn"
    old.touch()
    os.utime(old, (1, 1))
    turns = host(tmp_path)
    turns.lost()
    with turns.turn() as held:
        assert not held
    assert list((tmp_path / "elsewhere").iterdir()) == [old]


def test_where_there_is_no_temporary_folder_there_are_no_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    turns = HostCommitQueue("t", ManualClock())
    turns.lost()
    with turns.turn() as held:
        assert not held


def test_a_process_that_was_forked_in_a_turn_does_not_keep_it(tmp_path: Path) -> None:
    HostCommitQueue("t", SystemClock(), folder=tmp_path / "turns").lost()
    code = (
        "import os, signal, sys; from pathlib import Path; from memwal.clock import SystemClock\n"
        "from memwal.jobs.merge.store.commits import HostCommitQueue\n"
        "turns = HostCommitQueue('t', SystemClock(), folder=Path(sys.argv[1]))\n"
        "with turns.turn():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.pause()\n"
        "def told():\n"
        "    raise SystemExit('it is still locked')\n"
        "again = HostCommitQueue('t', SystemClock(), waiting=told, folder=Path(sys.argv[1]))\n"
        "try:\n"
        "    with again.turn() as held:\n"
        "        print(held)\n"
        "finally:\n"
        "    os.kill(child, signal.SIGKILL)"
    )
    # Lance warns of the fork, which is what the test is about.
    words = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "turns")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")
