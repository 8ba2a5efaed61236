"""26 types of columns in each format that is read; JSON lines, patterns, renamed columns."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from memwal.errors import Unsupported, Usage
from memwal.ingest.sources import text_files
from memwal.ingest.sources.columns import SourceColumns, make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve
from memwal.read import open_table
from memwal.read.output import write_file
from memwal.rows.json_values import from_json, to_json
from memwal.rows.pairs import STRICT
from memwal.store.records.ingests import PlanRecord, Round, SourceFile
from memwal.testing import MemoryObjects
from tests.ingest.test_ingest_identity import run
from tests.support.ingest_tables import KEY

pytestmark = pytest.mark.integration

AT = datetime(2026, 11, 21, 3, 0, 0, 123456)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 0]),
    "int32": (pa.int32(), [2**31 - 1, -1]),
    "int64": (pa.int64(), [-(2**63), 2**53 + 1]),
    "uint8": (pa.uint8(), [255, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 0]),
    "float16": (pa.float16(), [np.float16(1 / 3), np.float16("-inf")]),
    "float32": (pa.float32(), [np.float32(0.1), -0.0]),
    "float64": (pa.float64(), [0.1 + 0.2, float("inf")]),
    "string": (pa.string(), ["", 'é "quoted",\nnull\t']),
    "large_string": (pa.large_string(), ["NA", "0x00"]),
    "binary": (pa.binary(), [b"", b"\x00\xff0x"]),
    "fixed_binary": (pa.binary(2), [b"0x", b"\n\xff"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "time": (pa.time32("ms"), [time(23, 59, 59, 999000), time(0)]),
    "time_ns": (pa.time64("ns"), [1, 86_399_999_999_999]),
    "at": (pa.timestamp("us"), [AT, datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "at_zone": (pa.timestamp("ms", "America/New_York"), [datetime(2026, 7, 1, tzinfo=UTC)] * 2),
    "at_ns": (pa.timestamp("ns", "UTC"), [1, -1]),
    "span": (pa.duration("ns"), [2**62 + 1, -1]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1234567890123456789.0123456789"), Decimal(0)]),
    "list": (pa.list_(pa.struct([("a", pa.timestamp("ns"))])), [[{"a": 1}, None], []]),
    "struct": (
        pa.struct([("a", pa.binary()), ("b", pa.list_(pa.string()))]),
        [{"a": b"\xff", "b": ["", None]}, {"a": None, "b": None}],
    ),
    "vector": (pa.list_(pa.float32(), 3), [[0.1, float("nan"), None], [1, 2, 3]]),
}
FORMATS = ["parquet", "arrow", "arrows", "feather", "csv", "csv.zst", "jsonl", "lance"]


def make_rows() -> pa.Table:
    """Two values of each type, and NULL."""
    columns = {name: pa.array([*values, None], kind) for name, (kind, values) in VALUES.items()}
    return pa.table({"id": pa.array([1, 2, 3], pa.int64()), **columns})


def write(rows: pa.Table, path: Path) -> None:
    """As memwal or pyarrow does."""
    match path.name.partition(".")[2]:
        case "parquet" | "arrow" | "csv":
            write_file(rows.to_reader(), path)
        case "arrows":
            with pa.ipc.new_stream(path, rows.schema) as out:
                out.write_table(rows)
        case "feather":
            feather.write_feather(rows, path)
        case "csv.zst":
            write_file(rows.to_reader(), path.with_name("plain.csv"))
            with pa.CompressedOutputStream(path, "zstd") as out:
                out.write(path.with_name("plain.csv").read_bytes())
        case "jsonl":
            columns = map(to_json, (c.combine_chunks() for c in rows.columns))
            lines = (
                dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)
            )
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        case "lance":
            lance.write_dataset(rows, str(path))


def same(left: pa.Table, right: pa.Table) -> bool:
    """The same types, and values to the bit: NaN and -0.0 as well."""
    one, other = (table.combine_chunks() for table in (left, right))
    return one.schema.types == other.schema.types and str(one.to_pydict()) == str(other.to_pydict())


@pytest.mark.parametrize("kind", FORMATS)
def test_26_types(tmp_path, kind) -> None:
    assert len(VALUES) == 26
    rows = make_rows()
    write(rows, tmp_path / f"rows.{kind}")
    shape = Shape(schema=rows.schema, key=("id",))
    files = SourceFiles({}, make_columns(shape, (), ()))
    [file] = files.find([str(tmp_path / f"rows.{kind}")])
    shape.check(files.read_schema(file), file.uri)
    columns, sieve = shape.select_columns(files.read_schema(file)), Sieve(shape=shape)
    for first in (0, 2):
        chunks = files.read_chunks(file, 2, first, columns=columns)
        found = pa.concat_tables([sieve.sift(chunk, file.uri, 0).rows for chunk in chunks])
        assert same(found, rows.slice(first))


def make_table(folder: Path) -> pa.Schema:
    key = pa.field("id", pa.int64(), nullable=False, metadata=KEY)
    schema = pa.schema([key, *list(make_rows().schema)[1:]])
    lance.write_dataset(schema.empty_table(), str(folder)).initialize_mem_wal()
    return schema


def test_26_types_from_files_of_every_format(tmp_path) -> None:
    rows, parts = make_rows(), []
    for number, kind in enumerate(FORMATS):
        ids = pc.add(rows["id"], 10 * number)
        parts.append(rows.set_column(0, "id", ids))
        write(parts[-1], tmp_path / f"rows.{kind}")
    (tmp_path / "plain.csv").unlink()  # before it was compressed
    make_table(tmp_path / "t")
    assert run("ingest", tmp_path / "t", tmp_path / "rows.*")["rows_written"] == 24
    found = open_table(str(tmp_path / "t")).read(with_wal=True).read_all()
    assert same(found.sort_by("id"), pa.concat_tables(parts))


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (pa.list_(pa.int32()), '"[1, 2"', "row 1: column 'x' is no list.*: '.1, 2' is no JSON"),
        (pa.struct([("a", pa.int8())]), '"{""b"": 1}"', "'a' is missing"),
        (pa.struct([("a", pa.int8())]), '"{""a"": 1, ""b"": 1}"', "'b' is not in"),
        (pa.binary(), "0x00\nplain", "in hexadecimal after 0x, and others are not"),
        (
            pa.timestamp("s", "UTC"),
            "2026-01-01T00:00",
            "'2026-01-01T00:00': --convert=utc takes it",
        ),
        (pa.duration("s"), "1.5", r"is no duration\[s\]: '1.5' seconds"),
    ],
)
def test_text_that_is_no_value(tmp_path, kind, text, told) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"x\n{text}\n")
    files = SourceFiles({}, SourceColumns(types={"x": kind}))
    [file] = files.find([str(path)])
    sieve = Sieve(shape=Shape(schema=pa.schema([("x", kind)]), key=()))
    [chunk] = files.read_chunks(file, 10)
    with pytest.raises(Usage, match=told):
        sieve.sift(chunk, file.uri, 0)


def test_maps_and_dictionaries_in_slices() -> None:
    for column in (
        pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([[[1], None], None, []], pa.large_list(pa.list_(pa.int8()))),
    ):
        for part in (column, column.slice(1), column.slice(0, 1)):
            assert from_json(to_json(part), column.type).to_pylist() == part.to_pylist()


# ---- JSON lines


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("s", pa.struct([("a", "int8")])),
    ]
)


def read(chunks: Iterable[pa.Table]) -> pa.Table:
    """The rows of all chunks, with their values."""
    types = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    return pa.concat_tables([text_files.convert_text(one, types, STRICT, 1)[0] for one in chunks])


def read_lines(folder: Path, text: str, **options: Any) -> list[dict[str, Any]]:
    renamed, defaults = options.pop("renamed", ()), options.pop("defaults", ())
    shape = Shape(schema=SCHEMA, key=("id",), **options)
    (folder / "rows.json").write_text(text)
    files = SourceFiles({}, make_columns(shape, renamed, defaults))
    [file] = files.find([str(folder / "rows.json")])
    shape.check(files.read_schema(file), file.uri)
    columns = shape.select_columns(files.read_schema(file))
    sieve = Sieve(shape=shape)
    chunks = files.read_chunks(file, 100, columns=columns)
    sifted = (sieve.sift(chunk, file.uri, 0).rows for chunk in chunks)
    return [row for rows in sifted for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"id": 1, "n": 1, "s": null}\n\n{"id": 2, "s": null}',
            "row 2: without column 'n', NULL",
        ),
        ('{"id": 1, "N": 1, "s": null}', "without column 'n' .there is 'N'., NULL"),
        ('{"id": 1, "n": "1", "s": null}', "row 1: column 'n' is no int64: '1'"),
        ('{"id": 1, "n": 1, "s": {}}', "row 1: column 's' is no struct.*'a' is missing"),
        ('{"id": 1, "n": 1, "s": null, "N": 2}', "no column 'N'"),
        ('[{"id": 1, "n": 1, "s": null}]', "row 1: expected an object"),
        ('{\n"id": 1}', "row 1: is no JSON.*one object a line"),
        ("id,n\n", "row 1: is no JSON"),
        ('{"id": null, "n": 1, "s": null}', "'id' may not be NULL"),
    ],
)
def test_lines_that_are_refused(tmp_path, text, told) -> None:
    with pytest.raises(Usage, match=told):
        read_lines(tmp_path, text)


def test_columns_of_later_lines(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "_BATCH_ROWS", 1)
    text = '{"id": 1, "n": 1, "s": null}\n{"id": 2, "n": 1, "s": null, "N": 2}'
    with pytest.raises(Usage, match="row 2: the table has no column 'N'"):
        read_lines(tmp_path, text)


def test_lines_with_gaps_that_are_meant(tmp_path) -> None:
    text = '\ufeff{"id": 1, "s": {}}\n{"id": 2, "n": 3}'
    found = read_lines(tmp_path, text, missing_as_null=True)
    assert found == [{"id": 1, "n": None, "s": {"a": None}}, {"id": 2, "n": 3, "s": None}]
    with pytest.raises(Usage, match="without column 'id', NULL"):
        read_lines(tmp_path, '{"n": 1}', missing_as_null=True)


def test_lines_that_delete_need_their_key_only(tmp_path) -> None:
    text = '{"id": 1, "gone": true}\n{"id": 2, "n": 3, "s": null, "gone": false}'
    found = read_lines(tmp_path, text, delete_column="gone")
    assert [row["n"] for row in found] == [None, 3]
    with pytest.raises(Usage, match="row 1: without columns 'n', 's', NULL"):
        read_lines(tmp_path, '{"id": 1, "gone": false}', delete_column="gone")


def test_columns_of_lines_that_were_named_have_to_be_there(tmp_path) -> None:
    text = '{"id": 1, "n": 3, "s": null}\n{"id": 2, "n": 3, "s": null, "gone": true}'
    assert len(read_lines(tmp_path, text, delete_column="gone")) == 2
    with pytest.raises(Usage, match="no column 'deleted' to delete by"):
        read_lines(tmp_path, text.replace(', "gone": true', ""), delete_column="deleted")
    with pytest.raises(Usage, match=r"no column 'N' \(there is 'n'\) to map"):
        read_lines(tmp_path, text, renamed=(("N", "n"),), missing_as_null=True)
    found = read_lines(
        tmp_path,
        '{"id": 1, "s": null}\n{"id": 2, "s": null}',
        delete_column="deleted",
        renamed=(("N", "n"),),
        defaults=(("deleted", "false"), ("n", "5")),
    )
    assert [row["n"] for row in found] == [5, 5]


# ---- renamed columns and defaults


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_columns_are_renamed_and_filled_in(tmp_path, kind) -> None:
    shape = Shape(schema=SCHEMA, key=("id",))
    renamed, defaults = (("key", "id"), ("id", "n")), (("s", '{"a": 7}'),)
    files = SourceFiles({}, make_columns(shape, renamed, defaults))
    path = tmp_path / f"rows.{kind}"
    rows = pa.table({"id": [1, 2], "key": [3, 4]})
    if kind == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()))
    else:
        write(rows, path)
    [file] = files.find([str(path)])
    shape.check(files.read_schema(file), file.uri)
    for columns in (shape.select_columns(files.read_schema(file)), ["s"]):
        wanted = [{"id": 3, "n": 1, "s": {"a": 7}}, {"id": 4, "n": 2, "s": {"a": 7}}]
        found = read(files.read_chunks(file, 1, columns=columns)).to_pylist()
        assert found == [{name: row[name] for name in columns} for row in wanted]


def test_a_default_is_for_sources_that_lack_the_column(tmp_path) -> None:
    shape = Shape(schema=SCHEMA, key=("id",))
    write(pa.table({"id": [1], "n": pa.array([None], pa.int64())}), tmp_path / "rows.csv")
    columns = make_columns(shape, (), (("n", "5"), ("s", '{"a": 1}')))
    files = SourceFiles({}, columns)
    [chunk] = files.read_chunks(*files.find([str(tmp_path / "rows.csv")]), 10)
    assert read([chunk]).to_pylist() == [{"id": 1, "n": None, "s": {"a": 1}}]


@pytest.mark.parametrize(
    ("renamed", "defaults", "told"),
    [
        ((("Key", "id"),), (), "no column 'Key' .there is 'key'. to map"),
        ((("a", "n"), ("b", "n")), (), "--map leads to 'n' twice"),
        ((), (("N", "5"),), "--default N: the table has no such column .there is 'n'"),
        ((), (("n", "five"),), "--default n: 'five' is no int64"),
        ((), (("n", ""),), "--default n: '' is no int64"),
        ((), (("s", "{"),), "--default s: '{' is no struct"),
    ],
)
def test_names_and_defaults_that_make_no_sense(tmp_path, renamed, defaults, told) -> None:
    write(pa.table({"key": [1]}), tmp_path / "rows.csv")
    with pytest.raises(Usage, match=told):
        files = SourceFiles({}, make_columns(Shape(schema=SCHEMA, key=()), renamed, defaults))
        files.read_schema(*files.find([str(tmp_path / "rows.csv")]))


# ---- patterns, compressed files


def test_patterns_that_the_shell_did_not_expand(tmp_path) -> None:
    for name in ("d=2/b.csv", "d=2/_old.csv", "d=1/a.csv", "d=1/x/c.csv", "[a].csv", ".h/e.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("id\n1\n")
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "d=1/t.lance"))
    files = SourceFiles({})

    def find(*patterns: str) -> list[str]:
        found = files.find([f"{tmp_path}/{pattern}" for pattern in patterns])
        return [file.uri.removeprefix(f"{tmp_path}/") for file in found]

    assert find("*/*.csv") == ["d=1/a.csv", "d=2/b.csv"]
    assert find("**/*.csv") == ["[a].csv", "d=1/a.csv", "d=1/x/c.csv", "d=2/b.csv"]
    assert find("d=2/*", "d=[12]/?.csv") == ["d=2/b.csv", "d=1/a.csv"]
    assert find("[a].csv") == ["[a].csv"]  # such a name is no pattern
    assert find("d=?/*.lance", "d=?/x") == ["d=1/t.lance", "d=1/x/c.csv"]
    with pytest.raises(Usage, match="nothing matches"):
        find("*.parquet")


def test_a_plan_with_a_format_that_is_not_known_was_made_by_a_newer_build() -> None:
    objects = MemoryObjects()
    stored = Round(objects, "nightly", 1, "run")
    file = SourceFile(uri="/in/a.parquet", format="parquet", size_bytes=1, stamp="1")
    stored.begin(PlanRecord(sources=(file,), chunk_rows=1, rows_per_entry_max=1, spec_id=0))
    path = f"{stored.folder}/plan.json"
    objects.put(path, objects.get(path).replace(b'"parquet"', b'"of-tomorrow"'))
    with pytest.raises(Unsupported, match="of another version of memwal"):
        stored.read_plan()


def test_compressed_lines(tmp_path) -> None:
    for name, pack in (("a.ndjson.gz", gzip.compress), ("b.csv.bz2", bz2.compress)):
        (tmp_path / name).write_bytes(pack(b'{"id": 1}\n' if "json" in name else b"id\n1\n"))
    files = SourceFiles({}, SourceColumns(types={"id": pa.int64()}))
    found = files.find([str(tmp_path)])
    assert [file.format for file in found] == ["jsonl", "csv"]
    assert [read(files.read_chunks(f, 9)).to_pylist() for f in found] == [[{"id": 1}]] * 2


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.jsonl.gz"])
def test_what_is_not_compressed_as_its_name_says_is_no_fault_of_the_store(tmp_path, name) -> None:
    make_table(tmp_path / "t")
    (tmp_path / name).write_bytes(b"id,bool\n1,true\n")
    report = run("ingest", tmp_path / "t", tmp_path / name)
    assert report["exit_code"] == 2
    assert f"{name}: can't be read as compressed" in report["error"]


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_another_separator_is_told(tmp_path, sign) -> None:
    make_table(tmp_path / "t")
    (tmp_path / "a.csv").write_text(f"id{sign}bool\n1{sign}true\n")
    report = run("ingest", tmp_path / "t", tmp_path / "a.csv")
    assert (report["exit_code"], f"separated by {sign!r}" in report["error"]) == (2, True)


def test_what_a_folder_holds_besides_is_told(tmp_path) -> None:
    make_table(tmp_path / "t")
    folder = tmp_path / "in"
    write(make_rows(), folder.mkdir() or folder / "a.parquet")
    for name in ("README.txt", "b.json", ".hidden", "_SUCCESS"):
        (folder / name).touch()
    [warning] = run("ingest", tmp_path / "t", folder)["warnings"]
    assert warning.startswith(str(folder)) and warning.endswith(": README.txt, b.json")


def test_a_table_that_can_not_be_merged_is_told(tmp_path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t")).initialize_mem_wal()
    (tmp_path / "a.csv").write_text("id\n1\n")
    report = run("ingest", tmp_path / "t", tmp_path / "a.csv", "--dry-run")
    [warning] = report["warnings"]
    assert "no primary key" in warning


def test_parquet_that_was_damaged_is_no_fault_of_the_store(tmp_path) -> None:
    make_table(tmp_path / "t")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(9000))}), path, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[2000:6000] = b"\xff" * 4000
    path.write_bytes(data)
    report = run("ingest", tmp_path / "t", path, "--missing-as-null")
    assert report["exit_code"] == 2 and f"{path}: can't be read as" in report["error"]
