"""Each change of a schema meets each kind of rows that wait: none is lost, all are as they should.

The rows are written by pylance under the schema of the day before; what a read shows right after
the change, and what the base holds once all is merged, has to be the same.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from tests.support.ingest_killed import ingest_and_die
from tests.support.nursery import killed

pytestmark = pytest.mark.integration

Row = dict[str, Any]
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("v", pa.int32()),
        pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
        pa.field("n", pa.string()),
    ]
)
SHARD = str(UUID(int=7))
CHANGED = "add with a default"


def make_row(key: int, v: int) -> Row:
    return {"id": key, "v": v, "s": {"a": v, "b": f"b{v}"}, "n": None if v % 2 else f"n{v}"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is asked for, and what a row of before is under the new schema."""

    options: Sequence[str]
    turn: Callable[[Row], Row]

    @property
    def rewrites(self) -> bool:
        return bool({"--widen", "--default"} & {*self.options})


def _without(row: Row, name: str) -> Row:
    return {k: v for k, v in row.items() if k != name}


def _member(row: Row, **members: Any) -> Row:
    kept = {k: v for k, v in row["s"].items() if k not in members}
    return {**row, "s": kept | {k: v for k, v in members.items() if v is not ...}}


CHANGES: Mapping[str, Change] = {
    "add": Change(options=["--add", "x:int32"], turn=lambda r: {**r, "x": None}),
    "add with a default": Change(
        options=["--add", "x:int32", "--default", "x=7"], turn=lambda r: {**r, "x": 7}
    ),
    "drop": Change(options=["--drop", "n"], turn=lambda r: _without(r, "n")),
    "rename": Change(options=["--rename", "v=w"], turn=lambda r: {**_without(r, "v"), "w": r["v"]}),
    "widen": Change(options=["--widen", "v=int64"], turn=lambda r: r),
    "require": Change(
        options=["--require", "n", "--default", 'n="none"'],
        turn=lambda r: {**r, "n": r["n"] or "none"},
    ),
    "order": Change(options=["--order", "n,s,v,id"], turn=lambda r: r),
    "add a member": Change(options=["--add", "s.c:int32"], turn=lambda r: _member(r, c=None)),
    "drop a member": Change(options=["--drop", "s.b"], turn=lambda r: _member(r, b=...)),
    "rename a member": Change(
        options=["--rename", "s.a=aa"], turn=lambda r: _member(r, a=..., aa=r["s"]["a"])
    ),
    "widen a member": Change(options=["--widen", "s.a=int64"], turn=lambda r: r),
}


def memwal(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["tables"][0]


def by_id(rows: Sequence[Row]) -> dict[int, Row]:
    found = {one["id"]: one for one in rows}
    assert len(found) == len(rows)
    return found


def put(writer: Any, rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> None:
    writer.put(pa.Table.from_pylist(rows, schema=schema))


def flushed(uri: str, rows: Sequence[Row]) -> None:
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    put(writer, rows)
    writer.close()


def later_rows(change: Change) -> list[Row]:
    """Rows of somebody who knows the new schema."""
    return [change.turn(make_row(key, 100 + key)) for key in (3, 30)]


def open_anew(uri: str, rows: Sequence[Row]) -> None:
    """A writer that opens after the change."""
    dataset = lance.dataset(uri)
    writer = dataset.mem_wal_writer(SHARD)
    put(writer, rows, dataset.schema)
    writer.close()


Waiting = Callable[[str, Sequence[Row], Sequence[Row]], AbstractContextManager[None]]
# Each puts rows, and lets the table be changed; then other rows come, by a writer of before.


@contextmanager
def generation(uri: str, first: Sequence[Row], then: Sequence[Row]) -> Iterator[None]:
    """Flushed before."""
    flushed(uri, [*first, *then])
    yield


@contextmanager
def open_writer(uri: str, first: Sequence[Row], then: Sequence[Row]) -> Iterator[None]:
    """The writer goes on, and knows nothing of the change."""
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    put(writer, first)
    yield
    put(writer, then)
    writer.close()


@contextmanager
def wal(uri: str, first: Sequence[Row], then: Sequence[Row]) -> Iterator[None]:
    """The writer is killed: what it put is in the WAL alone."""
    program = (
        "import lance, os, pickle, sys\n"
        f"writer = lance.dataset({uri!r}).mem_wal_writer({SHARD!r})\n"
        "writer.put(pickle.load(sys.stdin.buffer)); os._exit(0)"
    )
    rows = pickle.dumps(pa.Table.from_pylist([*first, *then], schema=SCHEMA))
    subprocess.run([sys.executable, "-c", program], input=rows, check=True)
    yield
    memwal("rescue", uri, "--idle", "0s", "--yes")


WAITING: Mapping[str, Waiting] = {
    "generation": generation, "open writer": open_writer, "wal": wal
}  # fmt: skip


@pytest.fixture
def uri(tmp_path: Path) -> str:
    rows = [make_row(key, key) for key in range(10)]
    return make(str(tmp_path / "t"), rows)


def make(uri: str, rows: Sequence[Row]) -> str:
    dataset = lance.write_dataset(
        pa.Table.from_pylist(rows, schema=SCHEMA), uri, enable_stable_row_ids=True
    )
    dataset.create_scalar_index("v", "BTREE", name="v_idx")
    dataset.initialize_mem_wal()
    dataset.delete("id = 9")
    return uri


@pytest.mark.nightly
@pytest.mark.parametrize("waiting", WAITING)
@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_wait_are_as_the_new_schema_has_them(uri: str, name: str, waiting: str) -> None:
    change = CHANGES[name]
    first = [make_row(1, 41), make_row(20, 42)]
    then = [make_row(2, 43), make_row(21, 44)]
    wanted = by_id([change.turn(make_row(key, key)) for key in range(9)])
    with WAITING[waiting](uri, first, then):
        found = memwal("schema", uri, *change.options, "--apply")
        assert found["outcome"] == "done", found
        if waiting == "wal":
            shown = by_id(memwal("read", uri, "--with-wal")["rows"])
            assert shown == wanted | by_id([change.turn(row) for row in [*first, *then]])
    wanted |= by_id([change.turn(row) for row in [*first, *then]])
    assert by_id(memwal("read", uri)["rows"]) == wanted
    open_anew(uri, later_rows(change))
    wanted |= by_id(later_rows(change))
    assert by_id(memwal("read", uri)["rows"]) == wanted
    memwal("maintain", uri)
    dataset = lance.dataset(uri)
    assert by_id(dataset.to_table().to_pylist()) == wanted
    assert dataset.to_table(filter="id = 20").num_rows == 1
    assert memwal("schema", uri, *change.options, "--apply")["outcome"] == "nothing_to_do"


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_kept_of_before_is_as_it_was(uri: str, name: str) -> None:
    """A checkpoint, an older version and a cursor; an ingest that had begun goes on."""
    change = CHANGES[name]
    flushed(uri, [make_row(1, 41), make_row(20, 42)])
    before = by_id(memwal("read", uri)["rows"])
    version = lance.dataset(uri).version
    memwal("checkpoint", "create", uri, "kept")
    memwal("changes", uri, "--cursor", "c", "--commit", str(version))
    memwal("schema", uri, *change.options, "--apply")
    assert by_id(memwal("read", uri, "--checkpoint", "kept")["rows"]) == before
    memwal("maintain", uri)
    old = memwal("read", uri, "--version", str(version))
    assert by_id(old["rows"]) == before
    found = memwal("changes", uri, "--cursor", "c", "--before")["rows"]
    kinds = {row["id"]: row["_change"] for row in found}
    # A column that is rewritten is an update of each row.
    rewritten = before.keys() if change.rewrites else {1, 20}
    assert kinds == {key: "insert" if key == 20 else "update" for key in rewritten}
    for row in found:
        shown = {k: v for k, v in row.items() if not k.startswith("_")}
        assert shown == change.turn(before[row["id"]])
        was = None if row["id"] == 20 else change.turn(make_row(row["id"], row["id"]))
        # What a default replaces was NULL then.
        if was is not None and "--default" in change.options:
            filled = was.keys() & {"x", "n"}
            was |= {name: None for name in filled if row["_before"][name] is None}
        assert row["_before"] == was


@pytest.mark.parametrize("name", ["order", "drop", "widen", "add with a default"])
def test_an_ingest_that_was_killed_goes_on_or_says_what_to_do(
    uri: str, tmp_path: Path, name: str
) -> None:
    change = CHANGES[name]
    rows = [make_row(100 + n, n) for n in range(200)]
    source = str(tmp_path / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), source, row_group_size=20)
    words = ["ingest", uri, source, "--json", "--rows-per-chunk", "20"]
    assert killed(ingest_and_die, 14, words[1:])
    memwal("schema", uri, *change.options, "--apply")
    wanted = by_id([change.turn(row) for row in rows])
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (done.exit_code, name) in {(0, "order"), (2, "drop"), (5, "widen"), (2, CHANGED)}
    if name == "widen":
        assert "`memwal rescue`" in done.output
        memwal("rescue", uri, "--idle", "0s", "--yes")
        memwal(*words[:-3], *words[-2:])
    if name in ("drop", CHANGED):
        assert ("--skip-unknown-columns" if name == "drop" else "'x' is missing") in done.output
    found = by_id(memwal("read", uri, "--with-wal")["rows"])
    put = {key: row for key, row in found.items() if key >= 100}
    assert put == {key: wanted[key] for key in put}
    assert len(put) == 200 if name in ("order", "widen") else 0 < len(put) < 200
