"""A table whose MemWAL was initialised again after a quiesce: what was collected is not missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.errors import EXIT_CORRUPTION, EXIT_HELD, EXIT_REFUSED
from memwal.format import layout
from memwal.store.records.former_merges import StoredProofs, list_named, name_in_config
from tests.support import builders
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

SHORT = ("--retention", "0s", "--grace", "0s", "--allow-short-retention")


def run(table: Table, job: str, *arguments: str) -> int:
    return CliRunner().invoke(app, [job, table.uri, *arguments]).exit_code


def unset(table: Table) -> None:
    table.dataset.drop_index(layout.MEM_WAL_INDEX_NAME)


def init(table: Table) -> None:
    table.dataset.initialize_mem_wal()


def expire(table: Table) -> None:
    """As any other program may."""
    table.dataset.cleanup_old_versions(older_than=timedelta(0))


def record(table: Table) -> Path:
    (record_id,) = list_named(table.dataset.config())
    return Path(table.uri) / layout.settled_path(record_id)


def make(folder: Path, **options: Any) -> Table:
    """Two shards, with two generations each."""
    table = builders.make_table(folder / "t", rows=range(20), shards=2, indexed=True, **options)
    for n, shard in enumerate(table.shards):
        table.flush(shard, Put([2 * n, 30 + n], 1))
        table.flush(shard, Put([2 * n], 2))
    return table


@pytest.fixture(scope="module")
def quiesced(tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = make(tmp_path_factory.mktemp("quiesced"), maintained=True)
    assert run(made, "quiesce", *SHORT) == 0
    return made


@pytest.fixture(scope="module")
def maintained(tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = make(tmp_path_factory.mktemp("maintained"))
    assert run(made, "maintain", "--execute", *SHORT) == 0
    return made


@pytest.fixture
def table(quiesced: Table, tmp_path: Path) -> Table:
    """At rest, after a quiesce: all generations are collected."""
    return quiesced.copied(tmp_path / "t")


@pytest.fixture
def unrecorded(maintained: Table, tmp_path: Path) -> Table:
    """All is merged and collected, without a quiesce."""
    return maintained.copied(tmp_path / "t")


def check_accepted(table: Table) -> None:
    """One shard goes on, the other has nothing more to do."""
    assert run(table, "verify") == run(table, "merge") == 0
    table.flush(table.shards[0], Put([5, 40], 3))
    assert run(table, "read") == run(table, "merge") == 0
    assert table.progress() == {table.shards[0]: 3}
    builders.same_rows(table.base_rows(), table.truth(), "merged")
    assert run(table, "maintain", "--execute", *SHORT) == run(table, "verify") == 0


def check_refused(table: Table) -> None:
    assert run(table, "merge") == run(table, "read") == EXIT_REFUSED
    assert run(table, "verify") == EXIT_CORRUPTION


def test_no_older_version_is_needed(table: Table) -> None:
    for _ in range(2):  # the second index that does not know them
        unset(table)
        expire(table)
        init(table)
        expire(table)
    check_accepted(table)
    # And again from there: one shard is known by this index, the other by the record.
    assert run(table, "quiesce", *SHORT) == 0
    unset(table)
    init(table)
    expire(table)
    assert run(table, "verify") == run(table, "read") == 0
    table.flush(table.shards[1], Put([6, 41], 4))
    assert run(table, "merge") == 0
    builders.same_rows(table.base_rows(), table.truth(), "merged")


def test_it_is_recorded_once(table: Table) -> None:
    before = table.dataset.version
    assert run(table, "quiesce", *SHORT) == 0
    assert table.dataset.version == before
    assert len(list(record(table).parent.iterdir())) == 1


def test_a_refused_merge_records_nothing_anew(table: Table) -> None:
    """Else each look at a table that is written to, and waits for its operator, is a commit."""
    shard = table.shards[0]
    unset(table)
    init(table)
    for n in (3, 4):
        table.flush(shard, Put([n], n))
    builders.unlist_generation(table, shard, 3)
    before = table.dataset.version
    assert run(table, "merge", "--shard", shard) == EXIT_REFUSED
    assert table.dataset.version == before
    assert run(table, "garbage", "--execute", *SHORT) == 0
    assert table.dataset.version == before + 1  # of what garbage may collect
    assert settled(table) == [2, 2]


def settled(table: Table) -> list[int]:
    found = {s.shard_id: s.settled_generation for s in table.stores.views.table().shards}
    return [found[shard] for shard in table.shards if shard in found]


def test_a_merge_records_it_before_versions_expire(unrecorded: Table) -> None:
    unset(unrecorded)
    init(unrecorded)
    assert settled(unrecorded) == [2, 2]  # retained versions show it
    assert run(unrecorded, "merge", "--dry-run") == 0
    assert not list_named(unrecorded.dataset.config())
    assert run(unrecorded, "merge") == 0
    expire(unrecorded)
    assert settled(unrecorded) == [2, 2]


def test_garbage_records_it_before_versions_expire(unrecorded: Table) -> None:
    unset(unrecorded)
    init(unrecorded)
    assert run(unrecorded, "garbage", "--execute", *SHORT) == 0
    assert len(unrecorded.dataset.versions()) == 1
    assert settled(unrecorded) == [2, 2]


def open_writers(table: Table, times: int) -> None:
    """Each claim is a manifest more."""
    for _ in range(times):
        for shard in table.shards:
            table.dataset.mem_wal_writer(shard).close()


@pytest.mark.parametrize("at_rest", ["table", "unrecorded"])
def test_garbage_keeps_what_shows_it_while_it_can_not_be_recorded(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, at_rest: str
) -> None:
    """A user commits whenever a record is named, so that it is never stored."""
    table: Table = request.getfixturevalue(at_rest)
    unset(table)
    init(table)
    open_writers(table, 4)

    def name(self: StoredProofs, *arguments: Any) -> None:
        lance.dataset(table.uri).update_config({"user": "busy"})
        named(self, *arguments)

    named, told = StoredProofs.name, list[bool]()
    with monkeypatch.context() as patched:
        patched.setattr(StoredProofs, "name", name)
        for _ in range(3):
            done = CliRunner().invoke(app, ["garbage", table.uri, "--execute", *SHORT])
            assert done.exit_code == 0
            told.append("could not be recorded" in done.stderr)
            open_writers(table, 2)
    assert any(told)
    assert settled(table) == [2, 2]
    for _ in range(2):
        assert run(table, "garbage", "--execute", *SHORT) == 0
    assert len(table.dataset.versions()) == 1
    assert settled(table) == [2, 2]


def write_on(table: Table) -> None:
    """So that the index that there is now knows the shards."""
    for n, shard in enumerate(table.shards):
        table.flush(shard, Put([50 + n], 3))
    assert run(table, "merge") == 0
    open_writers(table, 6)


KEPT = ("--retention", "90d", "--grace", "0s", "--allow-short-retention")


@pytest.mark.parametrize("go_on", [lambda t: open_writers(t, 6), write_on], ids=["claims", "rows"])
def test_garbage_keeps_what_an_older_version_would_need(
    table: Table, go_on: Callable[[Table], None]
) -> None:
    """The record that it names may be one that the latest version does not."""
    unset(table)
    init(table)
    then = table.dataset.version
    go_on(table)
    for _ in range(3):
        assert run(table, "garbage", "--execute", *KEPT) == 0
    table.dataset.checkout_version(then).restore()
    assert settled(table) == [2, 2]
    assert run(table, "read") == run(table, "merge") == run(table, "verify") == 0


def test_garbage_keeps_what_a_record_may_cite_that_it_can_not_read(table: Table) -> None:
    newer = record(table)
    unset(table)
    init(table)
    then = table.dataset.version
    write_on(table)
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 2'))
    folders = [Path(table.uri) / layout.manifest_folder(shard) for shard in table.shards]
    before = [sorted(folder.iterdir()) for folder in folders]
    assert run(table, "garbage", "--execute", *KEPT) == 0
    assert [sorted(folder.iterdir()) for folder in folders] == before
    newer.write_text(newer.read_text().replace('"format": 2', '"format": 1'))
    table.dataset.checkout_version(then).restore()
    assert settled(table) == [2, 2]


def test_what_no_retained_version_shows_is_missing(unrecorded: Table) -> None:
    assert run(unrecorded, "quiesce", "--dry-run") == 0
    assert not list_named(unrecorded.dataset.config())
    unset(unrecorded)
    expire(unrecorded)
    init(unrecorded)
    check_refused(unrecorded)
    assert run(unrecorded, "merge", "--allow-holes") == 0


def restore(table: Table) -> None:
    lance.dataset(table.uri).restore()


def overwrite(table: Table) -> None:
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")


@pytest.mark.parametrize("turn_back", [restore, overwrite])
def test_time_that_may_have_been_turned_back_ends_history(
    unrecorded: Table, turn_back: Callable[[Table], None]
) -> None:
    unset(unrecorded)
    if turn_back is restore:  # under the new index, too
        init(unrecorded)
        assert settled(unrecorded) == [2, 2]
        restore(unrecorded)
        assert settled(unrecorded) == [0, 0]
        unset(unrecorded)
    turn_back(unrecorded)
    init(unrecorded)
    assert settled(unrecorded) == [0, 0]


def test_history_is_of_the_shard_that_there_is_now(unrecorded: Table) -> None:
    unset(unrecorded)
    start_over(unrecorded)
    init(unrecorded)
    for n in range(3):
        unrecorded.flush(unrecorded.shards[0], Put([n], n))
    builders.unlist_generation(unrecorded, unrecorded.shards[0], 1)
    assert settled(unrecorded) == [0]
    # One index later, too.
    unset(unrecorded)
    init(unrecorded)
    assert settled(unrecorded) == [0]


def test_history_needs_a_wal_at_rest(unrecorded: Table) -> None:
    """Else an older row of a key may come after the one that the next spec has elsewhere."""
    shard, other = unrecorded.shards
    put = unrecorded.writer(shard)
    put.put(pa.Table.from_pylist([unrecorded.row(60, 1)], schema=unrecorded.dataset.schema))
    unset(unrecorded)
    init(unrecorded)
    assert settled(unrecorded) == [0, 2]
    unrecorded.flush(other, Put([60], 2))
    put.close()
    assert settled(unrecorded) == [0, 2]
    for entry in (Path(unrecorded.uri) / layout.wal_folder(shard)).iterdir():
        entry.unlink()
    assert settled(unrecorded) == [0, 2]
    assert run(unrecorded, "merge", "--shard", shard) == EXIT_REFUSED


def test_history_needs_the_wal_of_then(tmp_path: Path) -> None:
    """Of a writer that stays open, no manifest tells what it put since its last flush."""
    table = builders.make_table(tmp_path / "t", rows=range(3))
    (shard,) = table.shards
    writer = table.writer(shard, max_memtable_rows=4, max_memtable_batches=2)

    def put(key: int) -> None:
        writer.put(pa.Table.from_pylist([table.row(key, key)], schema=table.dataset.schema))

    while table.stores.shard_manifests.latest(shard).current_generation == 1:
        put(1)
    assert run(table, "maintain", "--execute", *SHORT) == 0
    put(2)
    while writer.memtable_stats()["row_count"] != 1:
        put(2)
    unset(table)
    init(table)
    assert settled(table) == [0]
    writer.close()
    assert settled(table) == [0]
    shutil.rmtree(Path(table.uri, layout.wal_folder(shard)))
    assert settled(table) == [0]


def test_generations_since_the_record_are_missing(table: Table) -> None:
    shard = table.shards[0]
    table.flush(shard, Put([7], 7))
    builders.unlist_generation(table, shard, 3)
    unset(table)
    init(table)
    assert run(table, "merge") == EXIT_REFUSED
    table.flush(shard, Put([8], 8))
    check_refused(table)


def test_what_is_still_listed_is_judged_by_its_age(table: Table) -> None:
    table.flush(table.shards[0], Put([7], 7))
    table.merge_all()
    unset(table)
    init(table)
    assert run(table, "merge") == EXIT_REFUSED
    verified = CliRunner().invoke(app, ["verify", table.uri, "--json"])
    (found,) = json.loads(verified.stdout)["tables"]
    broken = {check["invariant"] for check in found["checks"] if check["ok"] is False}
    assert broken == {1, 3}
    assert run(table, "merge", "--allow-reinitialised") == 0


def test_a_version_from_before_the_record_has_not_the_rows(tmp_path: Path) -> None:
    """Whatever took the generations away although an older version was retained."""
    table = builders.make_table(tmp_path / "t", rows=range(20), indexed=True)
    shard, older = table.shards[0], table.dataset.version
    table.flush(shard, Put([1, 50], 1))
    table.dataset.tags.create("older", older)
    table.merge_all()
    builders.unlist_generation(table, shard, 1)
    assert run(table, "quiesce") == 0
    assert list_named(table.dataset.config())
    unset(table)
    init(table)
    assert run(table, "read") == 0
    assert run(table, "read", "--version", str(older)) == EXIT_REFUSED
    table.dataset.checkout_version("older").restore()
    assert run(table, "read") == EXIT_REFUSED
    unset(table)
    init(table)
    assert run(table, "read") == run(table, "merge") == EXIT_REFUSED


def test_a_restore_between_the_look_and_the_commit_is_noticed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.flush(table.shards[0], Put([9], 9))
    named = lance.LanceDataset.update_config

    def restore_first(dataset: Any, given: Any) -> Any:
        lance.dataset(table.uri).restore()
        return named(dataset, given)

    monkeypatch.setattr(lance.LanceDataset, "update_config", restore_first)
    done = CliRunner().invoke(app, ["quiesce", table.uri, *SHORT, "--json"])
    (found,) = json.loads(done.stdout)["tables"]
    assert (done.exit_code, found["outcome"], found["safe"]) == (EXIT_HELD, "held", False)
    assert {o["kind"] for o in found["in_the_way"]} == {"record"}
    monkeypatch.undo()
    assert run(table, "quiesce", *SHORT) == 0
    # Of the first one only the name is left, which leads nowhere; the next one forgets it.
    assert len(list_named(table.dataset.config())) == 2
    assert len(list((Path(table.uri) / layout.SETTLED).iterdir())) == 2


def start_over(table: Table) -> None:
    for shard in table.shards:
        shutil.rmtree(Path(table.uri) / layout.shard_folder(shard))


def test_a_shard_that_starts_over_is_another_one(table: Table) -> None:
    unset(table)
    shard = table.shards[0]
    start_over(table)
    init(table)
    for n in range(6):
        table.flush(shard, Put([n], n))
    builders.unlist_generation(table, shard, 1)
    found = table.stores.views.table().shards[0]
    assert found.settled_generation == 0
    assert run(table, "merge", "--shard", shard) == EXIT_REFUSED


def test_a_clone_has_the_name_and_not_the_record(table: Table, tmp_path: Path) -> None:
    unset(table)
    init(table)
    clone = lance.dataset(table.uri).shallow_clone(
        str(tmp_path / "clone"), reference=table.dataset.version
    )
    assert list_named(clone.config()) == list_named(table.dataset.config())
    shutil.copytree(Path(table.uri) / layout.MEM_WAL, tmp_path / "clone" / layout.MEM_WAL)
    assert CliRunner().invoke(app, ["read", clone.uri]).exit_code == EXIT_REFUSED
    shutil.copytree(Path(table.uri) / layout.SETTLED, tmp_path / "clone" / layout.SETTLED)
    assert CliRunner().invoke(app, ["read", clone.uri]).exit_code == 0


def test_a_record_that_says_otherwise_proves_nothing(table: Table) -> None:
    unset(table)
    init(table)
    shard, file = table.shards[0], record(table)
    good = json.loads(file.read_bytes())
    expire(table)
    entry = good["shards"][shard]

    def judge(document: Any) -> int:
        file.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return settled(table)[0]

    def judge_entry(**changes: Any) -> int:
        return judge({**good, "shards": {shard: {**entry, **changes}}})

    for document in (b"", b"\xff", [], {**good, "shards": []}, {**good, "format": 2}):
        assert judge(document) == 0
    for version in (-1, None, 1.5):
        assert judge({**good, "version": version}) == judge_entry(manifest_version=version) == 0
    assert judge_entry(generation="2") == judge_entry(generation=True) == 0
    assert judge_entry(manifest_version=2**40) == judge_entry(manifest_digest="x") == 0
    assert judge_entry(generation=1) == 1
    assert judge_entry(generation=9) == judge(good) == 2
    file.unlink()
    assert settled(table) == [0, 0]


NAMES = ["", "../../x", "x" * 10_000, "00000000-0000-4000-8000-000000000000"]


def test_a_name_that_is_none_proves_nothing(table: Table) -> None:
    good = list_named(table.dataset.config())
    unset(table)
    init(table)
    table.dataset.update_config(
        {k: v for name in NAMES for k, v in name_in_config(name, ()).items()}
    )
    expire(table)
    assert settled(table) == [2, 2]
    table.dataset.update_config(name_in_config("", good))
    assert settled(table) == [0, 0]
