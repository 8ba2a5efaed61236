"""The table changes under a merge that is under way: overwritten, or its anchor row deleted."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from memwal.jobs.merge.plan.shard import MergeLimits, MergeRequest
from memwal.ports import no_steps
from tests.support import builders
from tests.support.builders import INDEX_FAVOURED, Delete, Put

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
    """What was known of the fold holds no longer; the index join would double the key."""
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
            second = table.merger(limits=limits, costs=INDEX_FAVOURED)
            assert second.run(shard, MergeRequest(until_generation=1)).outcome == "done"

    merge = table.merger(limits=limits, costs=INDEX_FAVOURED, steps=steps).run(
        shard, MergeRequest()
    )
    assert done == ["delete_pass", "commit"]
    assert merge.outcome == "done"
    builders.check_merged(table)


@pytest.mark.parametrize("dies", [False, True])
def test_between_the_deletes_and_the_rows(tmp_path: Path, dies: bool) -> None:
    """What GUARANTEES says of more deletes than a commit takes, and of the run after it."""
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
            table.merger(steps=steps).run(shard, MergeRequest())
        table.flush(shard, Put([300, 301], 6))  # keys that are gone from the base already
        assert table.lsm_rows() == table.truth()
        steps = no_steps
    assert table.merger(steps=steps).run(shard, MergeRequest()).outcome == "done"
    assert seen == [True, True]
    assert table.base_rows() == table.truth()
