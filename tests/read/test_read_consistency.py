"""Reading by the shard snapshot: few requests, as of a time that is told, and never a wrong row."""

from __future__ import annotations

import io
import json
import uuid
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import memwal
from memwal.errors import Usage
from memwal.jobs.snapshot.plan import SnapshotLimits, Storage
from memwal.model import ShardId, ShardManifest
from memwal.read import open_table
from memwal.read.job import ReadOptions, run_read
from memwal.read.request import ReadAsked
from memwal.read.show import show_rows
from memwal.store.shards.snapshots import external_path
from memwal.store.tables.view import StoredViews
from memwal.testing import Call, HookedObjects
from tests.support import snapshot_files
from tests.support.builders import Delete, Put, Rows, Table, make_table
from tests.support.indexed import resolved
from tests.support.nursery import run_memwal

pytestmark = pytest.mark.integration

EXTERNAL = SnapshotLimits(inline_shards_max=0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "t", rows=range(10), shards=2)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put([20 + 10 * place, 21 + 10 * place], place), Delete([place]))
    return table


def read(table: Table) -> tuple[Rows, str | None, list[str]]:
    """Rows by the snapshot, the time that the reader tells, and what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reader = open_table(table.uri, consistency="snapshot").read()
        taken_at = (reader.schema.metadata or {}).get(b"memwal.taken_at")
        rows = table.keyed(reader.read_all())
    return rows, taken_at and taken_at.decode(), [str(w.message) for w in told]


def check_latest(table: Table, why: str) -> None:
    """The snapshot is not used, which is told, and the rows are right."""
    rows, taken_at, (told,) = read(table)
    assert rows == table.truth()
    assert taken_at is None
    assert why in told and "`memwal snapshot` takes one" in told


def confirmed_file(table: Table) -> Path:
    return Path(table.uri) / "_maintenance" / "snapshot.json"


@pytest.mark.parametrize("limits", [SnapshotLimits(), EXTERNAL], ids=["inline", "external"])
def test_what_was_flushed_before_the_snapshot_and_what_is_merged(
    table: Table, limits: SnapshotLimits
) -> None:
    first, second = table.shards
    snapshot_files.refresh(table.stores, limits=limits)
    then = table.truth()
    assert read(table)[0] == then
    table.flush(first, Put([20, 40], 100))
    new = table.add_shard()
    table.flush(new, Put([50], 7))
    rows, taken_at, told = read(table)
    assert (rows, told) == (then, [])
    assert datetime.fromisoformat(str(taken_at)).tzinfo is not None
    # What is merged since shows, of shards that the snapshot does not know as well. An external
    # snapshot lost its index entry to the merge, and is found all the same.
    merger = table.merger()
    for shard in (first, new):
        merger.run(shard, snapshot_files.MERGE_ALL)
    assert read(table) == (table.truth(), taken_at, [])
    table.flush(second, Put([30], 9))
    assert read(table)[0] == table.expected({first: 2, second: 1, new: 1})


def test_a_read_of_the_latest_tells_no_time(table: Table) -> None:
    reader = open_table(table.uri).read()
    assert b"memwal.taken_at" not in (reader.schema.metadata or {})


# ---- never wrong


def lower_progress(table: Table, then: Callable[[], None]) -> None:
    """A refresh lowers progress of a generation that it does not list, and then something comes."""
    snapshot_files.refresh(table.stores)
    table.flush(table.shards[0], Put([20, 21], 40))
    done: list[object] = []

    def steps(step: str) -> None:
        if step == "commit" and not done:
            # Newer than the generations that the snapshot lists, over the same keys.
            table.flush(table.shards[0], Put([20], 777), Delete([21]))
            done.extend(table.merge_all())
        if step == "committed" and len(done) == len(table.shards):
            then()

    snapshot_files.refresh(table.stores, steps=steps)


class Killed(Exception):
    pass


def test_progress_that_its_own_commit_lowered_hides_no_newer_row(table: Table) -> None:
    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        lower_progress(table, die)
    assert table.progress() == {}
    check_latest(table, "the snapshot was not confirmed")
    # The next run goes over it again, although the snapshot may say what the manifests say.
    assert snapshot_files.refresh(table.stores).outcome == "done"
    rows, taken_at, _ = read(table)
    assert rows == table.truth()
    assert taken_at is not None


def test_while_progress_is_lowered_and_after_its_repair(table: Table) -> None:
    seen: list[Rows] = []
    lower_progress(table, lambda: seen.append(read(table)[0]))
    assert seen and all(rows == table.truth() for rows in seen)
    rows, taken_at, told = read(table)
    assert (rows, told) == (table.truth(), [])
    assert taken_at is not None


def test_a_snapshot_that_says_all_but_was_not_confirmed_is_written_anew(table: Table) -> None:
    snapshot_files.refresh(table.stores)
    assert snapshot_files.refresh(table.stores).outcome == "nothing_to_do"
    confirmed_file(table).unlink()
    check_latest(table, "not confirmed")
    again = snapshot_files.refresh(table.stores)
    assert (again.outcome, again.reason) == (
        "done", "no run has confirmed the snapshot, so that no reader goes by it",
    )  # fmt: skip
    assert read(table)[1] is not None


def test_what_was_collected_since_is_read_from_the_base(table: Table) -> None:
    """Between the look at the table and at its generations everything is merged and collected."""
    snapshot_files.refresh(table.stores)
    reading = open_table(table.uri, consistency="snapshot")
    once: list[object] = []

    def collect() -> None:
        if not once:
            once.extend(table.merge_all())
            for folder in Path(table.uri).glob("_mem_wal/*/*_gen_1"):
                folder.rename(Path(table.uri).with_name(f"gone-{folder.name}"))

    views = _After(reading.views, collect)
    reading.views = views  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="something that it lists can't be read"):
        rows = reading.read().read_all()
    assert table.keyed(rows) == table.truth()
    assert once


class _After:
    """Views after whose snapshot something happens."""

    def __init__(self, views: StoredViews, then: Callable[[], None]) -> None:
        self._views, self._then = views, then

    def from_snapshot(self, *args: Any, **settings: Any) -> Any:
        view = self._views.from_snapshot(*args, **settings)
        self._then()
        return view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views, name)


def test_a_generation_that_is_gone_and_not_merged_is_an_error(table: Table) -> None:
    snapshot_files.refresh(table.stores)
    (folder,) = Path(table.uri).glob(f"_mem_wal/{table.shards[0]}/*_gen_1")
    folder.rename(Path(table.uri).with_name("gone"))
    with pytest.raises(memwal.errors.Corruption, match="its rows are lost"):
        read(table)


def test_an_older_snapshot_that_a_restore_brings_back_is_not_read(table: Table) -> None:
    snapshot_files.refresh(table.stores)
    version = int(table.dataset.version)
    table.flush(table.shards[0], Put([60], 1))
    snapshot_files.refresh(table.stores)
    table.at(version).restore()
    check_latest(table, "not confirmed")


# ---- what is no snapshot


def test_a_table_without_a_snapshot(table: Table) -> None:
    check_latest(table, "no snapshot was taken")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', "\xff", "[1]"])
def test_a_confirmation_that_can_t_be_read(table: Table, text: str) -> None:
    snapshot_files.refresh(table.stores)
    confirmed_file(table).write_bytes(text.encode("latin-1"))
    check_latest(table, "can't be read")


def test_a_damaged_external_file_is_not_parsed(table: Table) -> None:
    snapshot_files.refresh(table.stores, limits=EXTERNAL)
    stored = json.loads(confirmed_file(table).read_text())
    path = Path(table.uri) / external_path(stored["index_uuid"])
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    check_latest(table, "not what was stored")
    path.unlink()
    check_latest(table, "the snapshot is gone")


def test_what_is_confirmed_and_is_no_snapshot(table: Table) -> None:
    """As by somebody who forged both."""
    stores = table.stores
    plain = pa.table({"shard_id": [b"0123456789abcdef"], "version": ["x"]})
    for data, why in (
        (b"no Lance file", "can't be read: does not end like a Lance data file"),
        (snapshot_files.to_lance_bytes(plain), "is no shard snapshot of memwal's"),
        (snapshot_files.to_lance_bytes(snapshot_files.rows_of([])), "has 0 shards, and the index"),
    ):
        snapshot_files.store_snapshot(stores, data, num_shards=2)
        check_latest(table, why)


def test_a_forged_path_is_refused(table: Table) -> None:
    stores = table.stores
    manifest = stores.shard_manifests.latest(table.shards[0])
    assert manifest is not None
    (generation,) = manifest.flushed_generations
    forged = replace(manifest, flushed_generations=(replace(generation, path="../../elsewhere"),))
    data = snapshot_files.to_lance_bytes(snapshot_files.rows_of([forged]))
    snapshot_files.store_snapshot(stores, data, num_shards=1)
    check_latest(table, "the snapshot can't be read")
    twice = snapshot_files.to_lance_bytes(snapshot_files.rows_of([manifest, manifest]))
    snapshot_files.store_snapshot(stores, twice, num_shards=2)
    check_latest(table, "has a shard twice")


# ---- requests


@pytest.mark.parametrize("storage", list(Storage))
def test_requests_do_not_depend_on_the_number_of_shards(table: Table, storage: Storage) -> None:
    asked: dict[int, list[str]] = {}
    for many in (2, 3000):
        manifests = [
            ShardManifest(
                shard_id=ShardId(str(uuid.UUID(int=n, version=4))),
                version=1,
                writer_epoch=1,
                current_generation=1,
            )
            for n in range(many)
        ]
        data = snapshot_files.to_lance_bytes(snapshot_files.rows_of(manifests))
        snapshot_files.store_snapshot(table.stores, data, num_shards=many, storage=storage)
        calls = asked[many] = []

        def hook(call: Call, effect: Callable[[], Any], calls: list[str] = calls) -> Any:
            calls.append(f"{call.operation} {call.paths[0]}")
            return effect()

        stores = table.stores
        views = StoredViews(HookedObjects(stores.objects, hook), stores.tables)
        view = views.from_snapshot(lambda: pytest.fail("the snapshot is not used"))
        assert [shard.shard_id for shard in view.shards] == [m.shard_id for m in manifests]
    assert len(asked[3000]) <= len(asked[2]) + 1, "the version's manifest may take one more"
    assert not any("_mem_wal" in call for call in asked[3000])


# ---- the commands


def run(table: Table, **options: Any) -> dict[str, Any]:
    words = ReadAsked(consistency="snapshot", **options)
    asked = ReadOptions(table=resolved(table), asked=words)
    found: dict[str, Any] = run_read(asked).to_json()["tables"][0]
    return found


def test_the_command_tells_when_it_was_taken(table: Table) -> None:
    snapshot_files.refresh(table.stores)
    table.flush(table.shards[0], Put([60], 1))
    done = run_memwal("read", table.uri, "--consistency", "snapshot", "--json")
    (found,) = json.loads(done.stdout)["tables"]
    assert (done.returncode, found["consistency"], found["num_rows"]) == (0, "snapshot", 12)
    assert found["warnings"] == []
    taken_at = found["taken_at"]
    assert datetime.fromisoformat(taken_at).tzinfo is not None
    explained = run(table, explain=True)
    assert (explained["consistency"], explained["taken_at"]) == ("snapshot", taken_at)
    shown = io.StringIO()
    show_rows({"tables": [found], "seconds": 0.1}, Console(file=shown, width=200))
    assert f"shards as of {taken_at}" in shown.getvalue()
    confirmed_file(table).unlink()
    without = run(table)
    assert (without["consistency"], without["taken_at"], without["num_rows"]) == (
        "latest", None, 13,
    )  # fmt: skip
    assert "not confirmed" in without["warnings"][0]


def test_status_by_the_snapshot(table: Table) -> None:
    opened = memwal.open_table(table.uri, consistency="snapshot")
    without = opened.status()
    assert without.consistency == "latest"
    assert without.shards[0].wal_entries
    assert any("no snapshot was taken" in text for text in without.warnings)
    snapshot_files.refresh(table.stores)
    table.flush(table.shards[0], Put([60], 1))
    found = opened.status()
    assert (found.consistency, found.warnings) == ("snapshot", ())
    assert {s.shard_id: s.pending_generations for s in found.shards} == dict.fromkeys(
        table.shards, (1,)
    )
    assert {(s.status, s.wal_entries, s.pending_rows) for s in found.shards} == {(None, None, None)}
    shown = run_memwal("status", table.uri, "--consistency", "snapshot").stdout
    assert "the shards above are as of then" in shown


def test_what_goes_with_no_snapshot(table: Table) -> None:
    reading = open_table(table.uri, consistency="snapshot")
    with pytest.raises(Usage, match="goes with no version"):
        reading.read(version=1)
    with pytest.raises(Usage, match="or checkpoint"):
        reading.read(checkpoint="monday")
    with pytest.raises(Usage, match="with_wal goes with latest"):
        reading.read(with_wal=True)
    with pytest.raises(Usage, match="expected latest or snapshot"):
        open_table(table.uri, consistency="strong")  # type: ignore[arg-type]
    done = run_memwal("read", table.uri, "--consistency", "newest")
    assert done.returncode == 2
    assert "--consistency 'newest': expected latest, snapshot" in done.stderr


def test_maintain_writes_again_what_a_merge_cut_off(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.jobs.snapshot.apply.choose_storage", lambda *_: Storage.EXTERNAL)
    opened = memwal.open_table(table.uri)
    for n in range(3):
        opened.maintain()
        state = table.stores.views.mem_wal(int(table.dataset.version))
        assert table.stores.objects.exists(external_path(state.index_uuid))
        assert read(table)[2] == []
        table.flush(table.shards[0], Put([60 + n], n))
        opened.merge()
        state = table.stores.views.mem_wal(int(table.dataset.version))
        assert not table.stores.objects.exists(external_path(state.index_uuid))
        assert read(table)[0] == table.truth()
