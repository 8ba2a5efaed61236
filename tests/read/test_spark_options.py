from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.config import STORAGE_OPTIONS_VARIABLE
from memwal.errors import Refused, Unsupported, Usage
from memwal.read.spark import register
from memwal.read.spark_options import (
    check_schema,
    convert_batch,
    convert_schema,
    parse_names,
    parse_settings,
    write_names,
)

# ---- options


def test_options_become_a_request() -> None:
    found = parse_settings(
        {
            "path": "/t",
            "columns": "b, a",
            "filter": "a > 1",
            "version": "7",
            "allow_holes": "TRUE",
            "keys_bytes_max": "10",
        }
    )
    assert parse_settings({"path": "/t", "consistency": "snapshot"}).asked.consistency == "snapshot"
    assert found.asked.consistency == "latest"
    assert found.asked.columns == ("b", "a")
    assert (found.asked.filter, found.asked.version) == ("a > 1", 7)
    assert (found.asked.allow_holes, found.asked.allow_reinitialised) == (True, False)
    assert (found.table.uri, found.keys_bytes_max, found.asked.with_wal) == ("/t", 10, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"paths": '["/a", "/b"]'}, "say which table"),
        (
            {"path": "/t", "colums": "a"},
            "'colums' .is columns meant.*; there are config, ",
        ),
        ({"path": "/t", "with-wal": "true"}, "is with_wal meant"),
        ({"path": "/t", "with_wal": "1"}, "with_wal '1': expected true or false"),
        ({"path": "/t", "k": "3"}, "option k, option metric and .* go with option nearest"),
        ({"path": "/t", "nearest": "v=[1]", "k": "0"}, "option k 0: expected 1 or more"),
        ({"path": "/t", "limit": "3"}, r"take DataFrame\.limit"),
        ({"path": "/t", "version": "last"}, "version 'last'"),
        ({"path": "/t", "version": "0"}, "version 0: expected 1"),
        ({"path": "/t", "partition_bytes": "-1"}, "partition_bytes '-1'"),
        ({"path": "/t", "allow_holes": "yes"}, "allow_holes 'yes'"),
        (
            {"path": "/t", "consistency": "strong"},
            "consistency 'strong': expected latest, snapshot",
        ),
        ({"path": "/t", "columns": "a,,b"}, "columns 'a,,b'"),
        ({"path": "/t", "columns": "a,`b"}, "columns 'a,`b'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(Usage, match=text):
        parse_settings(options)


def test_storage_options_beat_the_environment_and_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STORAGE_OPTIONS_VARIABLE, json.dumps({"aws_region": "a", "token": "hush"}))
    found = parse_settings({"path": "/t", "storage.aws_region": "b", "storage.sas_key": "psst"})
    assert found.table.storage_options == {"aws_region": "b", "token": "hush", "sas_key": "psst"}
    assert not {"hush", "psst"} & set(repr(found).replace("'", " ").split())
    with pytest.raises(Usage) as error:
        parse_settings({"path": "/t", "storage.sas_key": "psst", "bogus": "1"})
    assert "psst" not in str(error.value)


@given(st.lists(st.text(min_size=1), min_size=1))
def test_any_names_survive_the_option(names: list[str]) -> None:
    assert parse_names(write_names(names)) == tuple(names)


def test_names_need_no_backticks() -> None:
    assert parse_names("a, b c ,`d,e`, f.g") == ("a", "b c", "d,e", "f.g")
    assert parse_names("") == ()


# ---- types


def test_types_in_sparks_json() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.uint64(), nullable=False),
            pa.field("vector", pa.list_(pa.float16(), 4)),
            pa.field("s", pa.struct([("at", pa.timestamp("ns", "UTC")), ("d", pa.date64())])),
            pa.field("m", pa.map_(pa.large_string(), pa.list_(pa.decimal256(38, 3)))),
        ]
    )
    found = {field["name"]: field for field in convert_schema(schema)["fields"]}
    assert all(field["nullable"] for field in found.values())
    assert found["id"]["type"] == "decimal(20,0)"
    assert found["vector"]["type"] == {
        "type": "array",
        "elementType": "float",
        "containsNull": True,
    }
    assert [f["type"] for f in found["s"]["type"]["fields"]] == ["timestamp", "date"]
    assert found["m"]["type"]["keyType"] == "string"
    assert found["m"]["type"]["valueType"]["elementType"] == "decimal(38,3)"


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(39, 0),
        pa.decimal128(5, -2),
        pa.decimal256(5, 40),
        pa.time64("ns"),
        pa.month_day_nano_interval(),
        pa.uuid(),
        pa.json_(),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_spark_has_not_got_names_the_column(kind: pa.DataType, nested: bool) -> None:
    field = pa.field("odd", pa.list_(pa.struct([("in", kind)])) if nested else kind)
    named = r"odd\[\]\.in" if nested else "odd"
    with pytest.raises(Unsupported, match=rf"column '{named}': .*option `columns`"):
        convert_schema(pa.schema([("id", pa.int64()), field]))


def test_a_value_that_would_be_cut_is_refused() -> None:
    batch = pa.record_batch({"at": pa.array([1001], pa.timestamp("ns"))})
    with pytest.raises(Refused, match=r"column 'at' .*1001"):
        list(convert_batch(batch, pa.schema([("at", pa.timestamp("us"))])))


def test_large_batches_are_cut() -> None:
    values = [bytes([n]) * 5_000_000 for n in range(9)]
    batch = pa.record_batch({"b": pa.array(values, pa.large_binary())})
    schema = pa.schema([("b", pa.binary())])
    found = list(convert_batch(batch, schema))
    assert max(piece.nbytes for piece in found) <= 16 * 1024 * 1024
    assert pa.Table.from_batches(found, schema=schema)["b"].to_pylist() == values
    whole = [pa.record_batch({"b": pa.array([b"x" * 20_000_000])})]
    assert list(convert_batch(whole[0], schema)) == whole


def test_a_schema_that_was_given_has_to_fit() -> None:
    table = convert_schema(pa.schema([("a", pa.int32()), ("l", pa.list_(pa.int64()))]))
    loose = {"type": "array", "elementType": "long", "containsNull": False}
    field = {"name": "l", "type": loose, "nullable": False, "metadata": {"comment": "x"}}
    check_schema({"type": "struct", "fields": [field]}, table)
    with pytest.raises(Usage, match="'l' another type"):
        check_schema({"fields": [{**field, "type": {**loose, "elementType": "integer"}}]}, table)
    with pytest.raises(Usage, match="column 'z'; there are a, l"):
        check_schema({"fields": [{**field, "name": "z"}]}, table)


def test_a_python_that_nobody_chose_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(pythonExec="some-python"),
        dataSource=SimpleNamespace(register=lambda source: None),
        conf=SimpleNamespace(get=lambda key, default: default, set=lambda key, value: None),
    )
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    register(session)
    assert caplog.messages == []
    monkeypatch.delenv("PYSPARK_PYTHON")
    register(session)
    assert "some-python, which needs memwal too" in caplog.text
