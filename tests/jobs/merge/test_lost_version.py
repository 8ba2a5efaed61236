"""The newest version's manifest is lost: a commit would take its number, and so none is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import memwal
from memwal.errors import Corruption
from memwal.format import layout
from memwal.store.tables.view import StoredViews
from memwal.testing.objects import Call, HookedObjects
from tests.support.backups import back_up, restore
from tests.support.builders import Put, Table, make_table

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = make_table(tmp_path / "t", rows=range(9), indexed=True)
    for n in range(2):
        made.flush(made.shards[0], Put([n, 20 + n], n))
        made.merge_all()
    made.flush(made.shards[0], Put([30], 5))
    return made


def lose(table: Table) -> int:
    """Somebody deletes the newest version's manifest."""
    version = int(table.dataset.version)
    for name in layout.table_manifest_names(version):
        (Path(table.uri) / layout.VERSIONS / name).unlink(missing_ok=True)
    assert int(table.dataset.version) == version - 1
    return version


JOBS: dict[str, Callable[[Any], Any]] = {
    "merge": lambda api: api.merge(),
    "catch-up": lambda api: api.index_catchup(),
    "snapshot": lambda api: api.snapshot(),
    "checkpoint": lambda api: api.checkpoint("monday"),
    "maintain": lambda api: api.maintain(),
    "compaction": lambda api: api.compaction(),
    "erase": lambda api: api.erase(key=["k=2"], execute=True, yes=True),
    "garbage": lambda api: api.garbage(
        execute=True, retention_seconds=0, grace_seconds=0, allow_short_retention=True
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_no_job_commits(table: Table, job: str) -> None:
    version = lose(table)
    with pytest.raises(Corruption, match=rf"version {version} was committed.*C08"):
        JOBS[job](memwal.open_table(table.uri))
    assert int(table.dataset.version) == version - 1


def test_status_says_it(table: Table) -> None:
    version = lose(table)
    with pytest.raises(Corruption, match=rf"version {version} was committed") as caught:
        memwal.open_table(table.uri).status()
    assert caught.value.report.version == version - 1


def hint_of(table: Table) -> Path:
    return Path(table.uri) / layout.TABLE_HINT


@pytest.mark.parametrize("witness", ["run", "checkpoint", "cursor"])
def test_a_store_without_hints_has_other_witnesses(
    table: Table, witness: str, tmp_path: Path
) -> None:
    if witness != "run":  # nothing is pending, so that no status reads run records
        table.merge_all()
    if witness == "checkpoint":
        memwal.open_table(table.uri).checkpoint("monday")
    version = int(table.dataset.version)
    if witness == "cursor":
        memwal.open_table(table.uri).commit_changes("copies", version)
    back_up(table, tmp_path / "copies")
    lose(table)
    hint_of(table).unlink()
    named = rf"version {version} was committed, by .*{witness}"
    with pytest.raises(Corruption, match=named) as caught:
        memwal.open_table(table.uri).status()
    (need,) = caught.value.report.attention[:1]
    assert need.command == f"memwal repair {table.uri}"
    with pytest.raises(Corruption, match="is lost: "):
        memwal.open_table(table.uri).verify()
    memwal.open_table(table.uri).repair(
        execute=True, yes=True, from_backup=str(tmp_path / "copies")
    )
    assert int(table.dataset.version) == version
    memwal.open_table(table.uri).verify()


def test_a_restore_to_lower_numbers_is_no_loss(table: Table, tmp_path: Path) -> None:
    api = memwal.open_table(table.uri)
    back_up(table, tmp_path / "copies")
    for n in range(4):
        table.flush(table.shards[0], Put([40 + n], n))
        api.merge()
    api.checkpoint("monday")
    Path(table.uri).rename(tmp_path / "broken")
    records = shutil.copytree(tmp_path / "broken" / layout.RUNS, Path(table.uri) / layout.RUNS)
    before = len(list(records.iterdir()))
    assert restore(tmp_path / "copies", Path(table.uri)).error is None
    for record in sorted(records.iterdir())[:-before]:
        record.unlink()  # that of the restore, which knows
    table.flush(table.shards[0], Put([50], 1))
    assert api.status().error is None


def test_a_repair_from_a_backup_brings_it_back(table: Table, tmp_path: Path) -> None:
    back_up(table, tmp_path / "copies")
    truth = table.truth()
    version = lose(table)
    memwal.open_table(table.uri).repair(
        execute=True, yes=True, from_backup=str(tmp_path / "copies")
    )
    assert int(table.dataset.version) == version
    table.merge_all()
    assert table.base_rows() == truth


def test_what_a_user_may_do_stops_nothing(table: Table) -> None:
    table.at(int(table.dataset.version) - 1).restore()
    memwal.open_table(table.uri).snapshot()
    table.dataset.tags.create("kept", 2)
    table.dataset.tags.delete("kept")
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    table.stores.views.check_newest()
    hint_of(table).write_text("torn")
    table.stores.views.check_newest()


def test_a_table_made_anew_at_the_same_address_stops_nothing(table: Table) -> None:
    rows = table.dataset.to_table()
    shutil.rmtree(table.uri)
    lance.write_dataset(rows, table.uri)
    table.stores.views.check_newest()


def test_a_commit_between_the_hint_and_the_listing_is_no_loss(table: Table) -> None:
    def commit_before_listing(call: Call, effect: Callable[[], Any]) -> Any:
        if call.operation == "list":
            table.dataset.delete("k = 3")
        return effect()

    before = int(table.dataset.version)
    objects = HookedObjects(table.stores.objects, commit_before_listing)
    StoredViews(objects, table.stores.tables).check_newest()
    assert int(table.dataset.version) == before + 1
