"""`memwal merge` where the shards of a table share commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import WorkerDied
from memwal.format import layout
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.job import MergeOptions, MergeUnit, report_shards, run_merge, run_merge_unit
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.request import MergeRequest
from memwal.run.tables import OpenTable
from memwal.run.workers import cancel
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.nursery import run_memwal
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration

SHARDS = 12


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = builders.make_table(tmp_path / "t", rows=range(40), shards=SHARDS)
    for place, shard in enumerate(made.shards):
        made.flush(shard, Put([place, 100 + place], 10 * place))
        made.flush(shard, Put([200 + place], 7), Delete([place + SHARDS]))
    return made


def merge(table: Table, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_memwal("merge", table.uri, "--json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["tables"][0]


def make_unit(table: Table) -> MergeUnit:
    """One for all shards, without the lease."""
    return MergeUnit(
        uri=table.uri,
        storage_options={},
        shard_ids=tuple(table.shards),
        request=MergeRequest(),
        limits=MergeLimits(),
    )


def test_one_commit_for_all(table: Table) -> None:
    before = table.versions()[-1]
    code, report = merge(table, "--engine", "local")
    assert code == 0
    assert (report["outcome"], report["version_after"] - report["version_before"]) == ("done", 1)
    assert table.versions()[-1] == before + 1
    counts = ("generations", "commits", "rows_inserted", "rows_updated", "rows_deleted")
    assert {tuple(s[name] for name in counts) for s in report["shards"]} == {(2, 1, 2, 1, 1)}
    assert sum(s["commits_shared"] for s in report["shards"]) == SHARDS - 1
    assert all(s["bytes_read"] > 0 for s in report["shards"])
    builders.check_merged(table)
    builders.check_versions(table, before)
    assert merge(table)[1]["outcome"] == "nothing_to_do"


def test_a_generation_whose_schema_makes_lance_panic_fails_alone(table: Table) -> None:
    culprit = table.shards[3]
    (manifest,) = Path(table.uri, "_mem_wal", culprit).glob("*_gen_2/_versions/*.manifest")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b"bool", b"booL"))
    code, report = merge(table, "--engine", "local")
    assert (code, report["outcome"]) == (6, "partial")
    failed = [s for s in report["shards"] if s["outcome"] != "done"]
    assert [s["shard_id"] for s in failed] == [culprit]
    assert "_gen_2: can't be opened" in failed[0]["error"] and "MW-F01" in failed[0]["error"]
    assert sum(s["commits_shared"] for s in report["shards"]) == SHARDS - 2
    manifest.write_bytes(whole)
    assert merge(table)[0] == 0
    builders.check_merged(table)


def test_rows_are_told_apart_where_the_base_has_a_key_twice(tmp_path: Path) -> None:
    made = builders.make_table(tmp_path / "t", rows=range(4), shards=2)
    lance.write_dataset(made.dataset.to_table(limit=1), made.uri, mode="append")
    made.flush(made.shards[0], Put([0], 1))
    made.flush(made.shards[1], Put([11], 2))
    _, report = merge(made, "--engine", "local")
    found = {s["shard_id"]: (s["rows_inserted"], s["rows_deleted"]) for s in report["shards"]}
    assert found == dict(zip(made.shards, ((1, 2), (1, 0)), strict=True))
    assert sum(s["commits_shared"] for s in report["shards"]) == 0
    assert "1 key more than once" in report["warnings"][0]


def test_a_panic_with_several_shards_at_work_leaves_each_its_own_chance(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As those of Lance's Rust code."""

    def panics(*_: Any) -> None:
        raise PanicException

    monkeypatch.setattr(SharedMerger, "run", panics)
    unit = make_unit(table)
    merges = report_shards(unit, run_merge_unit(unit))
    assert [(m.shard_id, m.outcome, m.commits) for m in merges] == [
        (shard, "done", 1) for shard in table.shards
    ]
    builders.check_merged(table)


def test_a_unit_of_a_cancelled_run_commits_nothing(table: Table) -> None:
    unit = make_unit(table)
    cancel.cancel()
    try:
        merges = report_shards(unit, run_merge_unit(unit))
    finally:
        cancel.begin()
    assert {(m.exit_code, m.commits) for m in merges} == {(4, 0)}
    assert table.progress() == {}


@pytest.mark.parametrize("shards", [1, SHARDS])
def test_units_commit_nothing_once_the_lease_is_lost(
    table: Table, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    take = OpenTable.take_lease

    def take_and_lose(self: OpenTable, job: str, options: Any) -> None:
        take(self, job, options)
        table.stores.leases.break_("test")

    monkeypatch.setattr(OpenTable, "take_lease", take_and_lose)
    resolved = ResolvedTable(name="t", uri=table.uri, storage_options={}, settings=Settings())
    options = MergeOptions(
        tables=[resolved], engine="local", request=MergeRequest(shards=table.shards[:shards])
    )
    report = run_merge(options, Quiet())
    assert (report.exit_code, table.progress()) == (4, {})


@pytest.mark.parametrize("limit", ["shards_per_commit_max", "tombstones_in_commit_max"])
def test_the_limits_in_the_configuration(table: Table, tmp_path: Path, limit: str) -> None:
    """Twelve shards that delete one key each, five at a time; the last two share as well."""
    config = tmp_path / "memwal.toml"
    config.write_text(f"[defaults]\n{limit} = 5\n")
    code, report = merge(table, "--engine", "local", "--config", str(config))
    assert code == 0
    assert report["version_after"] - report["version_before"] == 3
    builders.check_merged(table)


def test_a_broken_shard_fails_alone(table: Table) -> None:
    broken = table.shards[3]
    (view,) = (s for s in table.stores.views.table().shards if s.shard_id == broken)
    listed = view.pending[1]
    folder = layout.generation_folder(broken, listed.path, listed.generation)
    (data,) = (Path(table.uri) / folder / "data").iterdir()
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])

    code, report = merge(table, "--engine", "local")

    assert (code, report["outcome"]) == (6, "partial")
    failed = [s for s in report["shards"] if s["error"]]
    assert [s["shard_id"] for s in failed] == [broken]
    assert f"{folder}/data/{data.name}" in failed[0]["error"]
    assert report["version_after"] - report["version_before"] == 1
    done = {s["shard_id"] for s in report["shards"] if s["outcome"] == "done"}
    assert done == set(table.shards) - {broken}
    assert table.progress() == dict.fromkeys(done, 2)


def test_a_shard_that_is_asked_for_is_merged_alone(table: Table) -> None:
    code, report = merge(table, "--engine", "local", "--shard", table.shards[5])
    assert code == 0
    assert [s["shard_id"] for s in report["shards"]] == [table.shards[5]]
    assert table.progress() == {table.shards[5]: 2}


class Deadly:
    """An engine whose workers die of one shard."""

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.sizes: list[int] = []

    def run(self, work: Any, units: Any, on_done: Any, lost: Any = None) -> list[Any]:
        self.sizes += [len(unit.shard_ids) for unit in units]
        return [
            lost(unit, WorkerDied("it died")) if self.shard in unit.shard_ids else work(unit)
            for unit in units
        ]

    def get(self, name: str) -> Any:
        assert name == "spark"
        return self


def test_a_shard_that_kills_its_worker_is_told_alone(table: Table) -> None:
    engine = Deadly(table.shards[4])
    resolved = ResolvedTable(name="t", uri=table.uri, storage_options={}, settings=Settings())
    options = MergeOptions(tables=[resolved], engine="spark", engines=engine)  # type: ignore[arg-type]
    report = run_merge(options, Quiet())
    assert (report.outcome, report.exit_code) == ("partial", 6)
    (merged,) = report.tables
    dead = [s for s in merged.shards if s.error]  # type: ignore[attr-defined]
    assert [s.shard_id for s in dead] == [table.shards[4]]
    assert "it died" in dead[0].error
    assert engine.sizes == [SHARDS, *[1] * SHARDS]
    assert table.progress() == dict.fromkeys(set(table.shards) - {table.shards[4]}, 2)
