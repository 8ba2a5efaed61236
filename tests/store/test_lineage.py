"""What proves that generations belong to a table is read once, and says nothing of another."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pytest

from memwal.errors import Refused
from memwal.jobs.merge.apply import check_shard_lineage
from memwal.jobs.merge.request import MergeRequest
from memwal.model import TableView
from memwal.store.tables.generations import Lineage
from memwal.store.tables.view import StoredViews
from memwal.testing import Call, HookedObjects
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.sampling import grid

pytestmark = pytest.mark.integration


class Watched:
    """Fresh views of a table, and how often each file was read for them."""

    def __init__(self, table: Table, known: Lineage | None = None) -> None:
        stores = table.stores
        self.reads: Counter[str] = Counter()
        self.views = StoredViews(HookedObjects(stores.objects, self._count), stores.tables)
        if known is not None:
            self.views.learn(known)
        self.view = self.views.table()
        self.reads.clear()

    def _count(self, call: Call, real: Any) -> Any:
        found = real()  # raises Missing
        if call.operation == "get_tail":
            self.reads[call.paths[0]] += 1
        return found

    def check(self, view: TableView | None = None) -> None:
        """As a merge asks of each shard that was never merged."""
        seen = view or self.view
        for shard in seen.shards:
            if shard.pending:
                check_shard_lineage(self.views, seen, shard)

    def versions_read(self) -> int:
        return sum(n for path, n in self.reads.items() if path.startswith("_versions/"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("made") / "t", rows=range(4), shards=4)
    for number, shard in enumerate(table.shards[:3]):
        table.flush(shard, Put([10 + number], 500))
    merge_last(table, times=5)
    return table


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """Three shards that were never merged, and a fourth whose merges gave the index new times."""
    return made.copied(tmp_path / "t")


def merge_last(table: Table, *, times: int) -> None:
    for number in range(times):
        table.flush(table.shards[-1], Put([90 + number], 600))
        assert table.merger().run(table.shards[-1], MergeRequest()).outcome == "done"


def known_of(watched: Watched) -> Lineage:
    """What a unit in another process takes along."""
    lineage = watched.views.lineage(watched.view, watched.view.shards)
    travelled: Lineage = pickle.loads(
        pickle.dumps(lineage.part(s.shard_id for s in watched.view.shards))
    )
    return travelled


def test_all_shards_together_read_each_version_and_generation_once(table: Table) -> None:
    watched = Watched(table)

    watched.check()
    watched.check()

    assert watched.versions_read() == 5  # down to the one in which the index was made
    assert len(watched.reads) == 5 + 3
    assert set(watched.reads.values()) == {1}


def test_a_unit_reads_only_what_came_after_the_plan(table: Table) -> None:
    known = known_of(Watched(table))
    same = Watched(table, known)
    same.check()
    assert same.reads == Counter()

    merge_last(table, times=2)
    later = Watched(table, known)
    later.check()
    # The version of the plan and the one after it; the view itself has read the newest.
    assert later.versions_read() == len(later.reads) == 2

    # Units of one process go on from what one of them has read, whatever view they have.
    another = Watched(table, known.part(()))
    another.check()
    assert another.versions_read() == 0
    another.check(same.view)
    assert another.versions_read() == 0


def test_units_one_after_another_in_one_process_read_each_version_once(table: Table) -> None:
    """As on executors, which get units as bytes, each with what was known at the plan."""
    known = pickle.dumps(known_of(Watched(table)))
    read = []
    for _ in range(3):
        merge_last(table, times=1)
        unit = Watched(table, pickle.loads(known))
        unit.check()
        read.append(unit.versions_read())
    # The newest that is known, for its time of commit; the view itself has read the one after it.
    assert read == [1] * 3


def test_versions_that_expired_are_passed_over(table: Table) -> None:
    for version in sorted((Path(table.uri) / "_versions").iterdir())[1:3]:
        version.unlink()  # of the newest seven; the first is the latest
    watched = Watched(table)
    watched.check()
    assert watched.versions_read() == 3


def overwrite(table: Table) -> None:
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    table.dataset.initialize_mem_wal()
    table.add_shard()


def make_anew(table: Table, versions: int | None = None) -> None:
    """Everything but `_mem_wal/` goes, and the new table gets as many versions as the old one."""
    kept, versions = table.dataset.to_table(), versions or int(table.dataset.version)
    for name in ("_versions", "data", "_transactions"):
        shutil.rmtree(Path(table.uri) / name)
    lance.write_dataset(kept, table.uri).initialize_mem_wal()
    table.add_shard()
    merge_last(table, times=versions - 2)
    assert int(table.dataset.version) == versions


@pytest.mark.parametrize(
    ("make_new", "commits", "by"),
    grid([overwrite, make_anew], [0, 1, 3], ["the unit", "the process"]),
)
def test_what_was_known_of_a_table_says_nothing_of_one_made_after_it(
    table: Table, make_new: Any, commits: int, by: str
) -> None:
    known = known_of(Watched(table))
    if by == "the process":
        Watched(table, known).check()  # an earlier unit
        known = Lineage()
    make_new(table)
    merge_last(table, times=commits)

    with pytest.raises(Refused, match="initialised after generation 1 was flushed"):
        Watched(table, known).check()


def test_what_is_known_of_a_longer_table_gives_way_to_what_a_unit_brings(table: Table) -> None:
    Watched(table, known_of(Watched(table))).check()
    make_anew(table, versions=4)

    unit = Watched(table, known_of(Watched(table)))
    with pytest.raises(Refused):
        unit.check()
    assert unit.versions_read() == 0
