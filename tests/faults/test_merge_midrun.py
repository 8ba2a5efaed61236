"""The table changes under a merge that is under way: overwritten, or its anchor row deleted."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from memwal.jobs.merge.plan.shard import MergeLimits, MergeRequest
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
