"""Bad values in a source: what stops at them, goes on past them, and goes on when they are mended.

Rows are operands of a sum, so that one that is lost, or written twice, shows.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
import memwal.ingest.check
from memwal.cli.app import app
from memwal.ingest.sources.columns import make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.sources.splits import Places
from memwal.ingest.track import Track, TrackLimits
from memwal.ingest.values.numbered_chunks import find_marks
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import RejectsFile
from memwal.read import open_table
from memwal.store.records.ingests import PlanRecord, RejectRecord, Round
from tests.support.ingest_tables import KEY, SCHEMA, MemWalTable, make, wal_rows
from tests.support.sampling import grid
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration

SPEC = {"bucket_column": "id", "num_buckets": 2}
ROWS = 50
BAD = {0: 0, 1: 27, 2: ROWS - 1}
"""The row with the bad value in each of three files: the first, one between, and the last."""


def write(
    folder: Path, kind: str, bad: dict[int, int | None], value: str = "x", rows: int = ROWS
) -> list[str]:
    """Three files; in each, the row that is named has a value that is no number."""
    folder.mkdir(exist_ok=True)
    paths = []
    for part in range(3):
        texts = [str(part * ROWS + n) for n in range(rows)]
        if bad.get(part) is not None:
            texts[bad[part]] = value
        ids = [n % 7 for n in range(rows)]
        notes = [f"{part}-{n}" for n in range(rows)]
        path = folder / f"part-{part}.{kind}"
        paths.append(str(path))
        if kind == "csv":
            with path.open("w", newline="") as out:
                lines = csv.writer(out)
                lines.writerow(["id", "n", "note"])
                lines.writerows(zip(ids, texts, notes, strict=True))
        elif kind == "jsonl":
            values = [int(text) if text.isdigit() else text for text in texts]
            lines = zip(ids, values, notes, strict=True)
            rows_in = (json.dumps({"id": i, "n": n, "note": note}) for i, n, note in lines)
            path.write_text("\n".join(rows_in))
        else:
            table = pa.table({"id": ids, "n": texts, "note": notes})
            pq.write_table(table, path, row_group_size=16)
    return paths


def run(
    table: MemWalTable, *arguments: str, words: Sequence[str] = ("--rows-per-chunk", "10")
) -> dict:
    done = CliRunner().invoke(
        app,
        ["ingest", table.uri, *arguments, "--json", *words],
        catch_exceptions=False,
    )
    document = json.loads(done.stdout)
    return {"exit_code": done.exit_code, **(document["tables"] or [document])[0]}


def numbers(table: MemWalTable) -> list[int]:
    """The value of every row that is written, in order of value."""
    return sorted(row[2] for rows in wal_rows(table).values() for row in rows)


def all_but(bad: dict[int, int | None]) -> list[int]:
    gone = {part * ROWS + n for part, n in bad.items() if n is not None}
    return [n for n in range(3 * ROWS) if n not in gone]


KINDS = pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])


@KINDS
def test_a_check_names_every_value_and_writes_nothing(tmp_path, kind) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", kind, BAD)
    report = run(table, *paths, "--check")
    assert (report["exit_code"], report["outcome"], report["rows"]) == (2, "failed", 150)
    found = [(f["source"], f["row"], f["column"], f["value"]) for f in report["findings"]]
    assert found == [(paths[part], n + 1, "n", "x") for part, n in BAD.items()]
    where = {
        "csv": [(2, None), (29, None), (51, None)],
        "jsonl": [(1, None), (28, None), (50, None)],
        "parquet": [(None, 0), (None, 1), (None, 3)],
    }
    assert [(f["line"], f["row_group"]) for f in report["findings"]] == where[kind]
    assert not (tmp_path / "t" / "_maintenance").exists()
    assert run(table, *write(tmp_path / "in", kind, {}), "--check")["exit_code"] == 0


@KINDS
def test_nothing_is_written_when_the_first_rows_of_any_file_are_bad(tmp_path, kind) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", kind, {2: 0})
    report = run(table, *paths)
    assert report["exit_code"] == 2
    place = {"csv": "line 2", "jsonl": "line 1", "parquet": "row 1 (row group 0)"}[kind]
    assert f"{paths[2]}: {place}: column 'n' is " in report["error"]
    assert numbers(table) == []


@pytest.mark.nightly
@KINDS
def test_bad_rows_are_set_aside_each_once(tmp_path, kind, monkeypatch, stalled) -> None:
    paths = write(tmp_path / "in", kind, BAD)
    file = tmp_path / "bad.jsonl"
    asked = [*paths, "--bad-rows", str(file)]
    for progress_seconds in (0.0, 1e9):
        table = make(tmp_path / str(progress_seconds), **SPEC)
        for nth in (1, 3, 5, 8, 12, 17, 23, 30, 38, 47, 300):
            limits = TrackLimits(progress_seconds=progress_seconds)
            dying = partial(Track, steps=Stopper(nth), limits=limits)
            monkeypatch.setattr(memwal.ingest.apply, "Track", dying)
            report = run(table, *asked)
            if report["exit_code"] == 0:
                break
        assert (report["rows"], report["rows_rejected"]) == (150, 3)
        assert numbers(table) == all_but(BAD)
        found = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(f["source"], f["row"], f["column"], f["value"]) for f in found[-3:]] == [
            (paths[part], n + 1, "n", "x") for part, n in BAD.items()
        ]
        assert found[-2]["data"] == {"id": 6, "n": "x", "note": "1-27"}
        assert run(table, *asked)["outcome"] == "nothing_to_do"
    assert len(found) == 6


def test_a_run_that_stops_counts_what_it_wrote(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    report = run(table, *write(tmp_path / "in", "parquet", {1: 27}))
    assert (report["exit_code"], report["rows_written"]) == (2, 70)
    assert [(s["is_new"], s["generations"]) for s in report["shards"]] == [(True, 1)] * 2
    assert sum(shard["rows"] for shard in report["shards"]) == 70
    assert (report["entries"], report["generations"]) == (14, 2)
    assert report["bytes_written"] > 0


@pytest.mark.parametrize(("kind", "part"), grid(["csv", "jsonl", "parquet"], BAD))
def test_mended_and_gone_on(tmp_path, kind, part, monkeypatch, stalled) -> None:
    """Whatever ends the runs before and after: each row is written once."""
    table = make(tmp_path / "t", **SPEC)
    bad = {part: BAD[part]}
    paths = write(tmp_path / "in", kind, bad)
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    for nth in (4, 9, 200):
        limits = TrackLimits(progress_seconds=1e9)
        monkeypatch.setattr(
            memwal.ingest.apply, "Track", partial(Track, steps=Stopper(nth), limits=limits)
        )
        report = run(table, *paths)
    assert report["exit_code"] == 2, report["error"]
    before = part * ROWS + BAD[part] // 10 * 10
    assert numbers(table) == list(range(before))
    assert [source["rows_in"] for source in report["sources"]] == [
        min(ROWS, max(0, before - n * ROWS)) for n in range(3)
    ]
    assert (f"Already in: {before:,} rows, " if before else "No row is in") in report["error"]

    write(tmp_path / "in", kind, bad, str(part * ROWS + BAD[part]))
    if before:
        refused = run(table, *paths)
        assert refused["exit_code"] == 5 and "--resume-corrected" in refused["error"]
    monkeypatch.setattr(
        memwal.ingest.apply, "Track", partial(Track, steps=Stopper(7), limits=limits)
    )
    assert run(table, *paths, "--resume-corrected")["exit_code"] != 0
    monkeypatch.setattr(memwal.ingest.apply, "Track", Track)
    done = run(table, *paths)  # what was mended is known by now
    assert (done["exit_code"], done["rows"]) == (0, 150), done["error"]
    assert numbers(table) == list(range(150))
    assert run(table, *paths)["outcome"] == "nothing_to_do"


def stopped_at(table: MemWalTable, paths: list[str], nth: int, monkeypatch, seconds: float) -> None:
    """A run that dies at its nth step."""
    limits = TrackLimits(progress_seconds=seconds)
    with monkeypatch.context() as patch:
        dying = partial(Track, steps=Stopper(nth), limits=limits)
        patch.setattr(memwal.ingest.apply, "Track", dying)
        assert run(table, *paths)["exit_code"] == 1


@pytest.mark.nightly
@KINDS
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "in the WAL only"])
def test_what_is_written_may_not_be_mended(tmp_path, kind, monkeypatch, stalled, recorded) -> None:
    """It is said which rows would be counted twice, and nothing more is written."""
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", kind, {1: 27} if recorded else {})
    if recorded:
        monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
        assert run(table, *paths)["exit_code"] == 2
    else:
        stopped_at(table, paths, 14, monkeypatch, 1e9)
    written = numbers(table)
    assert 20 <= len(written) < 100
    write(tmp_path / "in", kind, {0: 3}, "1000")
    for _ in range(2):
        refused = run(table, *paths, "--resume-corrected")
        assert refused["exit_code"] == 5, refused["error"]
        assert "counted twice" in refused["error"]
        assert numbers(table) == written
    if recorded:
        assert f"{paths[0]}: its first" in refused["error"]
    write(tmp_path / "in", kind, {})
    done = run(table, *paths, "--resume-corrected")
    assert done["exit_code"] == 0, done["error"]
    assert numbers(table) == list(range(150))


@KINDS
def test_a_file_that_got_longer_behind_its_last_chunk(tmp_path, kind, monkeypatch, stalled) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", kind, {2: 30})
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    words = ["--rows-per-chunk", "25"]
    assert run(table, *paths, words=words)["exit_code"] == 2
    assert numbers(table) == list(range(125))
    write(tmp_path / "in", kind, {}, rows=ROWS + 5)
    refused = run(table, *paths, "--resume-corrected", words=words)
    assert refused["exit_code"] == 5 and f"{paths[0]}: its first 50 rows" in refused["error"]


def test_more_bad_rows_than_may_be(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", "csv", BAD)
    file = tmp_path / "bad.jsonl"
    report = run(table, *paths, "--bad-rows", str(file), "--bad-rows-max", "1")
    assert report["exit_code"] == 2
    assert "line 29: column 'n' is no int64: invalid value 'x'; --bad-rows-max 1" in report["error"]
    assert (report["rows"], report["rows_rejected"]) == (70, 1)
    assert len(file.read_text().splitlines()) == 1
    # Nobody is left without them who forgets the file.
    (tmp_path / "bad.jsonl").unlink()
    done = run(table, *paths, "--bad-rows", str(file))
    assert (done["exit_code"], done["rows_rejected"]) == (0, 3)
    assert len(file.read_text().splitlines()) == 3
    assert numbers(table) == all_but(BAD)


def test_a_file_for_bad_rows_that_can_not_be_one(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", "csv", BAD)
    for place, told in (
        (paths[0], "holds something else"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "no" / "x"), "there is no folder"),
        ("s3://b/x", "local files only"),
    ):
        report = run(table, *paths, "--bad-rows", place)
        assert report["exit_code"] == 2 and told in report["error"]
    monkeypatch.setattr("memwal.ingest.values.writable_rows.os.access", lambda folder, mode: False)
    report = run(table, *paths, "--bad-rows", str(tmp_path / "x"))
    assert (report["exit_code"], "can't be written to" in report["error"]) == (2, True)
    assert numbers(table) == []


def test_rows_of_csv_with_other_fields_than_the_header(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / "rows.csv"
    path.write_text('id,n,note\n1,1,a\n\n2,2\n,3,c\n4,4,"d\nd"\n5,5,e,f\n6,"",g\n7,7,h\n8\n')
    file = tmp_path / "bad.jsonl"
    done = run(table, str(path), "--bad-rows", str(file))
    assert (done["rows"], done["rows_rejected"]) == (8, 5)
    assert numbers(table) == [1, 4, 7]
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["row"], row["line"], row["column"]) for row in told] == [
        (2, 4, None),
        (3, 5, "id"),
        (5, None, None),  # behind a line break in quotes
        (6, None, "n"),
        (8, None, None),
    ]
    assert told[0]["reason"] == "has 2 fields, and not 3: 2,2"
    assert told[1]["reason"] == "column 'id' may not be NULL, but is"


def test_values_of_every_kind_that_do_not_fit(tmp_path) -> None:
    """Out of range, cut off, NULL in the key: by a check, row by row."""
    schema = pa.schema(
        [
            pa.field("id", pa.int8(), nullable=False, metadata=KEY),
            pa.field("day", pa.date32()),
            pa.field("size", pa.decimal128(4, 1)),
            pa.field("v", pa.list_(pa.float32(), 2)),
        ]
    )
    uri = str(tmp_path / "t")
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal()
    rows = pa.table(
        {
            "id": pa.array([1, 300, None, 4, 5], pa.int64()),
            "day": ["2026-01-01", "2026-02-30", "2026-01-03", None, "2026-01-05"],
            "size": pa.array([1.5, 2.0, 3.0, 12345.5, 5.0]),
            "v": [[1.0, 2.0], [1.0, 2.0], [1.0], None, [1.0, 2.0, 3.0]],
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, row_group_size=2)
    report = run(MemWalTable(uri=uri, options={}), str(path), "--check")
    found = {(f["row"], f["row_group"], f["column"]) for f in report["findings"]}
    assert found == {
        (2, 0, "id"),
        (2, 0, "day"),
        (3, 1, "id"),
        (3, 1, "v"),
        (4, 1, "size"),
        (5, 2, "v"),
    }


def test_lines_of_json_that_are_no_rows(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n, "n": n, "note": str(n)} for n in range(8)]
    del rows[2]["note"]
    rows[4]["n"] = 0.5
    rows[5]["n"] = "five"
    rows[6]["id"] = None
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join([*lines[:1], "", '{"id": 1, "n"', *lines[2:3], "[3]", *lines[4:]]))
    file = tmp_path / "bad.jsonl"
    done = run(table, str(path), "--bad-rows", str(file), words=("--rows-per-chunk", "2"))
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, 8, 6), done["error"]
    assert numbers(table) == [0, 7]
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["row"], row["line"], row["column"], row["value"]) for row in told] == [
        (2, 3, None, None),
        (3, 4, None, None),
        (4, 5, None, None),
        (5, 6, "n", 0.5),
        (6, 7, "n", "five"),
        (7, 8, "id", None),
    ]
    assert told[1]["data"] == rows[2] and told[4]["data"] == rows[5]
    check = run(table, str(path), "--check")
    assert [f["line"] for f in check["findings"]] == [3, 4, 5, 6, 7, 8]


def test_a_text_that_is_none_is_not_written(tmp_path) -> None:
    """A generation that holds one can't be read."""
    table = make(tmp_path / "t", **SPEC)
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary()).buffers()
    texts = pa.Array.from_buffers(pa.string(), 3, raw)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "note": texts}), path)
    assert "Invalid UTF8" in run(table, str(path))["error"]
    file = tmp_path / "bad.jsonl"
    assert run(table, str(path), "--bad-rows", str(file))["rows_rejected"] == 1
    assert json.loads(file.read_text())["data"] == {"id": 2, "n": 2, "note": "\ufffd"}
    assert table.read(with_wal=False) == {1: (1, "a"), 3: (3, "c")}


@pytest.mark.parametrize("bad", [{}, {0}, {9, 10}, {10}, {19, 20, 21}, {10, 20, 21}, {21}])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_chunks_are_the_same_wherever_reading_begins(tmp_path, kind, bad) -> None:
    """Lines that are no rows are told of once, those at the ends of chunks among them."""
    path = tmp_path / f"rows.{kind}"
    good = {"csv": "{0},{0},x", "jsonl": '{{"id": {0}, "n": {0}, "note": "x"}}'}[kind]
    lines = ["1,2" if n in bad else good.format(n) for n in range(22)]
    path.write_text("\n".join([*["id,n,note"][: kind == "csv"], *lines]))
    shape = Shape(schema=SCHEMA, key=("id",))
    files = SourceFiles({}, make_columns(shape, (), ()))
    [file] = files.find([str(path)])

    def read(first_row: int) -> list[tuple[int, list[int], list[int]]]:
        found = []
        for chunk in files.read_chunks(file, 10, first_row):
            marks = find_marks(chunk)
            gone = [finding.row for finding in marks.left_out]
            found.append((len(chunk), gone, marks.number_rows(len(chunk)) if bad else []))
        return found

    whole = read(0)
    told = [row for _, gone, _ in whole for row in gone]
    there = [row for *_, rows in whole for row in rows]
    assert told == [n + 1 for n in sorted(bad)]
    assert sum(rows for rows, *_ in whole) == 22 - len(bad)
    assert not bad or sorted(told + there) == list(range(1, 23))
    for chunks in range(1, len(whole)):
        assert read(10 * chunks) == whole[chunks:]


@pytest.mark.nightly
@pytest.mark.parametrize("line", ["no row", '{"id": 1, "n": "x", "note": "y"}'])
@pytest.mark.parametrize("behind", [0, 5])
def test_a_line_behind_a_chunk_that_was_read_already(tmp_path, line, behind) -> None:
    """What is no row begins where a reader's batch, and a chunk, have ended."""
    table = make(tmp_path / "t", **SPEC)
    rows = [json.dumps({"id": n, "n": n, "note": ""}) for n in range(16 * 1024 + behind)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows[: 16 * 1024], line, *rows[16 * 1024 :]]))
    words = ("--rows-per-chunk", str(16 * 1024))
    stopped = run(table, str(path), words=words)
    assert (stopped["exit_code"], stopped["rows"]) == (2, 16 * 1024)
    assert "line 16385: " in stopped["error"]
    file = tmp_path / "bad.jsonl"
    done = run(table, str(path), "--bad-rows", str(file), words=words)
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, len(rows) + 1, 1)
    assert [json.loads(told)["line"] for told in file.read_text().splitlines()] == [16385]
    assert numbers(table) == list(range(len(rows)))


@pytest.mark.parametrize("good", [0, 2, 4])
def test_lines_at_the_end_of_a_file_are_set_aside_once(tmp_path, good) -> None:
    """Also where the run stops before it is through with the next file."""
    table = make(tmp_path / "t", **SPEC)
    rows = [json.dumps({"id": n, "n": n, "note": ""}) for n in range(good + 1)]
    ends, stops = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    ends.write_text("\n".join([*rows[:good], "no", "row"]))
    stops.write_text("\n".join(["nor", "this", rows[good]]))
    file = tmp_path / "bad.jsonl"
    asked = (table, str(ends), str(stops), "--bad-rows", str(file))
    words = ("--rows-per-chunk", "2")
    stopped = run(*asked, "--bad-rows-max", "3", words=words)
    assert (stopped["exit_code"], stopped["rows"], stopped["rows_rejected"]) == (2, good + 2, 2)
    assert f"all of {ends}. Mend" in stopped["error"]
    # Fewer than were set aside already.
    again = run(*asked, "--bad-rows-max", "1", words=words)
    assert again["exit_code"] == 2 and f"{stops}: line 1: is no JSON" in again["error"]
    done = run(*asked, words=words)
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, good + 5, 4)
    told = [json.loads(told) for told in file.read_text().splitlines()]
    assert [(Path(t["source"]).name, t["line"]) for t in told] == [
        ("a.jsonl", good + 1),
        ("a.jsonl", good + 2),
        ("b.jsonl", 1),
        ("b.jsonl", 2),
    ]
    assert numbers(table) == list(range(good + 1))


@pytest.mark.parametrize("most", [(), ("--bad-rows-max", "0")])
def test_the_value_at_fault_is_named_in_a_column_without_null(tmp_path, most) -> None:
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / "rows.csv"
    path.write_text("id,n,note\n" + "".join(f"{'x' if n == 5 else n},{n},\n" for n in range(9)))
    aside = ("--bad-rows", str(tmp_path / "bad.jsonl"), *most) if most else ()
    report = run(table, str(path), *aside)
    assert f"{path}: line 7: column 'id' is no int64: invalid value 'x'" in report["error"]


@pytest.mark.parametrize("asked", ["in", "in/*.csv", "in/**", "in/bad.csv"])
def test_a_file_for_bad_rows_is_no_source_of_the_next_run(tmp_path, asked) -> None:
    table = make(tmp_path / "t", **SPEC)
    write(tmp_path / "in", "csv", BAD)
    source, place = str(tmp_path / asked), tmp_path / "in" / "bad.csv"
    report = run(table, source, "--bad-rows", str(place))
    assert report["exit_code"] == 2 and f"lies in {source}, and would be" in report["error"]
    assert not place.exists() and numbers(table) == []
    hidden = place.with_name("_bad.jsonl")
    if asked != "in/bad.csv":
        assert run(table, source, "--bad-rows", str(hidden))["rows_rejected"] == 3
        again = run(table, source, "--bad-rows", str(hidden))
        assert again["outcome"] == "nothing_to_do"


def test_two_runs_with_one_file_for_bad_rows(tmp_path) -> None:
    """One waits until the other has written it: neither's rows are lost."""
    table = make(tmp_path / "t", **SPEC)
    objects, place = table.stores.objects, tmp_path / "bad.jsonl"
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
    other = {"table": "other", "ingest": "x/000001", "source": "b", "row": 2}
    place.write_text(f"{json.dumps(other)}\n")
    os.close(folder)
    waits.join()
    assert [json.loads(line)["row"] for line in place.read_text().splitlines()] == [2, 1]


def test_places_that_are_asked_for_again(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "1234567\n" * 500_000)
    [file] = SourceFiles({}).find([str(path)])
    places = Places(SourceFiles({}), file)
    assert [places.find(row).line for row in (5, 400_000, 7)] == [6, 400_001, 8]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_of_hardly_any_rows_is_given_up(tmp_path, kind) -> None:
    """However long it is: what is none is held in memory."""
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / f"rows.{kind}"
    path.write_text("id,n,note\n" + "1,2\n" * 20_000)
    told = f"{path}: can't be read as {kind}: more than 10,000 rows close together are none; row 1"
    aside = ("--bad-rows", str(tmp_path / "bad.jsonl"), "--bad-rows-max", "90000")
    for more in ((), aside, ("--check",)):
        assert told in run(table, str(path), *more)["error"]


def test_json_that_is_nested_too_deeply_is_a_bad_value(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / "rows.jsonl"
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text(f'{{"id": 1, "n": 1, "note": {deep}}}\n{{"id": 1, "n": 2, "note": ""}}')
    done = run(table, str(path), "--bad-rows", str(tmp_path / "bad.jsonl"))
    assert (done["exit_code"], done["rows_rejected"]) == (0, 1) and numbers(table) == [2]


def test_a_row_of_csv_that_was_set_aside_is_mended_as_json(tmp_path) -> None:
    """Its other values are what they would have been."""
    types = {
        "n": pa.int64(),
        "yes": pa.bool_(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(10, 2),
        "data": pa.binary(),
        "list": pa.list_(pa.int32()),
        "note": pa.string(),
    }
    key = pa.field("id", pa.int64(), nullable=False, metadata=KEY)
    schema = pa.schema([key, *types.items()])
    table = MemWalTable(uri=str(tmp_path / "t"), options={})
    lance.write_dataset(schema.empty_table(), table.uri).initialize_mem_wal()
    row = '6,true,2026-01-02,2026-01-02T03:04:05Z,1.25,0x616263,"[1,2]",'
    path, file, mended = (tmp_path / name for name in ("a.csv", "bad.jsonl", "mended.jsonl"))
    path.write_text(f"id,{','.join(types)}\nx,{row}\n7,{row}\n")
    assert run(table, str(path), "--bad-rows", str(file))["rows_rejected"] == 1
    data = json.loads(file.read_text())["data"]
    assert data["id"] == "x"
    mended.write_text(json.dumps(data | {"id": 8}))
    assert run(table, str(mended))["rows_written"] == 1
    found = open_table(table.uri).read(with_wal=True).read_all().sort_by("id").to_pylist()
    assert found[0] | {"id": 8} == found[1] and found[1]["data"] == b"abc"


def test_a_check_counts_so_many_values_and_no_more(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(memwal.ingest.check, "COUNTED_MAX", 120)
    table = make(tmp_path / "t", **SPEC)
    path, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    path.write_text("id,n,note\n" + "1,x,\n" * 200)
    other.write_text("id,n,note\n1,1,\n")
    report = run(table, str(path), str(other), "--check")
    assert report["exit_code"] == 2 and "120 things or more can't be" in report["error"]
    assert (len(report["findings"]), report["findings_left_out"]) == (100, 20)


def test_a_stopped_run_does_not_count_what_a_killed_one_wrote(
    tmp_path, monkeypatch, stalled
) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", "csv", {2: ROWS - 1})
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    with monkeypatch.context() as patch:
        dying = partial(Track, steps=Stopper(20), limits=TrackLimits(progress_seconds=1e9))
        patch.setattr(memwal.ingest.apply, "Track", dying)
        assert run(table, *paths)["exit_code"] == 1
    killed = len(numbers(table))
    stopped = run(table, *paths)
    assert stopped["exit_code"] == 2 and stopped["resumed"]
    assert 0 < killed == stopped["rows"] - stopped["rows_written"]
