"""What the page for users of LanceDB and lance-context says, tried with both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.errors import EXIT_REFUSED
from tests.support.lancedb_process import ROOT, LanceDb, lancedb_client

pytestmark = pytest.mark.nightly

PAGE = ROOT / "docs" / "guides" / "lancedb.md"
SHORT = "--retention 0s --grace 0s --allow-short-retention"
STORE = {"id": {"type": "string", "nullable": False}, "n": "int64"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[LanceDb]:
    with lancedb_client(tmp_path) as client:
        yield client


def run(command: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, command.split())
    return done.exit_code, done.stdout


def read(uri: Path) -> dict[Any, Any]:
    code, shown = run(f"read {uri} --json")
    assert code == 0, shown
    rows = json.loads(shown)["tables"][0]["rows"]
    return {row["id"]: row["n"] for row in rows}


def test_the_lines_of_the_page(tmp_path: Path, client: LanceDb) -> None:
    """Programs and commands in their order, at an address of ours, without waiting for days."""
    text = PAGE.read_text().replace("/data", str(tmp_path))
    text = re.sub("--retention [0-9]+d", SHORT, text)
    found = re.findall(
        r"```python\n(.*?)```|^    memwal (?!watch)([^\n]*)$", text, re.DOTALL | re.MULTILINE
    )
    programs = [program for program, command in found if program]
    commands = [command for program, command in found if command]
    assert (len(programs), len(commands)) == (6, 6)
    for program, command in found:
        if command:
            code, shown = run(command)
            assert code == 0, (command, shown)
        else:
            client("run", code=program)
    # What the last lines of both halves have left.
    assert client("evaluate", code="table.to_arrow().to_pylist()") == []
    assert client("evaluate", code="found") == [{"id": "a", "text": "first"}]
    client("run", code="upsert = table.merge_insert('id').when_not_matched_insert_all()")
    client("run", code="upsert.when_matched_update_all().execute(rows)")
    client("run", code="table.close_lsm_writers()")
    events = tmp_path / "events.lance"
    assert read(events) == {1: 10}
    assert run(f"verify {events}")[0] == 0


def test_a_handle_that_never_looks_again_misses_rows(tmp_path: Path, client: LanceDb) -> None:
    """The reason for `read_consistency_interval`, and for opening anew what has none."""
    client("create", spec=["unsharded"])
    client("run", code="import lancedb")
    client("run", code=f"kept = lancedb.connect({str(tmp_path)!r}).open_table('t')")
    client("put", rows=[{"id": 1, "tenant": "a", "n": 1}])
    assert client("evaluate", code="kept.count_rows()") in (0, 1)
    assert client("evaluate", code="len(kept.to_arrow())") == 1
    assert run(f"maintain {tmp_path / 't.lance'} --execute {SHORT}")[0] == 0
    assert client("evaluate", code="len(kept.to_arrow())") == 0
    assert len(client("read")) == 1
    client("run", code="kept.checkout_latest()")
    assert client("evaluate", code="len(kept.to_arrow())") == 1


def test_a_spec_that_is_changed_without_a_quiesce(tmp_path: Path, client: LanceDb) -> None:
    uri = tmp_path / "t.lance"
    client("create", spec=["unsharded"])
    client("put", rows=[{"id": 1, "tenant": "a", "n": 1}])
    assert run(f"merge {uri}")[0] == 0
    client("change_spec", spec=["unsharded"], index="n")
    assert run(f"merge {uri}")[0] == EXIT_REFUSED
    assert run(f"merge {uri} --allow-reinitialised")[0] == 0


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.lance"


def put(key: str, n: int) -> str:
    return f"store.add([{{'id': {key!r}, 'n': {n}}}]); store.flush()"


def list_rows(client: LanceDb) -> dict[str, int]:
    """Raises LookupError where Lance 9 trips over the order of rows."""
    try:
        return {row["id"]: row["n"] for row in client("evaluate", code="store.list()")}
    except AssertionError as error:
        if "from_sorted_iter called with non-sorted input" in str(error):
            raise LookupError(str(error)) from None
        raise


def test_a_store_of_lance_context(client: LanceDb, notes: Path) -> None:
    again = f"store = GenericStore.open_existing({str(notes)!r})"
    client("run", code="from lance_context import GenericStore")
    client("run", code=f"store = GenericStore.open({str(notes)!r}, schema={STORE!r})")
    for n in range(3):
        client("run", code=put("a", n))
        client("run", code=put(f"b{n}", n))
    wanted = {"a": 2, "b0": 0, "b1": 1, "b2": 2}
    assert list_rows(client) == read(notes) == wanted
    status = json.loads(run(f"status {notes} --json")[1])["tables"][0]["shards"]
    assert [shard["pending_generations"] for shard in status] == [[1, 2, 3, 4, 5, 6]]
    assert run(f"maintain {notes} --execute {SHORT}")[0] == 0
    assert read(notes) == wanted
    assert list_rows(client) == {}  # an open store keeps its base
    client("run", code=again)
    assert list_rows(client) == wanted
    client("run", code=put("c", 7))
    assert read(notes) == {**wanted, "c": 7}
    status = json.loads(run(f"status {notes} --json")[1])["tables"][0]["shards"]
    assert status[0]["pending_rows"] in (1, 2)  # the last put's may be there once more
    # The store is closed; its last put was flushed, and may be flushed once more.
    client("run", code="del store")
    assert run(f"quiesce {notes} {SHORT} --idle 0s --yes")[0] == 0
    client("run", code=again)
    assert list_rows(client) == read(notes) == {**wanted, "c": 7}
    assert run(f"verify {notes}")[0] == 0


def test_a_second_maintainer_is_noticed(client: LanceDb, notes: Path) -> None:
    client("run", code="from lance_context import GenericStore")
    client("run", code=f"store = GenericStore.open({str(notes)!r}, schema={STORE!r})")
    client("run", code=put("a", 1))
    client("run", code=put("b", 2))
    assert client("evaluate", code="store.cleanup_wal()") == 2
    code, shown = run(f"merge {notes} --json")
    assert code == EXIT_REFUSED
    assert "another program took generations 1 to 2 off the list" in shown
    assert run(f"read {notes}")[0] == EXIT_REFUSED
    assert run(f"read {notes} --allow-holes")[0] == 0


def test_a_store_that_was_opened_again_may_fail_to_list(client: LanceDb, notes: Path) -> None:
    again = f"store = GenericStore.open_existing({str(notes)!r})"
    client("run", code="from lance_context import GenericStore")
    client("run", code=f"store = GenericStore.open({str(notes)!r}, schema={STORE!r})")
    for n in range(3):
        rows = [{"id": str(key), "n": n} for key in range(n, n + 4)]
        client("run", code=f"store.add({rows}); store.flush()")
    assert run(f"merge {notes}")[0] == 0
    client("run", code=again)
    client("run", code=put("0", 9))
    wanted = {"0": 9, "1": 1, "2": 2, "3": 2, "4": 2, "5": 2}
    assert read(notes) == wanted
    # By chance, as the rows of the base come to lie; a wrong answer it never gives.
    with suppress(LookupError):
        assert list_rows(client) == wanted
    assert run(f"maintain {notes} --execute {SHORT}")[0] == 0
    client("run", code=again)
    assert list_rows(client) == wanted
