"""What `status` and a watch say of the newest backup."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.config import Config, load_config, resolve_table
from memwal.jobs.watch.store import StoredLooks
from memwal.model import Backup
from memwal.store.objects.local import LocalObjects
from memwal.store.records.backups import StoredBackups
from tests.support import builders
from tests.support.command import run_here

pytestmark = pytest.mark.integration

DAY = 86_400


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    builders.make_table(tmp_path / "t", rows=range(3))
    text = "[tables.orders]\nuri = 't'\nbackup = { uri = 'copies' }\n[tables.other]\nuri = 't'\n"
    (tmp_path / "memwal.toml").write_text(text)
    monkeypatch.setenv("MEMWAL_CONFIG", str(tmp_path / "memwal.toml"))
    return load_config(str(tmp_path / "memwal.toml"), {})


def make_backup(place: Path, name: str, age_seconds: float) -> None:
    made_at = SystemClock().now_nanos() - round(age_seconds * 1e9)
    StoredBackups(LocalObjects(str(place))).put(
        Backup(
            name=name,
            source="/t",
            made_at_nanos=made_at,
            version=3,
            version_at_nanos=made_at,
            manifest_path="_versions/3.manifest",
            shards=(),
        ),
        [],
    )


def status(*words: str, table: str = "orders") -> tuple[int, dict[str, Any], str]:
    done = run_here("status", table, *words, "--json")
    return done.returncode, json.loads(done.stdout)["tables"][0], done.stderr


def test_the_age_of_the_newest_is_what_a_condition_compares(tmp_path: Path, config: Config) -> None:
    make_backup(tmp_path / "copies", "old", 40 * DAY)
    make_backup(tmp_path / "copies", "new", 2 * DAY - 60)
    code, table, _ = status("--fail-if", "backup-age>2d")
    assert (code, table["failed_conditions"], table["attention"]) == (0, [], [])
    assert (table["backup"]["name"], table["backup"]["version"]) == ("new", 3)
    assert table["backup"]["uri"] == str(tmp_path / "copies")
    code, table, err = status("--fail-if", "backup-age>1d")
    assert code == 3
    assert [f["condition"] for f in table["failed_conditions"]] == ["backup-age>1d"]
    assert "orders: --fail-if 'backup-age>1d': backup_age_seconds is 17" in err


def test_none_and_an_old_one_need_somebody(tmp_path: Path, config: Config) -> None:
    code, table, _ = status("--fail-if", "backup-age>1d")
    assert (code, table["backup"]["name"], table["backup_age_seconds"]) == (3, None, None)
    assert [a["what"] for a in table["attention"]] == ["--fail-if 'backup-age>1d'", "no backup yet"]
    make_backup(tmp_path / "copies", "old", 3 * DAY)
    told = run_here("status", "orders").stdout
    assert "last backup: old, 3.0 d ago, in" in told
    assert "orders: the last backup is 3.0 d old -> memwal backup orders" in told


def test_without_a_place_there_is_nothing_to_say_but_a_condition_holds(config: Config) -> None:
    code, table, _ = status("--fail-if", "backup-age>1d", table="other")
    assert (code, table["backup"], table["backup_age_seconds"]) == (3, None, None)
    assert [a["what"] for a in table["attention"]] == ["--fail-if 'backup-age>1d'"]


def test_a_place_that_can_not_be_read_is_said_and_the_table_goes_on(
    tmp_path: Path, config: Config
) -> None:
    make_backup(tmp_path / "copies", "torn", DAY)
    (tmp_path / "copies/_maintenance/backups/torn.pb").write_bytes(b"\xff")
    code, table, _ = status()
    assert (code, table["outcome"], table["backup_age_seconds"]) == (0, "done", None)
    assert "MW-A01" in table["backup"]["error"]
    assert "can't be read" in table["attention"][0]["what"]


def test_a_watch_looks_for_it_aside_and_keeps_what_it_knew(tmp_path: Path, config: Config) -> None:
    make_backup(tmp_path / "copies", "first", DAY)
    newest = StoredBackups(LocalObjects(str(tmp_path / "copies"))).newest()
    assert newest is not None
    looks = StoredLooks()
    table = resolve_table("orders", config, {}, {})
    looks.look(table)
    for thread in threading.enumerate():
        if thread.name == "memwal-backup-look":
            thread.join()
    found = looks.look(table).last_backup_at_nanos
    assert found == newest.made_at_nanos // 10**9 * 10**9
    other = looks.look(resolve_table("other", config, {}, {}))
    assert other.last_backup_at_nanos is None
