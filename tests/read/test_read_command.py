"""`memwal read` as a user has it: rows, files, errors and exit codes."""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from rich.console import Console

from memwal.cli import main
from memwal.errors import Usage
from memwal.read.output import write_file
from memwal.read.show import show_rows
from memwal.read.table import parse_keys
from memwal.rows.json_values import rows_to_json
from tests.support import builders
from tests.support.builders import Delete, Put, Table

pytestmark = pytest.mark.integration


class Command:
    """Runs `memwal read` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, *arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["read", *map(str, arguments)])
        shown = self._capsys.readouterr()
        assert ended.value.code == code, shown.err
        return shown.out + (shown.err if code else "")

    def table(self, *arguments: object) -> dict[str, Any]:
        document = json.loads(self.text(*arguments, "--json"))
        assert (document["job"], document["outcome"]) == ("read", "done")
        (table,) = document["tables"]
        assert isinstance(table, dict)
        return table

    def error(self, *arguments: object, code: int) -> str:
        document = json.loads(self.text(*arguments, "--json", code=code).split("\nerror:")[0])
        assert (document["job"], document["outcome"]) == (
            "read",
            "refused" if code == 5 else "failed",
        )
        return str(document["error"])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """30 rows in the base, 3 of them written again, one deleted, 2 new."""
    table = builders.make_table(tmp_path / "t", rows=range(30))
    table.flush(table.shards[0], Put([2, 3, 4, 40, 41], 1), Delete([5]))
    return table


def test_json_has_all_rows_and_says_where_they_are_from(command: Command, table: Table) -> None:
    found = command.table(table.uri)
    truth = table.truth()
    assert found["num_rows"] == len(found["rows"]) == len(truth) == 31
    assert {row["k"]: row for row in found["rows"]} == {key: row for (key,), row in truth.items()}
    assert found["schema"][0] == {"name": "k", "type": "int64"}
    assert (found["version"], found["generations"], found["shards"]) == (2, 1, 1)
    assert (found["outcome"], found["limit"], found["output"]) == ("done", None, None)


def test_people_see_the_first_rows_and_are_told_so(command: Command, table: Table) -> None:
    shown = command.text(table.uri, "--columns", "n,vector")
    assert len(shown.splitlines()) == 2 + 20 + 1
    assert "20 rows" in shown
    assert "there may be more: --limit" in shown
    assert "NULL" in shown
    assert "k" not in shown.splitlines()[1].split()
    all_of_them = command.text(table.uri, "--limit", "100")
    assert "31 rows" in all_of_them
    assert "there may be more" not in all_of_them


def test_numbers_are_shown_as_they_are(command: Command, tmp_path: Path) -> None:
    values = {"k": [1], "double": [123456.78], "float": pa.array([0.1], pa.float32())}
    lance.write_dataset(pa.table(values), str(tmp_path / "t")).initialize_mem_wal(unsharded=True)
    shown = command.text(tmp_path / "t").split()
    assert {"123456.78", "0.1"} <= set(shown)


def test_columns_filter_limit_and_key(command: Command, table: Table) -> None:
    few = command.table(table.uri, "--columns", "text,n", "--filter", "n < 1000", "--limit", "2")
    assert [list(row) for row in few["rows"]] == [["text", "n"]] * 2
    assert few["limit"] == 2
    key = builders.KINDS["int64"].key(40)[0]
    assert [row["n"] for row in command.table(table.uri, "--key", f"k={key}")["rows"]] == [4]
    gone = builders.KINDS["int64"].key(5)[0]
    assert command.table(table.uri, "--key", f"k={gone}")["rows"] == []


def test_a_search(command: Command, table: Table) -> None:
    found = command.table(table.uri, "--nearest", "vector=[4, 2, -4, 0.5]", "--k", "2",
                          "--columns", "n")  # fmt: skip
    assert found["rows"][0] == {"n": 4, "_distance": 0.0}
    assert found["num_rows"] == 2


def test_an_old_version(command: Command, table: Table) -> None:
    table.merge_all()
    before, after = (command.table(table.uri, "--version", version) for version in (2, 3))
    assert (before["version"], before["generations"]) == (2, 1)
    assert (after["version"], after["generations"]) == (3, 0)
    assert sorted(map(str, before["rows"])) == sorted(map(str, after["rows"]))


def test_explain(command: Command, table: Table) -> None:
    table.dataset.create_scalar_index("n", "BTREE", name="n_idx")
    shown = command.text(table.uri, "--explain", "--filter", "n = 3")
    for part in ("30 rows; Lance reads it by", "newest first", "@n_idx(BTree)"):
        assert part in shown
    found = command.table(table.uri, "--explain", "--filter", "n = 3")["explain"]
    assert [g["generation"] for g in found["shards"][0]["generations"]] == [1]
    assert "@n_idx(BTree)" in found["base"]["lance_plan"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--columns", "x"], "no column 'x'; it has k, n, text, vector, nested"),
        (["--filter", "x = 1"], "No field named x"),
        (["--filter", "n = "], "Expected: an expression"),
        (["--filter", "n / 0 = 1"], "Divide by zero"),
        (["--key", "n=1"], "a key names the key columns (k), not n"),
        (["--key", "k=one"], "expected a whole number"),
        (["--key", "k=1", "--key", "k=2"], "given twice"),
        (["--key", "k"], "expected COLUMN=VALUE"),
        (["--key", f"k={2**63}"], "no value of the key column 'k'"),
        (["--nearest", "vector"], "expected COLUMN=[0.1, 0.2, …]"),
        (["--nearest", "vector=[1]"], "vector size 1"),
        (["--nearest", "n=[1]"], "must be a vector"),
        (["--k", "3"], "go with --nearest"),
        (["--nprobes", "3"], "go with --nearest"),
        (["--explain", "--with-wal"], "--explain reads no rows"),
        (["--version", "99"], "no version 99"),
        (["--output", "rows.txt"], "ends in .parquet, .arrow, .csv"),
        (["--output", "nowhere/rows.csv"], "no folder nowhere"),
    ],
)
def test_wrong_requests(command: Command, table: Table, arguments: list[str], says: str) -> None:
    assert says in command.error(table.uri, *arguments, code=2)


def test_a_missing_generation_is_refused(command: Command, table: Table) -> None:
    table.flush(table.shards[0], Put([6], 9))
    builders.unlist_generation(table, table.shards[0], 1)
    assert "--allow-holes goes on" in command.error(table.uri, code=5)
    assert command.table(table.uri, "--allow-holes")["num_rows"] == 30


def test_no_table(command: Command, tmp_path: Path) -> None:
    assert "no such table" in command.error(tmp_path / "nothing", code=2)


# ---- files


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_rows_go_to_a_file(command: Command, table: Table, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text("an old file")
    found = command.table(table.uri, "--output", path)
    assert (found["num_rows"], found["rows"], found["output"]) == (31, None, str(path))
    rows = read_file(path)
    assert {row["k"]: row["n"] for row in rows} == {
        k: row["n"] for (k,), row in table.truth().items()
    }
    assert f"31 rows written to {path}" in command.text(table.uri, "--output", path)
    assert [p.name for p in tmp_path.glob(".*")] == []


def read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".arrow":
        return list(pa.ipc.open_file(path).read_all().to_pylist())
    rows = pyarrow.csv.read_csv(path).to_pylist()
    assert any(json.loads(row["vector"])[3] == 0.5 for row in rows if row["vector"])
    return list(rows)


def test_what_a_format_can_not_hold_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("an old file")
    rows = pa.table({"f": pa.array([timedelta(1)])})
    unions = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(Usage, match=r"\.arrow holds every type"):
        write_file(pa.table({"u": unions}).to_reader(), path)
    assert path.read_text() == "an old file"
    assert list(tmp_path.iterdir()) == [path]
    assert write_file(rows.to_reader(), tmp_path / "rows.csv") == 1
    assert (tmp_path / "rows.csv").read_text() == '"f"\n"86400.0"\n'


# ---- values


def test_every_type_has_a_json_form() -> None:
    at = datetime(2026, 11, 21, 3, 0, 0, 123456, tzinfo=UTC)
    columns = {
        "bytes": (pa.binary(), b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
        "at": (pa.timestamp("us", "UTC"), at, "2026-11-21T03:00:00.123456+00:00"),
        "ns": (pa.timestamp("ns"), 1_001, "1970-01-01T00:00:00.000001001"),
        "ns_utc": (pa.timestamp("ns", "UTC"), 1, "1970-01-01T00:00:00.000000001+00:00"),
        "day": (pa.date32(), date(2026, 11, 21), "2026-11-21"),
        "clock": (pa.time64("us"), time(3, 4, 5, 6), "03:04:05.000006"),
        "clock_ns": (pa.time64("ns"), 1, "00:00:00.000000001"),
        "span": (pa.duration("ns"), 1_500_000_000, 1.5),
        "decimal": (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
        "nan": (pa.float32(), float("nan"), "nan"),
        "large": (pa.uint64(), 2**64 - 1, 2**64 - 1),
        "nested": (
            pa.struct([("a", pa.list_(pa.binary()))]),
            {"a": [b"x", None]},
            {"a": ["eA==", None]},
        ),
        "map": (pa.map_(pa.string(), pa.int32()), [("a", 1)], [["a", 1]]),
    }
    batch = pa.record_batch(
        [pa.array([value, None], kind) for kind, value, _ in columns.values()], names=list(columns)
    )
    first, second = rows_to_json([batch])
    assert first == {name: shown for name, (_, _, shown) in columns.items()}
    assert second == dict.fromkeys(columns)
    assert json.loads(json.dumps(first)) == first


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("duration[s]", 376782944.0, "376782944.0"),
        ("list<item: duration[ms]>", [376782944.5], "[376782944.5]"),
        ("double", 376782944.5, "376782944.5"),
        ("struct<d: double>", {"d": 376782944.5}, '{"d": 376782944.5}'),
        ("float", 0.10000000149011612, "0.1"),
        ("fixed_size_list<item: float>[2]", [0.10000000149011612, 0.5], "[0.1, 0.5]"),
    ],
)
def test_a_number_is_shown_with_the_digits_of_its_type(kind: str, value: Any, shown: str) -> None:
    out = io.StringIO()
    schema, facts = [{"name": "c", "type": kind}], defaultdict[str, Any](lambda: None)
    table = facts | {"schema": schema, "rows": [{"c": value}], "table": "t", "num_rows": 1}
    table |= {"warnings": [], "version": 1, "shards": 0, "generations": 0}
    show_rows({"tables": [table], "seconds": 0.0}, Console(file=out, width=80))
    assert f" {shown} " in out.getvalue().replace("\n", " ")


def test_keys_are_parsed_by_their_columns_types() -> None:
    schema = pa.schema([("a", pa.bool_()), ("b", pa.binary()), ("c", pa.large_string())])
    found = parse_keys(["a=True", "b=0x00fF", "c=x=y"], schema)
    assert found == {"a": True, "b": b"\x00\xff", "c": "x=y"}
    for wrong in ("a=1", "b=00", "d=1"):
        with pytest.raises(Usage):
            parse_keys([wrong], schema)


def test_empty_tables_have_a_schema(command: Command, tmp_path: Path) -> None:
    schema = pa.schema(builders.KINDS["int64"].fields)
    lance.write_dataset(schema.empty_table(), str(tmp_path / "t")).initialize_mem_wal()
    found = command.table(tmp_path / "t")
    assert (found["num_rows"], found["schema"]) == (0, [{"name": "k", "type": "int64"}])
    assert "no rows" in command.text(tmp_path / "t")
