"""Wherever a run ends, the next one goes on: no row is lost, none is written twice, order stays.

What is compared is the WAL itself, row by row: a reader would not see a row that is there twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
from memwal.cli.app import app
from memwal.ingest.track import Track, TrackLimits
from memwal.model import ShardId
from memwal.store.shards.manifests import Fenced
from memwal.store.shards.writers import OpenShard, ShardWriters
from tests.support.ingest_killed import ingest_and_die
from tests.support.ingest_tables import MemWalTable, make, wal_rows
from tests.support.nursery import killed
from tests.support.sampling import many
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration

ARGUMENTS = ["--json", "--delete-column", "gone", "--rows-per-chunk", "40"]
SPEC = {"bucket_column": "id", "num_buckets": 3}


def write_source(folder: Path) -> str:
    """Keys that come again and again, deleted in between: 300 changes of 50 keys in 2 files."""
    folder.mkdir()
    for part in range(2):
        steps = range(part * 150, part * 150 + 150)
        table = pa.table(
            {
                "gone": [n % 4 == 3 for n in steps],
                "id": pa.array([n * 7 % 50 for n in steps], pa.int32()),
                "n": list(steps),
                "note": [f"step {n}" for n in steps],
            }
        )
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=64)
    return str(folder)


def ingest(table: MemWalTable, *arguments: str) -> dict:
    """Run the command in this process; its report."""
    done = CliRunner().invoke(app, ["ingest", table.uri, *arguments], catch_exceptions=False)
    return {"exit_code": done.exit_code, **json.loads(done.stdout)}


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A source, and what a run that nothing disturbs makes of it."""

    source: str
    rows: dict[str, list[tuple]]
    table: MemWalTable


def clean(tmp_path: Path, source: str) -> tuple[dict[str, list[tuple]], MemWalTable]:
    """What a run that nothing disturbs leaves in the WALs."""
    table = make(tmp_path / "clean", **SPEC)
    report = ingest(table, source, *ARGUMENTS)
    assert report["exit_code"] == 0
    [found] = report["tables"]
    assert (found["rows"], found["rows_deleted"], found["rows_written"]) == (300, 75, 300)
    rows = wal_rows(table)
    assert sorted(len(r) for r in rows.values()) == sorted(
        s["rows"] + s["rows_deleted"] for s in found["shards"]
    )
    assert sum(len(r) for r in rows.values()) == 300
    return rows, table


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    source = write_source(folder / "source")
    rows, table = clean(folder, source)
    return Undisturbed(source=source, rows=rows, table=table)


def test_each_key_keeps_its_order(undisturbed) -> None:
    rows = undisturbed.rows
    told: dict[int, list[object]] = {}
    for shard in rows.values():
        for row in shard:
            told.setdefault(row[1], []).append("gone" if row[0] else row[2])
    wanted: dict[int, list[object]] = {}
    for n in range(300):
        wanted.setdefault(n * 7 % 50, []).append("gone" if n % 4 == 3 else n)
    assert told == wanted


def stop_at(monkeypatch, nth: int, progress_seconds: float) -> Stopper:
    stopper = Stopper(nth)
    limits = TrackLimits(progress_seconds=progress_seconds)
    monkeypatch.setattr(memwal.ingest.apply, "Track", partial(Track, steps=stopper, limits=limits))
    return stopper


# With progress at every chunk, and with none at all: then only the WAL knows.
@pytest.mark.nightly
@pytest.mark.parametrize("progress_seconds", [0.0, 1e9])
def test_stopped_again_and_again(
    undisturbed, tmp_path, monkeypatch, stalled, progress_seconds
) -> None:
    source, wanted = undisturbed.source, undisturbed.rows
    table = make(tmp_path / "t", **SPEC)
    ends = 0
    for nth in (1, 2, 4, 7, 8, 13, 17, 22, 29, 200):
        stop_at(monkeypatch, nth, progress_seconds)
        report = ingest(table, source, *ARGUMENTS)
        if report["exit_code"] == 0:
            break
        assert report["error"] is None or "Stop" in report["error"]
        ends += 1
    assert report["exit_code"] == 0 and ends >= 6
    assert report["tables"][0]["resumed"]
    assert report["tables"][0]["rows"] == 300
    assert wal_rows(table) == wanted
    # A writer that was only stalled can't add anything any more.
    for shard in stalled:
        if shard.entries:
            with pytest.raises(Fenced):
                shard.put(shard_rows(table))
    assert wal_rows(table) == wanted


def shard_rows(table: MemWalTable) -> pa.Table:
    schema = table.dataset.schema
    return pa.table({"id": [1], "n": [1], "note": ["late"]}, schema=schema)


def test_killed_twice(undisturbed, tmp_path) -> None:
    source, wanted = undisturbed.source, undisturbed.rows
    table = make(tmp_path / "t", **SPEC)
    for nth in (9, 24):
        assert killed(ingest_and_die, nth, [table.uri, source, *ARGUMENTS])
    report = ingest(table, source, *ARGUMENTS)
    assert report["exit_code"] == 0
    assert wal_rows(table) == wanted
    # Everything was flushed at the end: nothing waits in a WAL only.
    assert table.read(with_wal=False) == undisturbed.table.read()


class Twice:
    """A writer whose nth put is stored twice, as pylance's is when a reply is lost."""

    def __init__(self, writer: object, nth: int, *, ends: bool) -> None:
        self._writer = writer
        self._left = nth
        self._ends = ends

    def put(self, rows: pa.Table) -> None:
        self._writer.put(rows)
        self._left -= 1
        if self._left == 0:
            self._writer.put(rows)
            if self._ends:
                raise OSError("the process ends before anybody looks")

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)


def entries(table: MemWalTable) -> dict[str, list[tuple[int, list[dict]]]]:
    """Each shard's entries without copies: batches, and rows."""
    stores = table.stores
    found: dict[str, list[tuple[int, list[dict]]]] = {}
    for shard in stores.views.table().shards:
        kept = found.setdefault(shard.shard_id, [])
        for position, _ in stores.wal.list_entries(shard.shard_id):
            batches = stores.wal.rows(shard.shard_id, position).batches
            entry = (len(batches), [row for batch in batches for row in batch.to_pylist()])
            if batches and kept[-1:] != [entry]:
                kept.append(entry)
    return found


@pytest.mark.parametrize("ends", [False, True])
def test_entries_that_are_stored_twice(tmp_path, monkeypatch, stalled, ends) -> None:
    # Rows that are all the same: only their number of batches tells entries apart.
    source = tmp_path / "same.parquet"
    pq.write_table(pa.table({"id": [7] * 200, "n": [1] * 200, "note": ["same"] * 200}), source)
    arguments = ["--json", "--rows-per-chunk", "20"]
    table = make(tmp_path / "t", unsharded=True)
    opened = ShardWriters.open

    def open_twice(*more: object) -> OpenShard:
        shard = opened(*more)
        shard._writer = Twice(shard._writer, 3, ends=ends)
        return shard

    monkeypatch.setattr(ShardWriters, "open", open_twice)
    first = ingest(table, str(source), *arguments)
    assert (first["exit_code"] == 0) is not ends
    if ends:
        stop_at(monkeypatch, 8, 1e9)
        assert ingest(table, str(source), *arguments)["exit_code"] != 0
    monkeypatch.setattr(ShardWriters, "open", opened)
    monkeypatch.setattr(memwal.ingest.apply, "Track", Track)
    last = ingest(table, str(source), *arguments)
    assert last["outcome"] == ("done" if ends else "nothing_to_do"), last["error"]
    [found] = entries(table).values()
    assert [batches for batches, _ in found] == [1, 2] * 5
    assert all(len(rows) == 20 for _, rows in found)
    [rows] = wal_rows(table).values()
    assert len(rows) > 200  # there were copies


class TwiceNowAndThen:
    """A writer whose puts are stored twice by chance; some then end before anybody looks."""

    def __init__(self, writer: object, random: Random, copied: list[int]) -> None:
        self._writer, self._random, self._copied = writer, random, copied

    def put(self, rows: pa.Table) -> None:
        self._writer.put(rows)
        if self._random.random() < 0.3:
            self._writer.put(rows)
            self._copied.append(rows.num_rows)
            if self._random.random() < 0.5:
                raise OSError("the process ends before anybody looks")

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)


def write_parts(folder: Path, random: Random, *, equal: bool) -> list[int]:
    """Files of 1 to 3 rows, of one or two keys; each row's number, or all the same."""
    folder.mkdir()
    numbers: list[int] = []
    for part in range(8):
        rows = random.choice([1, 1, 1, 2, 3])
        new = [1 if equal else len(numbers) + n for n in range(rows)]
        ids = [7 if equal else random.choice([7, 7, 8]) for _ in new]
        pq.write_table(
            pa.table({"id": ids, "n": new, "note": ["same"] * rows}), folder / f"{part}.parquet"
        )
        numbers += new
    return numbers


@pytest.mark.nightly
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", range(many(8, 4)))
def test_any_calls_stored_twice(tmp_path, monkeypatch, stalled, seed, equal) -> None:
    random, closes = Random(seed), Random(seed)
    wanted = write_parts(tmp_path / "source", random, equal=equal)
    arguments = ["--json", "--rows-per-chunk", random.choice("12")]
    table = make(tmp_path / "t", unsharded=True)
    opened, copied = ShardWriters.open, list[int]()

    def open_twice(*more: object) -> OpenShard:
        shard = opened(*more)
        shard._writer = TwiceNowAndThen(shard._writer, random, copied)
        return shard

    monkeypatch.setattr(ShardWriters, "open", open_twice)
    for _ in range(40):
        stop_at(monkeypatch, random.randint(3, 12), random.choice([0.0, 1e9, 1e9]))
        often = closes.choice([60.0, 1e-6])
        monkeypatch.setattr(memwal.ingest.apply, "FRESHNESS_SECONDS", often)
        if ingest(table, str(tmp_path / "source"), *arguments)["exit_code"] == 0:
            break
    monkeypatch.setattr(ShardWriters, "open", opened)
    monkeypatch.setattr(memwal.ingest.apply, "Track", Track)
    last = ingest(table, str(tmp_path / "source"), *arguments)
    assert last["exit_code"] == 0, last
    [rows] = wal_rows(table).values()
    assert len(rows) == len(wanted) + sum(copied)
    assert list(dict.fromkeys(row[2] for row in rows)) == list(dict.fromkeys(wanted))


def test_calls_that_look_alike_are_told_apart_across_closes_in_between(
    tmp_path, monkeypatch, stalled
) -> None:
    """Each is closed into a generation before the next; a run that ends in between goes on."""
    monkeypatch.setattr(memwal.ingest.apply, "FRESHNESS_SECONDS", 1e-6)
    source, arguments = tmp_path / "same.parquet", ["--json", "--rows-per-chunk", "1"]
    pq.write_table(pa.table({"id": [7] * 6, "n": [1] * 6, "note": ["same"] * 6}), source)
    table = make(tmp_path / "t", unsharded=True)
    for nth in (16, 200):
        stop_at(monkeypatch, nth, 1e9)
        code = ingest(table, str(source), *arguments)["exit_code"]
        assert (code == 0) is (nth == 200)
    [rows] = wal_rows(table).values()
    assert len(rows) == 6
    [shard] = table.stores.views.table().shards
    assert shard.manifest.current_generation > 2


def test_somebody_elses_writer_in_between(undisturbed, tmp_path, monkeypatch, stalled) -> None:
    source, wanted = undisturbed.source, undisturbed.rows
    table = make(tmp_path / "t", **SPEC)
    stop_at(monkeypatch, 16, 1e9)
    assert ingest(table, source, *ARGUMENTS)["exit_code"] != 0
    shards = [shard.claim.shard_id for shard in stalled]
    assert shards
    for shard in shards:
        with table.dataset.mem_wal_writer(shard) as writer:
            writer.put(shard_rows(table))
            writer.put(shard_rows(table))
    monkeypatch.undo()
    assert ingest(table, source, *ARGUMENTS)["exit_code"] == 0
    found = wal_rows(table)
    late = (False, 1, 1, "late")
    assert {s: [r for r in rows if r != late] for s, rows in found.items()} == wanted
    assert all(found[shard].count(late) == 2 for shard in shards)


def test_a_source_that_changed_in_between_is_refused(tmp_path, monkeypatch, stalled) -> None:
    source = write_source(tmp_path / "source")
    table = make(tmp_path / "t", **SPEC)
    stop_at(monkeypatch, 12, 0.0)
    assert ingest(table, source, *ARGUMENTS)["exit_code"] != 0
    monkeypatch.undo()
    pq.write_table(pa.table({"gone": [True], "id": [1]}), tmp_path / "source" / "part-1.parquet")
    report = ingest(table, source, *ARGUMENTS)
    assert report["exit_code"] == 5
    assert "part-1.parquet has changed since its ingest began" in report["tables"][0]["error"]


def test_other_rows_in_the_wal_than_the_source_gives(tmp_path, monkeypatch, stalled) -> None:
    source = write_source(tmp_path / "source")
    table = make(tmp_path / "t", **SPEC)
    stop_at(monkeypatch, 12, 1e9)
    assert ingest(table, source, *ARGUMENTS)["exit_code"] != 0
    monkeypatch.undo()
    # As if a file were other than its time and size say.
    [plan] = Path(table.uri).glob("_maintenance/ingest/*/000001/plan.json")
    plan.write_text(plan.read_text().replace('"chunk_rows": 40', '"chunk_rows": 30'))
    report = ingest(table, source, *ARGUMENTS)
    assert report["exit_code"] == 8
    assert "holds other rows than the source" in report["tables"][0]["error"]


def test_entries_that_were_collected_in_between(
    undisturbed, tmp_path, monkeypatch, stalled
) -> None:
    source, wanted = undisturbed.source, undisturbed.rows
    table = make(tmp_path / "t", **SPEC)
    stop_at(monkeypatch, 24, 1e9)
    assert ingest(table, source, *ARGUMENTS)["exit_code"] != 0
    monkeypatch.undo()
    before = wal_rows(table)
    for shard in before:
        with table.dataset.mem_wal_writer(shard):
            pass  # flushes what the run left
    ends = {shard: table.stores.wal.list_entries(ShardId(shard))[-1][0] for shard in before}
    run("merge", table.uri, "--engine", "local")
    collect = ["garbage", table.uri, "--wal", "--execute", "--grace", "0s", "--retention", "0s"]
    for _ in range(3):  # drop, delete generations, delete entries
        run(*collect, "--allow-short-retention")
    left = {shard: len(rows) for shard, rows in wal_rows(table).items()}
    assert sum(left.values()) < sum(len(rows) for rows in before.values())
    assert ingest(table, source, *ARGUMENTS)["exit_code"] == 0
    written = {shard: wal_rows(table, ends.get(shard, 0)).get(shard, []) for shard in wanted}
    assert {shard: before.get(shard, []) + written[shard] for shard in wanted} == wanted


def run(*arguments: str) -> None:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
