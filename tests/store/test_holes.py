"""Generations that are neither merged nor listed: one rule, told by each command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.cli import main
from memwal.format import layout
from memwal.model import TableView
from memwal.rows.progress import Cause, Hole, find_holes
from memwal.run.stores import Stores
from memwal.store.tables.view import StoredViews
from memwal.testing import Call, HookedObjects
from tests.support import builders, garbage_runs
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("made") / "t", rows=range(5))
    for number in range(3):
        table.flush(table.shards[0], Put([number, 5], 10 * number))
    return table


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """Three generations of one shard."""
    return made.copied(tmp_path / "t")


def drain(table: Table) -> None:
    """What lance-context's cleanup does: merge what is listed, take it off the list, mark none."""
    (shard,) = table.shards
    rows = list(table.truth().values())
    table.dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.Table.from_pylist(rows, schema=table.dataset.schema)
    )
    for generation in table.stores.shard_manifests.latest(shard).flushed_generations:
        builders.unlist_generation(table, shard, generation.generation)


def lose(table: Table) -> None:
    """A flush that fails, and one after it that does not."""
    (shard,) = table.shards
    late = builders.hand_written(table, shard, [table.row(6, 1)], generation=6)
    builders.list_generations(table, shard, late)


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command on the table, in this process: its exit code, and what it reports of the table."""

    def run(name: str, *options: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main([name, table.uri, "--json", *options])
        report = json.loads(capsys.readouterr().out)
        assert isinstance(ended.value.code, int)
        return ended.value.code, (report["tables"] or [report])[0]

    return run


def holes(view: TableView) -> list[Hole]:
    (shard,) = view.shards
    return list(find_holes(shard))


def told(run: Run) -> dict[str, tuple[int, str]]:
    """What each command says of the table: its exit code, and the text."""
    found = {name: run(name) for name in ("merge", "maintain", "read", "verify")}
    said = {name: (code, report["error"]) for name, (code, report) in found.items()}
    code, status = run("status")
    assert [h for s in status["shards"] for h in s["holes"]]
    return {**said, "status": (code, "; ".join(status["warnings"]))}


CODES = {"merge": 5, "maintain": 5, "read": 5, "verify": 8, "status": 0}


@pytest.mark.parametrize("later", [False, True], ids=["all of them", "and a flush since"])
def test_what_another_program_drained_is_told_by_all(table: Table, run: Run, later: bool) -> None:
    drain(table)
    if later:
        table.flush(table.shards[0], Put([7], 70))
    for name, (code, text) in told(run).items():
        assert code == CODES[name], (name, text)
        assert "another program took generations 1 to 3 off the list" in text, name
        assert "--allow-holes" in text, name
    (shard,) = run("status")[1]["shards"]
    assert shard["holes"] == [{"from_generation": 1, "to_generation": 3, "cause": "drained"}]
    assert run("read", "--allow-holes")[1]["num_rows"] == 7 if later else 6


def test_passing_over_what_was_drained_ends_with_a_merge_beyond_it(table: Table, run: Run) -> None:
    drain(table)
    table.flush(table.shards[0], Put([7], 70))
    assert run("merge", "--allow-holes")[0] == 0
    assert table.progress() == {table.shards[0]: 4}
    builders.same_rows(table.base_rows(), table.truth(), "base")
    for name in ("merge", "read", "verify", "status"):
        assert run(name)[0] == 0


def test_a_failed_flush_is_told_from_a_drain(table: Table, run: Run) -> None:
    lose(table)
    code, report = run("merge")
    assert (code, table.progress()) == (6, {table.shards[0]: 3}), "what is before it is merged"
    assert "generations 4 to 5 are neither merged nor listed" in report["error"]
    assert "a flush failed" in report["error"]
    for name, (code, text) in told(run).items():
        assert code == CODES[name], (name, text)
        assert "a flush failed" in text, name
        assert "another program" not in text, name


def test_of_several_shards_the_one_with_a_hole_at_its_end_is_told(table: Table, run: Run) -> None:
    """They would share commits, and be done with what is pending."""
    hole, whole = table.shards[0], table.add_shard()
    table.flush(whole, Put([8], 1))
    builders.unlist_generation(table, hole, 3)
    code, report = run("merge")
    assert code == 6
    assert {s["shard_id"]: (s["outcome"], s["to_generation"]) for s in report["shards"]} == {
        hole: ("partial", 2),
        whole: ("done", 1),
    }
    assert "generation 3 is neither merged nor listed" in report["error"]


def test_a_cause_that_no_manifest_tells_is_not_guessed(table: Table) -> None:
    drain(table)
    (shard,) = table.shards
    folder = Path(table.uri) / layout.manifest_folder(shard)
    newest = table.stores.shard_manifests.latest(shard).version
    for version in range(1, newest):
        (folder / f"{layout.bit_reversed(version)}.binpb").unlink()
    assert holes(table.stores.views.table()) == [Hole(first=1, last=3, cause=Cause.UNKNOWN)]


def test_the_cause_is_found_in_few_reads(table: Table) -> None:
    (shard,) = table.shards
    for number in range(20):
        table.flush(shard, Put([number], number))
    counts = table.stores.objects.counts
    table.stores.views.table()
    healthy = counts.get
    builders.unlist_generation(table, shard, 12)
    before = counts.get
    assert holes(table.stores.views.table()) == [Hole(first=12, last=12, cause=Cause.DRAINED)]
    assert counts.get - before <= healthy + 2 + 8, "of 23 manifest versions and more"


LOOKS = {
    "table": lambda views, shard: views.table(),
    "status": lambda views, shard: views.table_and_wal()[0],
    "read": lambda views, shard: views.at(None),
    "one shard": lambda views, shard: views.shard(shard),
    "some shards": lambda views, shard: views.shards([shard]),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_merge_and_a_collection_during_a_look_leave_no_hole(table: Table, name: str) -> None:
    """Between its read of the base and that of the shard, all is merged, expired and dropped."""
    (shard,) = table.shards
    looked: list[str] = []

    def hook(call: Call, do: Any) -> Any:
        if any(path.startswith(layout.MEM_WAL) for path in call.paths) and not looked:
            looked.append("at a shard")
            table.merge_all()
            garbage_runs.run(table, retention=0)
            assert table.stores.shard_manifests.latest(shard).flushed_generations == ()
        return do()

    stores: Stores = table.stores
    views = StoredViews(HookedObjects(stores.objects, hook), stores.tables)
    view = LOOKS[name](views, shard)
    assert looked
    assert (holes(view), view.shards[0].merged_generation) == ([], 3)
