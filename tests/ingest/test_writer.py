"""The writer of programs: what it takes, where it may be used, and what a dropped one leaves."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import memwal
from memwal.errors import StoreUnavailable, Usage
from memwal.ingest import FlushFailed, open_writer
from memwal.ingest.routing import Place, ShardValues
from memwal.ingest.shards import HandlerLimits, ShardHandler, ShardOperations
from memwal.ingest.values.operations import Kind, Operation
from memwal.ingest.values.python_rows import read_rows
from memwal.model import ShardId
from memwal.rows.pairs import Lenience
from memwal.store.shards.writers import Claim, MemTable, Tip
from memwal.testing import ManualClock
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
        with pytest.raises(Usage, match=r"NULL.* missing_as_null allows that"):
            writer.write([{"id": 4}])
    assert keys_of(table) == [2]


# ---- generations


@dataclass(kw_only=True)
class FakeShard:
    """A shard's writer, which makes a generation of `most` batches; `broken` ones don't close."""

    claim: Claim
    most: int
    broken: bool = False
    batches: int = 0
    generation: int = 1
    calls: list[str] = field(default_factory=list)

    @property
    def tip(self) -> Tip:
        return Tip(writer_epoch=self.claim.writer_epoch, position=1, calls=0)

    @property
    def memtable(self) -> MemTable:
        return MemTable(generation=self.generation, batches=self.batches, is_empty=not self.batches)

    def put(self, rows: pa.Table) -> None:
        self.calls.append("put")
        self.batches += 1
        if self.batches >= self.most:
            self.batches, self.generation = 0, self.generation + 1

    def close(self) -> None:
        self.calls.append("close")
        if self.broken:
            raise StoreUnavailable("away")

    def abandon(self) -> None:
        self.calls.append("abandon")


class Scene:
    """A handler of such shards, which makes a generation of each row within 32 seconds."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.opened: list[tuple[str, int | None, int | None]] = []
        self.shards: dict[str, FakeShard] = {}
        limits = HandlerLimits(generation_every_seconds=32)
        self.handler = ShardHandler(self, limits=limits, clock=self.clock)  # type: ignore[arg-type]

    def open(
        self, shard: ShardId, spec: int, entries: object, after: int | None, most: int | None
    ) -> FakeShard:
        self.opened.append((shard, after, most))
        claim = Claim(
            shard_id=shard, writer_epoch=1 + (after or 0), start_position=0, first_generation=1
        )
        self.shards[shard] = FakeShard(claim=claim, most=most or 8000, broken=shard == "c")
        return self.shards[shard]

    def put(self, *names: str, seconds: float = 0.0) -> float | None:
        """A row for each shard, so many seconds later; after how many the next is due."""
        self.clock.advance(seconds)
        delta, rows = ShardOperations(), pa.table({"id": [1]})
        for name in names:
            place = Place(shard_id=ShardId(name), values=ShardValues(spec_id=0))
            delta.by_place[place] = [Operation(kind=Kind.PUT, rows=rows)]
        self.handler.flush(delta, {})
        return self.handler.settle()


def test_a_shard_is_closed_when_its_oldest_row_is_due_and_opened_by_its_next() -> None:
    scene = Scene()
    assert scene.handler.settle() is None
    assert scene.put("a") == 32
    assert scene.put("a", "b", seconds=20) == pytest.approx(12)
    first = scene.shards["a"]
    assert scene.put(seconds=12) == pytest.approx(20)
    assert (first.calls, scene.shards["b"].calls) == (["put", "put", "close"], ["put"])
    scene.put("a")
    assert scene.opened == [("a", None, None), ("b", None, None), ("a", 1, 1)]
    assert scene.put(seconds=200) is None  # where nothing was put, nothing is done
    assert scene.put(seconds=200) is None and len(scene.opened) == 3
    scene.put("c")
    with pytest.raises(StoreUnavailable, match="away"):
        scene.put(seconds=32)
    assert scene.handler.claimed_shards == {"a", "b", "c"}
    scene.handler.abandon()
    assert scene.shards["c"].calls == ["put", "close", "abandon"]


def test_rows_that_keep_coming_take_few_claims_however_fast_they_come() -> None:
    scene = Scene()
    for seconds in (1.0, 0.01, 1.0):
        for _ in range(3000):
            scene.put("a", seconds=seconds)
            now = scene.clock.monotonic_seconds()
            assert now - scene.handler._put_at.get(ShardId("a"), now) <= 32
    assert [most for *_, most in scene.opened] == [None, 16, 256, 95, 16]


@pytest.mark.integration
def test_rows_of_a_writer_that_stays_open_are_seen_without_the_wal(table: MemWalTable) -> None:
    with open_writer(table.uri, generation_every=1e-6) as writer:
        for key in (2, 3, 4):
            writer.write_durable(dicts(key))
        # Before the last one was written, those before it were settled.
        assert {2} <= set(table.read(with_wal=False))
        assert keys_of(table) == [2, 3, 4]
    assert sorted(table.read(with_wal=False)) == [2, 3, 4]


@pytest.mark.integration
def test_a_configured_table_s_writer_goes_by_its_freshness(
    table: MemWalTable, tmp_path: Path
) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(f'[tables.people]\nuri = "{table.uri}"\nfreshness = "6s"\n')
    with memwal.open_table("people", config=str(file)).open_writer(convert=["utc"]) as writer:
        assert writer.generation_every_seconds == 3.0
        writer.write_durable(dicts(2))
    assert keys_of(table) == [2]


@pytest.mark.integration
def test_a_writer_that_was_closed_in_between_takes_no_shard_back(table: MemWalTable) -> None:
    writer = open_writer(table.uri, generation_every=1e-6)
    writer.write_durable(dicts(2))
    with open_writer(table.uri) as other:
        other.write(dicts(3))
    with pytest.raises(FlushFailed, match="took over"):
        writer.write_durable(dicts(4))
    with pytest.raises(FlushFailed):
        writer.close()
    assert keys_of(table) == [2, 3]


@pytest.mark.parametrize("wrong", ["soon", 0, "0s", -1, float("nan")])
def test_an_interval_that_is_none_is_refused_before_anything_is_opened(wrong: object) -> None:
    with pytest.raises(Usage, match="generation_every"):
        open_writer("/nowhere", generation_every=wrong)  # type: ignore[arg-type]


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
