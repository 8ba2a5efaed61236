"""The table changes under a merge that is under way: overwritten, or its anchor row deleted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from memwal.format import layout
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.request import MergeRequest
from memwal.ports import no_steps
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Table

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("when", ["commit", "committed"])
def test_a_table_initialised_again_midway_gets_no_dead_rows(tmp_path: Path, when: str) -> None:
    table = builders.make_table(tmp_path / "t", rows=[0])
    (shard,) = table.shards
    for number in range(4):
        table.flush(shard, Put([number + 5], 10))
    done: list[str] = []

    def steps(step: str) -> None:
        if step == when and not done:
            done.append(step)
            empty = table.dataset.schema.empty_table()
            lance.write_dataset(empty, table.uri, mode="overwrite")
            table.dataset.initialize_mem_wal()

    limits = MergeLimits(generations_per_commit_max=1, conflict_wait_seconds_max=0.02)
    merge = table.merger(limits=limits, steps=steps).run(shard, MergeRequest())
    assert done == [when]
    assert merge.outcome in ("refused", "partial")
    assert merge.error is not None
    assert table.dataset.count_rows() == 0
    assert table.progress() == {}


def test_an_anchor_that_a_user_deletes_under_the_delete_pass(tmp_path: Path) -> None:
    """What was known of the fold holds no longer."""
    table = builders.make_table(tmp_path / "t", rows=[2, 3, 4, 5], indexed=True)
    (shard,) = table.shards
    anchor = table.kind.key(2)[0]
    table.flush(shard, Put([2], 10))
    table.flush(shard, Delete([3]))
    limits = MergeLimits(tombstones_in_commit_max=0, conflict_wait_seconds_max=0.02)
    done: list[str] = []

    def steps(step: str) -> None:
        if step == "delete_pass" and step not in done:
            done.append(step)
            table.dataset.delete(f"k = {anchor}")
        if step == "commit" and step not in done:
            done.append(step)
            second = table.merger(limits=limits)
            assert second.run(shard, MergeRequest(until_generation=1)).outcome == "done"

    merge = table.merger(limits=limits, steps=steps).run(shard, MergeRequest())
    assert done == ["delete_pass", "commit"]
    assert merge.outcome == "done"
    builders.check_merged(table)


FEW = MergeLimits(tombstones_in_commit_max=200, conflict_wait_seconds_max=0.02)
"""Of deletes beside rows; the tests here have more."""


@pytest.mark.parametrize("dies", [False, True])
def test_between_the_deletes_and_the_rows(tmp_path: Path, dies: bool) -> None:
    """What the guarantees say of more deletes than a commit takes, and of the run after it."""
    table = builders.make_table(tmp_path / "t", rows=range(600))
    (shard,) = table.shards
    table.flush(shard, Put([1, 700], 5), Delete(range(300, 600)))
    before, merging = table.base_rows(), table.lsm_rows()
    seen: list[bool] = []

    def steps(step: str) -> None:
        if step == "between_passes":
            base = table.base_rows()
            seen.append(len(base) == 300 and all(before[key] == base[key] for key in base))
            seen.append(table.lsm_rows() == merging and table.progress() == {})
            if dies:
                raise KeyboardInterrupt

    if dies:
        with pytest.raises(KeyboardInterrupt):
            table.merger(limits=FEW, steps=steps).run(shard, MergeRequest())
        table.flush(shard, Put([300, 301], 6))  # keys that are gone from the base already
        assert table.lsm_rows() == table.truth()
        steps = no_steps
    assert table.merger(limits=FEW, steps=steps).run(shard, MergeRequest()).outcome == "done"
    assert seen == [True, True]
    assert table.base_rows() == table.truth()


def merge_exactly(table: Table, limits: MergeLimits) -> None:
    """Merge the one shard, a generation in a commit, with no version in between."""
    version = int(table.dataset.version)
    limits = replace(limits, generations_per_commit_max=1)
    done = table.merger(limits=limits).run(table.shards[0], MergeRequest())
    assert (done.outcome, done.commits) == ("done", len(table.effects[table.shards[0]]))
    assert builders.check_versions(table, version) == version + done.commits
    builders.check_merged(table)


@pytest.mark.parametrize("limits", [MergeLimits(), FEW], ids=["default", "few"])
def test_no_version_has_deletes_alone_without_their_mark(
    tmp_path: Path, limits: MergeLimits
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(600))
    (shard,) = table.shards
    table.flush(shard, Delete(range(300, 600)))
    table.flush(shard, Put([300], 5))
    merge_exactly(table, limits)


@pytest.mark.parametrize("kind", ["int64", "utf8", "utf8+int32"])
def test_deletes_and_rows_come_together(tmp_path: Path, kind: str) -> None:
    """As many as a commit takes: of 10,000 Lance makes one predicate."""
    many = MergeLimits().tombstones_in_commit_max
    table = builders.make_table(tmp_path / "t", kind=KINDS[kind], rows=range(many + 100))
    (shard,) = table.shards
    table.flush(shard, Put([1, many + 200], 5), Delete(range(100, many + 100)))
    table.flush(shard, Put([100, 101], 6))
    merge_exactly(table, MergeLimits())


def test_nothing_is_deleted_ahead_of_rows_that_can_not_be_read(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(600))
    (shard,) = table.shards
    table.flush(shard, Put([1, 700], 5), Delete(range(300, 600)))
    before = table.base_rows()
    (listed,) = table.stores.shard_manifests.latest(shard).flushed_generations

    def steps(step: str) -> None:
        if step == "delete_pass":
            folder = layout.generation_folder(shard, listed.path, listed.generation)
            shutil.rmtree(Path(table.uri) / folder / "data", ignore_errors=True)

    merge = table.merger(limits=FEW, steps=steps).run(shard, MergeRequest())
    assert merge.outcome == "failed" and "MW-H03" in str(merge.error)
    assert table.base_rows() == before
