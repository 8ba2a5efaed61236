"""Files with the key and some of the columns: what changes, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from tests.support.ingest_tables import MemWalTable, make

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, dict[str, Any]]]
COALESCE = '[tables.t.policy.columns]\nn = "coalesce"\nnote = "coalesce"\n'


@pytest.fixture
def table(tmp_path: Path) -> MemWalTable:
    return make(tmp_path / "t", unsharded=True)


@pytest.fixture
def run(tmp_path: Path, table: MemWalTable) -> Run:
    config = tmp_path / "memwal.toml"
    config.write_text(f'[tables.t]\nuri = "{table.uri}"\n')

    def run(command: str, *words: str) -> tuple[int, dict[str, Any]]:
        asked = [command, "t", *words, "--config", str(config), "--json"]
        done = CliRunner().invoke(app, asked, catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    return run


def put(run: Run, folder: Path, *options: str, **columns: list[Any]) -> tuple[int, dict[str, Any]]:
    file = folder / f"{len(list(folder.glob('*.parquet')))}.parquet"
    pq.write_table(pa.table(columns), file)
    return run("ingest", str(file), *options)


def read(run: Run) -> dict[int, tuple[Any, Any]]:
    _, report = run("read")
    return {row["id"]: (row["n"], row["note"]) for row in report["tables"][0]["rows"]}


def test_a_file_with_some_columns_is_refused(tmp_path: Path, run: Run) -> None:
    assert put(run, tmp_path, id=[1], n=[5], note=["a"])[0] == 0
    code, found = put(run, tmp_path, id=[1], n=[6])
    assert code == 2
    assert "without column 'note', NULL would be written over what the table has" in str(found)
    assert put(run, tmp_path, "--missing-as-null", id=[1], n=[6])[0] == 0
    assert read(run) == {1: (6, None)}


@pytest.mark.parametrize("merged", [False, True])
def test_with_coalesce_only_the_columns_that_are_there_change(
    tmp_path: Path, run: Run, table: MemWalTable, merged: bool
) -> None:
    with (tmp_path / "memwal.toml").open("a") as config:
        config.write(COALESCE)
    done = [put(run, tmp_path, id=[1, 2, 3], n=[1, 2, 3], note=["a", "b", "c"])[0]]
    done += [run("merge", "--engine", "local")[0]] if merged else []
    done += [
        put(run, tmp_path, "--missing-as-null", id=[1, 4], n=[10, 40])[0],
        put(run, tmp_path, "--missing-as-null", id=[2, 1], note=["B", "A"])[0],
        put(run, tmp_path, "--delete-column", "gone", id=[3], gone=[True])[0],
        put(run, tmp_path, "--missing-as-null", id=[3], note=["C"])[0],
    ]
    assert set(done) == {0}
    wanted = {1: (10, "A"), 2: (2, "B"), 3: (None, "C"), 4: (40, None)}
    assert read(run) == wanted
    assert run("merge", "--engine", "local")[0] == 0
    assert read(run) == wanted
    rows = table.dataset.to_table().to_pylist()
    assert {row["id"]: (row["n"], row["note"]) for row in rows} == wanted


def test_pylance_has_no_rows_without_some_of_the_columns(table: MemWalTable) -> None:
    """Why there is no other way: its writer takes whole rows only, and NULL is a value like any."""
    shard = "6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11"
    rows = pa.table({"id": [1], "n": [6]})
    with (
        table.dataset.mem_wal_writer(shard) as writer,
        pytest.raises(OSError, match="does not match the base table schema"),
    ):
        writer.put(rows.cast(pa.schema([table.dataset.schema.field(n) for n in ("id", "n")])))
