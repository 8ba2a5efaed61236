"""The newest version's manifest is lost: a commit would take its number, and so none is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import memwal
from memwal.errors import Corruption
from memwal.format import layout
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


def test_a_restore_and_a_repair_from_a_backup_bring_it_back(table: Table, tmp_path: Path) -> None:
    back_up(table, tmp_path / "copies")
    truth = table.truth()
    version = lose(table)
    copy = table.copied(tmp_path / "copy")
    memwal.open_table(table.uri).repair(
        execute=True, yes=True, from_backup=str(tmp_path / "copies")
    )
    assert int(table.dataset.version) == version
    table.merge_all()
    assert table.base_rows() == truth
    assert restore(tmp_path / "copies", Path(copy.uri), over=True).error is None
    copy.merge_all()
    assert copy.base_rows() == truth


def test_what_a_user_may_do_stops_nothing(table: Table) -> None:
    table.at(int(table.dataset.version) - 1).restore()
    memwal.open_table(table.uri).snapshot()
    table.dataset.tags.create("kept", 2)
    table.dataset.tags.delete("kept")
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    table.stores.views.check_newest()
    (Path(table.uri) / layout.TABLE_HINT).write_text("torn")
    table.stores.views.check_newest()
