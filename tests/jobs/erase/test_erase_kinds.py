"""Erasures of tables of other kinds: several key columns, numbers, buckets, policies, a store."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import Usage
from memwal.jobs.erase.job import EraseOptions, run_erase
from memwal.jobs.erase.request import EraseRequest
from memwal.jobs.erase.store.keys import read_keys
from memwal.read import open_table
from tests.support.ingest_tables import make, rows_of
from tests.support.policy_tables import Variant, make_policy_table
from tests.support.progress import Quiet
from tests.support.raw_bytes import find_marks

pytestmark = pytest.mark.integration

NOW: dict[str, Any] = {
    "execute": True,
    "retention_seconds": 0.0,
    "grace_seconds": 0.0,
    "allow_short_retention": True,
}
LARGE = 0x5A17_C3D9_E281_F7A6


def erase(uri: str, *, policy: Any = None, options: Any = None, **asked: Any) -> Any:
    table = ResolvedTable(
        name="t", uri=uri, settings=Settings(), storage_options=options or {}, policy=policy
    )
    run = EraseOptions(
        tables=[table],
        request=EraseRequest(**{**NOW, **asked}),
        confirm=lambda name, shards: True,
        engine="local",
    )
    (report,) = run_erase(run, Quiet()).tables
    return report


def held(report: Any) -> dict[str, str]:
    return {o.path: o.why for o in report.objects if o.state in ("held", "unknown")}


def test_keys_of_several_columns_in_buckets(tmp_path: Path) -> None:
    """A number of another tenant stays, in its own shard."""
    fields = [
        pa.field(name, kind, nullable=False, metadata=metadata)
        for name, kind, metadata in (
            ("tenant", pa.string(), {b"lance-schema:unenforced-primary-key:position": b"1"}),
            ("number", pa.int64(), {b"lance-schema:unenforced-primary-key:position": b"2"}),
        )
    ]
    schema = pa.schema([*fields, pa.field("note", pa.string())])
    uri = str(tmp_path / "t")

    def rows(*keys: tuple[str, int]) -> list[dict[str, Any]]:
        return [{"tenant": t, "number": n, "note": f"of {t}"} for t, n in keys]

    first = pa.Table.from_pylist(rows(("alpha", LARGE), ("beta", LARGE), ("alpha", 1)), schema)
    dataset = lance.write_dataset(first, uri)
    dataset.initialize_mem_wal(bucket_column="tenant", num_buckets=4)
    from memwal.ingest import open_writer

    with open_writer(uri) as writer:
        writer.write(rows(("gamma", LARGE), ("alpha", 2)))
    report = erase(uri, key=["tenant=alpha", f"number={LARGE}"])
    assert report.erasure.state == "done", held(report)
    left = open_table(uri).read(with_wal=True).read_all().to_pylist()
    assert {(r["tenant"], r["number"]) for r in left} == {
        ("alpha", 1), ("alpha", 2), ("beta", LARGE), ("gamma", LARGE)
    }  # fmt: skip


def test_many_numbers_of_a_file(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writers().open("11111111-1111-4111-8111-111111111111")
    writer.put(rows_of([LARGE, *range(2000)]))
    writer.close()
    file = tmp_path / "keys.csv"
    file.write_text("id,more\n" + "".join(f"{i},x\n" for i in [LARGE, *range(0, 2000, 2)]))
    report = erase(table.uri, keys=str(file))
    assert report.erasure.state == "done", held(report)
    assert report.keys == 1001
    assert set(table.read()) == set(range(1, 2000, 2))
    assert find_marks(table.uri, [struct.pack("<q", LARGE)]) == {}


def test_a_policy_table(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=range(10))
    table.flush((3, table.row(3, 7)), (4, table.row(4, 7)))
    key = table.kind.names[0]
    [value] = table.kind.key(3)
    report = erase(table.uri, policy=table.variant.policy, key=[f"{key}={value}"])
    assert report.error is None, report
    assert report.erasure.state == "done", held(report)
    left = open_table(table.uri).read().read_all().to_pylist()
    assert len(left) == 9
    assert value not in {row[key] for row in left}


def test_keys_as_they_are_given(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", pa.binary())])
    file = tmp_path / "k.csv"
    file.write_text("b,id\n0x00ff,1\n0x00ff,1\n")
    found = read_keys((), str(file), ("id", "b"), schema)
    assert found.to_pylist() == [{"id": 1, "b": b"\x00\xff"}]
    for text in ("id\n", "id\nx\n", "n\n1\n"):
        file.write_text(text)
        with pytest.raises(Usage, match="--keys"):
            read_keys((), str(file), ("id",), schema)
    (tmp_path / "k.txt").write_text("1")
    with pytest.raises(Usage, match="expected a name in"):
        read_keys((), str(tmp_path / "k.txt"), ("id",), schema)
    with pytest.raises(Usage, match="either --key or --keys"):
        read_keys((), None, ("id",), schema)
    jsonl = tmp_path / "k.jsonl"
    jsonl.write_text('{"id": null}\n')
    with pytest.raises(Usage):
        read_keys((), str(jsonl), ("id",), schema)


def test_no_shard_is_claimed_unless_it_is_confirmed(tmp_path: Path) -> None:
    made = make(tmp_path / "t")
    writer = made.writers().open("11111111-1111-4111-8111-111111111111")
    writer.put(rows_of([1]))
    writer.close()
    table = ResolvedTable(name="t", uri=made.uri, settings=Settings(), storage_options={})
    asked: list[Any] = []

    def refuse(name: str, shards: Any) -> bool:
        asked.append((name, list(shards)))
        return False

    options = EraseOptions(
        tables=[table], request=EraseRequest(key=["id=1"], **NOW), confirm=refuse
    )
    (report,) = run_erase(options, Quiet()).tables
    assert asked == [("t", ["11111111-1111-4111-8111-111111111111"])]
    assert "MW-Z03" in str(report.error)
    assert report.exit_code == 5
    assert set(made.read()) == {1}
    assert not (tmp_path / "t" / "_maintenance" / "erasures").exists()
