"""`erase resume`: all open erasures of tables are gone on with, as cron would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwal.cli import main
from memwal.clock import SystemClock
from memwal.format import layout
from memwal.model import LOWERING_JOB, Cursor
from memwal.run.stores import open_stores
from memwal.store.records.lease import StoredLeases
from tests.jobs.erase.people import People, check_gone, erase, rows_of
from tests.support import builders
from tests.support.stopping import Stop, StopAt

pytestmark = pytest.mark.integration

AT_ONCE = ("--retention", "0s", "--grace", "0s", "--allow-short-retention")
DAY = 86_400.0


@pytest.fixture
def people(table: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> People:
    """The table `people` of a configuration, beside `other`, of which nothing is erased."""
    builders.make_table(tmp_path / "other", rows=range(3))
    config = tmp_path / "memwal.toml"
    config.write_text("[tables.people]\nuri = 't'\n[tables.other]\nuri = 'other'\n")
    monkeypatch.setenv("MEMWAL_CONFIG", str(config))
    return table


def resume(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["erase", "resume", *words, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def states(table: dict[str, Any]) -> list[str]:
    return [erasure["state"] for erasure in table["erasures"]]


def begin(people: People, key: str) -> str:
    """An erasure whose versions have to wait for the retention."""
    return str(erase(people, key, retention_seconds=DAY).erasure.erasure_id)


def test_all_open_ones_of_all_tables_are_finished(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = resume(capsys, "--all", "--execute")
    assert (code, found["outcome"]) == (0, "nothing_to_do")
    begun = [begin(people, "person-0007")]
    before = people.files()
    code, found = resume(capsys, "--all", *AT_ONCE)
    assert (code, found["dry_run"], people.files()) == (0, True, before)
    code, found = resume(capsys, "--all", "--execute", "--retention", "1d")
    table, other = found["tables"]
    assert (code, states(table), other["erasures"]) == (0, ["open"], [])
    code, found = resume(capsys, "--all", "--execute", *AT_ONCE)
    assert (code, found["outcome"], states(found["tables"][0])) == (0, "done", ["done"])
    assert [job["erasure"]["erasure_id"] for job in found["tables"][0]["jobs"]] == begun
    check_gone(people, "person-0007")
    code, found = resume(capsys, "people", "--execute", *AT_ONCE)
    assert (code, found["outcome"]) == (0, "nothing_to_do")


def test_one_that_has_to_ask_stops_no_other(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stop):
        erase(people, "person-0007", steps=StopAt("tombstones"))
    begin(people, "person-0008")
    people.write(rows_of(["person-0007"], 4))
    # Of a lease that is held, one asks for all.
    stores = open_stores(people.uri, {})
    claim = stores.leases.acquire("merge")
    code, found = resume(capsys, "people", "--execute", "--yes", *AT_ONCE)
    (table,) = found["tables"]
    assert (code, table["outcome"], len(table["jobs"])) == (4, "held", 1)
    stores.leases.release(claim)
    code, found = resume(capsys, "people", "--execute", *AT_ONCE)
    (table,) = found["tables"]
    assert (code, table["outcome"], states(table)) == (6, "partial", ["open", "done"])
    assert "--yes" in table["error"]
    code, found = resume(capsys, "people", "--execute", "--yes", *AT_ONCE)
    assert (code, states(found["tables"][0])) == (0, ["done"])
    check_gone(people, "person-0007", "person-0008")


def test_a_refresh_that_was_cut_off_brings_nothing_back(people: People) -> None:
    """Its late commit could lower progress, so that old rows are merged once more."""
    stores = open_stores(people.uri, {})
    before = stores.views.table()
    StoredLeases(stores.objects, SystemClock(), ttl_seconds=0).acquire(LOWERING_JOB)
    with pytest.raises(Stop):
        erase(people, "person-0007", steps=StopAt("tombstones"))
    after = stores.views.table()
    assert after.version == before.version + 1
    assert after.mem_wal.index_uuid != before.mem_wal.index_uuid


def test_one_that_never_got_its_keys_is_said(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stop):
        erase(people, "person-0007", steps=StopAt("tombstones"))
    stores = open_stores(people.uri, {})
    (record,) = stores.erasures.list()
    erasure_id = record.erasure_id
    (Path(people.uri) / layout.erasure_folder(erasure_id) / "keys.arrow").unlink()
    code, found = resume(capsys, "people", "--execute", "--yes")
    assert code == 2
    assert "erased nothing" in found["tables"][0]["error"]


def test_a_short_retention_is_refused_though_nothing_is_open(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = resume(capsys, "people", "--execute", "--retention", "1h")
    assert (code, "MW-G01" in found["error"]) == (5, True)


@pytest.mark.nightly
def test_a_cursor_that_keeps_the_versions_is_named(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = open_stores(people.uri, {})
    now = SystemClock().now_nanos()
    stores.cursors.put(Cursor(name="mart", version=2, moved_at_nanos=now, holder="ann"))
    begun = erase(people, "person-0007")
    assert begun.erasure.state == "open"
    assert any("kept for cursor 'mart' of ann" in text for text in begun.warnings)
    _, found = resume(capsys, "people", "--execute", *AT_ONCE)
    (table,) = found["tables"]
    assert states(table) == ["open"]
    assert any("cursor 'mart'" in text for text in table["warnings"])
    stores.cursors.drop("mart")
    _, found = resume(capsys, "people", "--execute", *AT_ONCE)
    assert (states(found["tables"][0]), found["tables"][0]["warnings"]) == (["done"], [])
