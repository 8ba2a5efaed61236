"""The writer of programs: what it takes, where it may be used, and what a dropped one leaves."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import Usage
from memwal.ingest import open_writer
from memwal.ingest.values.python_rows import read_rows
from memwal.rows.pairs import Lenience
from tests.support.forked import in_child
from tests.support.ingest_tables import MemWalTable, make

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("d", pa.date32()),
        ("m", pa.map_(pa.string(), pa.int8())),
    ]
)


def given(rows: Any, deleted: list[bool] | None = None, *, missing_as_null: bool = False) -> Any:
    return read_rows(rows, SCHEMA, deleted, Lenience(missing=missing_as_null))


# ---- rows


def test_dicts_get_the_table_s_types() -> None:
    first = {"id": 1, "n": 2, "tags": ["a"], "d": date(2026, 1, 1), "m": {"a": 1}}
    found = given([first, {"d": None, "m": None, "tags": None, "n": None, "id": 2}])
    assert found.select(SCHEMA.names).cast(SCHEMA).to_pylist() == [
        {**first, "m": [("a", 1)]},
        {"id": 2, "n": None, "tags": None, "d": None, "m": None},
    ]
    assert given([]).column_names == SCHEMA.names


@pytest.mark.parametrize("rows", [pa.table({"id": [1]}), pa.record_batch({"id": [1]})])
def test_arrow_data_is_taken_as_it_is(rows: Any) -> None:
    assert given(rows) == pa.table({"id": [1]})
    assert given(pa.RecordBatchReader.from_batches(rows.schema, pa.table(rows).to_batches())) == (
        pa.table({"id": [1]})
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"id": 1, "n": 1}, {"id": 2, "n": "x"}], r"column 'n' is int32 .*row 1: 'x'"),
        ([{"id": 1, "n": 1}, {"id": 2, "n": 2**40}], r"column 'n' is int32 .*row 1: 1099511627776"),
        ([{"id": 1, "n": 2}, {"id": 1, "n": 1.5}], r"column 'n' is int32 .*row 1: 1.5"),
        ([{"id": 1, "n": 2**60}, {"id": 1, "n": 1.5}], r"column 'n' is int32 .*row 0"),
        ([{"id": 1, "tags": "a"}], r"column 'tags' is list<.*row 0: 'a'"),
        ([{"id": 1, "n": 1}, {"id": 2}], r"row 1 has no 'n', which other rows have"),
        ([{"id": 1}, 7], r"row 1 is int: expected a dict"),
        ([{1: 1}], r"row 0 is dict: expected a dict of column names"),
        ({"id": [1]}, r"rows are dict: expected Arrow data, or a list of dicts"),
        ("id", r"rows are str"),
        (7, r"rows are int"),
    ],
)
def test_what_does_not_fit_is_named(rows: Any, text: str) -> None:
    with pytest.raises(Usage, match=text):
        given(rows)


def test_a_column_that_some_rows_lack_is_no_silent_null() -> None:
    rows = [{"id": 1, "n": 1}, {"id": 2}]
    assert given(rows, missing_as_null=True)["n"].to_pylist() == [1, None]
    assert given(rows, [False, True])["n"].to_pylist() == [1, None]
    with pytest.raises(Usage, match="--missing-as-null"):
        given(rows, [True, False])


# ---- on a table


@pytest.fixture
def table(tmp_path: Path) -> MemWalTable:
    return make(tmp_path / "t", unsharded=True)


def dicts(*keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "n": key, "note": str(key)} for key in keys]


def keys_of(table: MemWalTable) -> list[int]:
    return sorted(table.read())


@pytest.mark.integration
def test_dicts_are_written_and_deleted(table: MemWalTable) -> None:
    with open_writer(table.uri) as writer:
        writer.write(dicts(2, 3))
        writer.write([{"id": 3}], deleted=[True])
    assert keys_of(table) == [2]


# ---- forks


@pytest.mark.integration
def test_a_forked_child_is_told_at_once_and_the_parent_goes_on(table: MemWalTable) -> None:
    writer = open_writer(table.uri)
    writer.write_durable(dicts(2))
    acts: list[Callable[[], object]] = [
        lambda: writer.write(dicts(3)),
        writer.flush,
        writer.close,
        lambda: writer.durable_epoch,
        lambda: writer.tips,
    ]
    for act in acts:
        assert f"Usage: this writer was made in process {os.getpid()}" in in_child(act)
    # A block that ends with an error leaves the parent's writer alone, and so does a collection.
    assert in_child(lambda: writer.__exit__(ValueError)) == ""
    assert in_child(lambda: writer._dropped()) == ""
    writer.write(dicts(4))
    writer.close()
    assert keys_of(table) == [2, 4]


# ---- dropped


@pytest.mark.integration
def test_a_dropped_writer_is_closed_and_warned_about(table: MemWalTable) -> None:
    writer = open_writer(table.uri)
    writer.write(dicts(2, 3))
    with pytest.warns(ResourceWarning, match=f"{table.uri}: a writer was dropped without close"):
        del writer
        gc.collect()
    assert keys_of(table) == [2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ending in (None, ValueError):
            writer = open_writer(table.uri)
            writer.__exit__(ending)
            del writer
            gc.collect()


@pytest.mark.integration
def test_a_dropped_writer_that_fails_to_close_is_logged(
    table: MemWalTable, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(table.uri)
    writer.write_durable(dicts(2))
    with open_writer(table.uri) as other:  # fences the first
        other.write(dicts(3))
    writer.write(dicts(4))
    with pytest.warns(ResourceWarning), caplog.at_level(logging.ERROR, "memwal"):
        del writer
        gc.collect()
    assert f"{table.uri}: a writer was dropped without close, and rows may be lost" in caplog.text


AT_THE_END = """
import sys
from memwal.ingest import open_writer
writer = open_writer(sys.argv[1])
writer.write([{"id": 7, "n": 7, "note": "a"}])
"""


@pytest.mark.integration
def test_a_program_that_ends_without_close_loses_nothing(table: MemWalTable) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "default", "-c", AT_THE_END, table.uri],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "ResourceWarning" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert keys_of(table) == [7]
