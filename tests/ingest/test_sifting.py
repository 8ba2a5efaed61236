"""Rows of a file that can be written, and those that can't: which, where and why."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memwal.ingest.check
from memwal.errors import Usage
from memwal.ingest.check import Check
from memwal.ingest.sources.columns import make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.values.numbered_chunks import find_marks
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import RejectsFile, Sieve
from memwal.store.records.ingests import PlanRecord, RejectRecord, Round
from memwal.testing import MemoryObjects

KEY = pa.field("id", pa.int64(), nullable=False)
SHAPE = Shape(schema=pa.schema([KEY, ("n", pa.int64()), ("note", pa.string())]), key=("id",))


def make_shape(**types: pa.DataType) -> Shape:
    return Shape(schema=pa.schema([KEY, *types.items()]), key=("id",))


def sift(
    path: Path, shape: Shape = SHAPE, *, rows_max: int | None = 100
) -> tuple[list[dict[str, Any]], list[RejectRecord]]:
    """The rows that can be written, and the others, two read at a time."""
    files = SourceFiles({}, make_columns(shape, (), ()))
    [file] = files.find([str(path)])
    schema = files.read_schema(file)
    shape.check(schema, file.uri)
    sieve = Sieve(shape=shape, rows_max=rows_max)
    read, rows, rejects = 0, [], []
    for chunk in files.read_chunks(file, 2, columns=shape.select_columns(schema)):
        sifted = sieve.sift(chunk, file.uri, read)
        read += len(chunk)
        rows += sifted.rows.to_pylist()
        rejects += sifted.rejects
    return rows, rejects


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_rows_of_csv_with_other_fields_than_the_header(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,n,note\n1,1,a\n\n2,2\n,3,c\n4,4,"d\nd"\n5,5,e,f\n6,"",g\n7,7,h\n8\n')
    rows, told = sift(path)
    assert [row["id"] for row in rows] == [1, 4, 7]
    assert [(row.row, row.column) for row in told] == [
        (2, None),
        (3, "id"),
        (5, None),
        (6, "n"),
        (8, None),
    ]
    assert told[0].reason == "has 2 fields, and not 3: 2,2"
    assert told[1].reason == "column 'id' may not be NULL, but is"


def test_values_of_every_kind_that_do_not_fit(tmp_path) -> None:
    """Out of range, cut off, NULL in the key."""
    vector, day = pa.list_(pa.float32(), 2), pa.date32()
    shape = make_shape(small=pa.int8(), day=day, size=pa.decimal128(4, 1), v=vector)
    rows = {
        "id": pa.array([1, 2, None, 4, 5], pa.int32()),
        "small": pa.array([1, 300, 3, 4, 5], pa.uint64()),
        "day": pa.array([0, 1, 2, None, 3], pa.date32()),
        "size": pa.array([1, 2, 3, 12345, 5]),
        "v": [[1.0, 2.0], [1.0, 2.0], [1.0], None, [1.0, 0.1]],
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows), path, row_group_size=2)
    good, told = sift(path, shape)
    assert [row["id"] for row in good] == [1]
    found = [(row.row, row.column) for row in told]
    assert found == [(2, "small"), (3, "id"), (4, "size"), (5, "v")]
    assert "column 'v' is list<element: double>, the table's" in told[1].reason
    assert "0.1 is 0.10000000149011612, which --convert=round takes" in told[3].reason


def test_lines_of_json_that_are_no_rows(tmp_path) -> None:
    rows: list[dict[str, Any]] = [{"id": n, "n": n, "note": str(n)} for n in range(8)]
    del rows[2]["note"]
    rows[4]["n"] = 0.5
    rows[5]["n"] = "five"
    rows[6]["id"] = None
    lines = [json.dumps(row) for row in rows]
    lines = [*lines[:1], "", '{"id": 1, "n"', *lines[2:3], "[3]", *lines[4:]]
    found, told = sift(write_lines(tmp_path / "rows.jsonl", *lines))
    assert [row["id"] for row in found] == [0, 7]
    assert [(row.row, row.column, row.value) for row in told] == [
        (2, None, None),
        (3, None, None),
        (4, None, None),
        (5, "n", 0.5),
        (6, "n", "five"),
        (7, "id", None),
    ]
    assert told[1].data == rows[2] and told[4].data == rows[5]


def test_json_that_is_nested_too_deeply_is_a_bad_value(tmp_path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    bad, good = f'{{"id": 1, "n": 1, "note": {deep}}}', '{"id": 1, "n": 2, "note": ""}'
    rows, told = sift(write_lines(tmp_path / "rows.jsonl", bad, good))
    assert [row["n"] for row in rows] == [2] and len(told) == 1


def test_a_text_that_is_none_is_not_written(tmp_path) -> None:
    """A generation that holds one can't be read. The others go in, whatever their layout."""
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary()).buffers()
    texts = pa.Array.from_buffers(pa.string(), 3, raw)
    views = pa.array(["x", "y", "z"], pa.string_view())
    rows = pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "note": texts, "more": views})
    with pa.ipc.new_file(tmp_path / "rows.arrow", rows.schema) as out:
        out.write_table(rows)
    shape = make_shape(n=pa.int64(), note=pa.string(), more=pa.large_string())
    with pytest.raises(Usage, match="Invalid UTF8"):
        sift(tmp_path / "rows.arrow", shape, rows_max=None)
    found, [told] = sift(tmp_path / "rows.arrow", shape)
    assert [(row["note"], row["more"]) for row in found] == [("a", "x"), ("c", "z")]
    assert told.data == {"id": 2, "n": 2, "note": "\ufffd", "more": "y"}


@pytest.mark.parametrize("rows_max", [None, 0])
def test_the_value_at_fault_is_named_in_a_column_without_null(tmp_path, rows_max) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,n,note\n" + "".join(f"{'x' if n == 5 else n},{n},\n" for n in range(9)))
    with pytest.raises(Usage, match=f"{path}: row 6: column 'id' is no int64: 'x'"):
        sift(path, rows_max=rows_max)


def test_a_row_of_csv_that_was_set_aside_is_mended_as_json(tmp_path) -> None:
    """Its other values are what they would have been."""
    shape = make_shape(
        n=pa.int64(),
        yes=pa.bool_(),
        day=pa.date32(),
        at=pa.timestamp("us", "UTC"),
        price=pa.decimal128(10, 2),
        data=pa.binary(),
        list=pa.list_(pa.int32()),
        note=pa.string(),
    )
    row = '6,true,2026-01-02,2026-01-02T03:04:05Z,1.25,0x616263,"[1,2]",'
    head = ",".join(shape.schema.names)
    [good], [told] = sift(write_lines(tmp_path / "a.csv", head, f"x,{row}", f"7,{row}"), shape)
    assert told.data is not None and told.data["id"] == "x"
    mended = write_lines(tmp_path / "mended.jsonl", json.dumps(told.data | {"id": 7}))
    assert sift(mended, shape) == ([good], []) and good["data"] == b"abc"


@pytest.mark.parametrize("bad", [{}, {0}, {9, 10}, {10}, {19, 20, 21}, {20, 21}, {21}])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_chunks_are_the_same_wherever_reading_begins(tmp_path, kind, bad) -> None:
    """Lines that are no rows are told of once, those at the ends of chunks among them."""
    good = {"csv": "{0},{0},x", "jsonl": '{{"id": {0}, "n": {0}, "note": "x"}}'}[kind]
    lines = ["1,2" if n in bad else good.format(n) for n in range(22)]
    path = write_lines(tmp_path / f"rows.{kind}", *["id,n,note"][: kind == "csv"], *lines)
    files = SourceFiles({}, make_columns(SHAPE, (), ()))
    [file] = files.find([str(path)])

    def read(first_row: int) -> list[tuple[int, list[int], list[int]]]:
        found = []
        for chunk in files.read_chunks(file, 10, first_row):
            marks = find_marks(chunk)
            gone = [finding.row for finding in marks.left_out]
            found.append((len(chunk), gone, [*marks.number_rows(len(chunk))]))
        return found

    whole = read(0)
    told = [row for _, gone, _ in whole for row in gone]
    there = [row for *_, rows in whole for row in rows]
    assert told == [n + 1 for n in sorted(bad)]
    assert sum(rows for rows, *_ in whole) == 22 - len(bad)
    assert sorted(told + there) == list(range(1, 23))
    assert all(gone[-1] < rows[-1] for _, gone, rows in whole[:-1] if gone)
    for chunks in range(1, len(whole)):
        assert read(10 * chunks) == whole[chunks:]


def test_a_check_counts_so_many_values_and_no_more(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(memwal.ingest.check, "COUNTED_MAX", 120)
    path = write_lines(tmp_path / "rows.csv", "id,n,note", *["1,x,"] * 200)
    files = SourceFiles({}, make_columns(SHAPE, (), ()))
    [file] = files.find([str(path)])
    check = Check(files=files, shape=SHAPE)
    check.add(file)
    assert check.is_full and (len(check.findings), check.left_out) == (100, 20)


# ---- the file of bad rows


def test_a_file_for_bad_rows_that_can_not_be_one(tmp_path, monkeypatch) -> None:
    other = write_lines(tmp_path / "a.csv", "id", "1")
    for place, told in (
        (str(other), "holds something else"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "no" / "x"), "there is no folder"),
        ("s3://b/x", "local files only"),
    ):
        with pytest.raises(Usage, match=told):
            RejectsFile(place, ["somewhere"])
    monkeypatch.setattr("memwal.ingest.values.writable_rows.os.access", lambda folder, mode: False)
    with pytest.raises(Usage, match="can't be written to"):
        RejectsFile(str(tmp_path / "x"), ["somewhere"])


@pytest.mark.parametrize("asked", ["in", "in/*.csv", "in/**", "in/bad.csv"])
def test_a_file_for_bad_rows_is_no_source_of_the_next_run(tmp_path, asked) -> None:
    source, place = str(tmp_path / asked), tmp_path / "in" / "bad.csv"
    place.parent.mkdir()
    with pytest.raises(Usage, match="and would be a source of the next") as caught:
        RejectsFile(str(place), [source])
    assert f"lies in {source}," in caught.value.text
    if asked != "in/bad.csv":
        RejectsFile(str(place.with_name("_bad.jsonl")), [source])


def test_two_runs_with_one_file_for_bad_rows(tmp_path) -> None:
    """One waits until the other has written it: neither's rows are lost."""
    objects, place = MemoryObjects(), tmp_path / "bad.jsonl"
    plan = PlanRecord(chunk_rows=1, rows_per_entry_max=1, spec_id=0)

    def update(number: int) -> None:
        found = Round(objects, "some", number, "run")
        path = found.add_rejects("all", 1, [RejectRecord(source="a", row=number, reason="bad")])
        file = RejectsFile(str(place), ["somewhere"])
        file.update(found, plan.model_copy(update={"rejects": (path,)}))

    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    waits = Thread(target=update, args=(1,))
    waits.start()
    waits.join(0.3)
    assert waits.is_alive() and not place.exists()
    other: Mapping[str, object] = {"table": "t", "ingest": "x/000001", "source": "b", "row": 2}
    place.write_text(f"{json.dumps(other)}\n")
    os.close(folder)
    waits.join()
    assert [json.loads(line)["row"] for line in place.read_text().splitlines()] == [2, 1]
