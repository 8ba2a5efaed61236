"""Compaction on real tables: fewer fragments, the same rows, and indexes as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.config import Settings
from memwal.errors import LostRace
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTableReport
from memwal.jobs.compaction.store import LanceCompactionTable
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardStatus
from memwal.report import JobReport
from memwal.store.tables.datasets import LanceTables
from tests.support.builders import Delete, Put, Table, epochs, set_status
from tests.support.indexed import (
    check_caught_up,
    facts,
    generation,
    make_indexed,
    resolved,
    state,
    write_and_merge,
)
from tests.support.lsm_reads import lsm_read
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration

DEFAULTS = Settings()
NAMES = ("key_idx", "cat_idx", "text_idx", "zone_idx", "bloom_idx", "flat_idx")


def compact(table: Table, *, limits: Settings = DEFAULTS, **options: Any) -> JobReport:
    engine = options.pop("engine", "local")
    return run_compaction(
        CompactionOptions(tables=[resolved(table).with_settings(limits)], engine=engine, **options),
        Quiet(),
    )


def done(report: JobReport) -> CompactionTableReport:
    assert report.exit_code == 0, report
    (found,) = report.tables
    assert isinstance(found, CompactionTableReport)
    return found


def catch_up(table: Table) -> None:
    report = run_index_catchup(
        IndexCatchupOptions(tables=[resolved(table)], engine="local"), Quiet()
    )
    assert report.exit_code == 0, report


def fragmented(path: object, names: tuple[str, ...] = NAMES, **how: Any) -> Table:
    """Four merges, not caught up: one large fragment and four small ones."""
    table = make_indexed(path, names, **how)
    write_and_merge(table, 1, 2, 3, 4)
    return table


def sorted_rows(table: Table) -> list[dict[str, Any]]:
    return sorted(lsm_read(table.uri, table.options).to_pylist(), key=lambda r: int(r["k"]))


def test_small_fragments_become_one_and_indexes_stay_caught_up(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t")
    table.flush(table.shards[0], generation(5))
    before = sorted_rows(table)
    found = done(compact(table))
    assert (found.fragments_before, found.fragments_after) == (5, 2)
    assert (found.files_before, found.files_after) == (5, 2)
    assert found.rows_before == found.rows_after == len(table.base_rows())
    assert found.deleted_rows_before
    assert (found.tasks, found.commits) == (1, 1)
    assert {i.unindexed_rows_after for i in found.indexes} == {0}
    assert sorted_rows(table) == before
    assert state(table).index_catchup == {name: state(table).merged for name in NAMES}
    table.merger().run(table.shards[0], MergeRequest())
    catch_up(table)
    check_caught_up(table, NAMES)


def test_the_erased_entries_are_restored_with_few_commits(tmp_path: Path) -> None:
    names = ("key_idx", "cat_idx", "text_idx", "flat_idx")
    table = fragmented(tmp_path / "t", names)
    catch_up(table)
    version = int(table.dataset.version)
    found = done(compact(table))
    assert found.commits == 1
    # Two versions for the compaction, one that records.
    assert int(table.dataset.version) == version + 3
    assert {(i.outcome, i.method) for i in found.indexes} == {("done", "none")}
    assert {tuple(i.caught_up_before) for i in found.indexes} == {()}
    check_caught_up(table, names)


def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t")
    done(compact(table))
    before = sorted(p for p in Path(table.uri).rglob("*"))
    report = compact(table)
    assert report.outcome == "nothing_to_do"
    assert done(report).tasks == 0
    assert sorted(p for p in Path(table.uri).rglob("*")) == before


def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t")
    version = int(table.dataset.version)
    found = done(compact(table, dry_run=True))
    assert (found.tasks, found.commits) == (1, 0)
    assert (found.fragments_before, found.fragments_after) == (5, None)
    assert "4 of 5 fragments" in str(found.reason)
    assert {i.method for i in found.indexes} == {"append"}
    assert int(table.dataset.version) == version


def test_fragments_full_of_deleted_rows_are_rewritten(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "flat_idx"])
    table.flush(table.shards[0], Delete(range(100)))
    table.merge_all()
    limits = Settings(target_rows_per_fragment=10)
    kept = done(
        compact(table, limits=limits.model_copy(update={"materialize_deletions_threshold": 0.9}))
    )
    assert kept.commits == 0
    found = done(compact(table, limits=limits))
    assert (found.deleted_rows_before, found.deleted_rows_after) == (100, 0)
    check_caught_up(table, ["key_idx", "flat_idx"])


def test_tasks_over_the_limit_are_left_for_the_next_run(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t", ())
    limits = Settings(target_rows_per_fragment=45, compaction_tasks_max=1)
    first = done(compact(table, limits=limits))
    assert (first.tasks, first.commits) == (1, 1)
    assert first.tasks_left == 1
    assert "left for the next run" in str(first.reason)
    assert done(compact(table, limits=limits)).tasks_left == 0


def test_a_merge_that_touches_the_fragments_makes_it_plan_again(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t")
    table.flush(table.shards[0], generation(3))  # the same keys once more
    left = [lambda: table.merge_all()]

    def steps(now: str) -> None:
        if now == "commit" and left:
            left.pop()()

    found = done(compact(table, steps=steps))
    assert (found.conflicts, found.commits) == (1, 1)
    assert state(table).merged == {table.shards[0]: 5}
    catch_up(table)
    check_caught_up(table, NAMES)


@pytest.mark.nightly
def test_a_race_that_is_always_lost_is_reported_and_the_rows_stay(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t", ("key_idx",))

    rivals = count(420)

    def steps(now: str) -> None:
        if now == "commit":
            table.flush(table.shards[0], Put([next(rivals)], 77_000))
            table.merge_all()

    limits = Settings(conflict_attempts_max=2)
    report = compact(table, steps=steps, limits=limits)
    (found,) = report.tables
    assert isinstance(found, CompactionTableReport)
    assert (found.commits, found.conflicts) == (0, 2)
    assert report.exit_code in (4, 6)
    assert "2 times" in str(found.error)
    catch_up(table)
    check_caught_up(table, ("key_idx",))


def test_a_commit_has_landed_if_its_files_are_there(tmp_path: Path) -> None:
    """Fragments that are gone say nothing: an update of all rows takes them away as well."""
    rows = pa.table({"k": range(40)})
    dataset: Any = lance.write_dataset(rows, str(tmp_path), max_rows_per_file=10)
    table = LanceCompactionTable(LanceTables(str(tmp_path), {}))
    (task,) = table.plan(1, CompactionLimits())
    lost, made = table.rewrite(task), table.rewrite(task)
    table.commit([made])
    with pytest.raises(LostRace):
        table.commit([lost])
    assert (table.has_landed([made]), table.has_landed([lost])) == (True, False)
    dataset.checkout_latest()
    dataset.update({"k": "k + 1"})
    assert not table.has_landed([made])


def test_a_held_lease_ends_it_with_exit_code_4(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t", ("key_idx",))
    claim = table.stores.leases.acquire("index-catchup")
    version = int(table.dataset.version)
    report = compact(table)
    assert (report.outcome, report.exit_code) == ("held", 4)
    assert "index-catchup" in str(report.tables[0].error)
    assert int(table.dataset.version) == version
    table.stores.leases.release(claim)
    assert done(compact(table)).commits == 1


def test_index_catchup_stands_down_while_a_compaction_runs(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t", ("key_idx",))
    seen: list[int] = []

    def steps(now: str) -> None:
        if now == "rewrite":
            write_and_merge(table, 5)
            options = IndexCatchupOptions(tables=[resolved(table)], engine="local")
            seen.append(run_index_catchup(options, Quiet()).exit_code)

    compact(table, steps=steps)
    assert seen[0] == 4


def test_a_run_that_died_before_it_restored_the_entries_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    names = ("key_idx", "cat_idx", "flat_idx")
    table = fragmented(tmp_path / "t", names)

    class Died(BaseException):
        pass

    def steps(now: str) -> None:
        if now == "restore":
            raise Died

    with pytest.raises(Died):
        compact(table, steps=steps)
    assert state(table).index_catchup == {}
    found = done(compact(table))
    assert (found.tasks, found.commits) == (0, 0)
    assert {(i.outcome, i.method) for i in found.indexes} == {("done", "none")}
    check_caught_up(table, names)


def test_writers_and_sealed_shards_are_no_concern_of_it(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t", ("key_idx",), shards=1)
    set_status(table, table.shards[0], ShardStatus.SEALED)
    before = epochs(table)
    assert done(compact(table)).commits == 1
    assert epochs(table) == before


@pytest.mark.spark
def test_tasks_run_on_spark(tmp_path: Path) -> None:
    table = fragmented(tmp_path / "t")
    limits = Settings(target_rows_per_fragment=45)
    report = compact(table, engine="spark", master="local[2]", limits=limits)
    assert report.engine is not None
    assert report.engine.name == "spark"
    assert done(report).commits == 1
    check_caught_up(table, NAMES)


@pytest.mark.nightly
def test_on_s3(make_s3_uri: Callable[[], str], s3_server: Any) -> None:
    names = ("key_idx", "flat_idx")
    table = fragmented(make_s3_uri(), names, options=s3_server.storage_options)
    found = done(compact(table))
    assert (found.fragments_before, found.fragments_after) == (5, 2)
    check_caught_up(table, names)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from memwal.cli import main

    table = fragmented(tmp_path / "t", ("key_idx",))
    with pytest.raises(SystemExit) as ended:
        main(["compaction", table.uri, "--json", "--engine", "local"])
    assert ended.value.code == 0
    (found,) = json.loads(capsys.readouterr().out)["tables"]
    assert found["fragments_after"] < found["fragments_before"]
    assert found["rows_after"] == found["rows_before"]
    assert [i["name"] for i in found["indexes"]] == ["key_idx"]
    assert not facts(table).uncovered(facts(table).indexes[0])
    check_caught_up(table, ("key_idx",))
