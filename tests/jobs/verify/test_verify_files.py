"""What `memwal verify` finds in files of base, generations and WALs; and what reads say of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.errors import Corruption, Missing, Refused, StoreUnavailable
from memwal.format import layout
from memwal.jobs.verify.checks import find_newer_manifests, list_checks, make_checks
from memwal.jobs.verify.plan import Hint, check_hints
from memwal.jobs.verify.report import report_checks
from memwal.jobs.verify.store import StoredFacts
from memwal.ports import Objects
from memwal.read.plan.request import Moment
from memwal.read.store import faults
from memwal.run.progress import SILENT
from memwal.run.stores import Stores
from memwal.store.tables.lance_calls import Says, says
from memwal.testing.objects import Fault, FaultyObjects
from tests.support import wal_tables
from tests.support.builders import Delete, Put, Table, make_table, unlist_generation

pytestmark = pytest.mark.integration


def broken(table: Table, *, deep: bool = False) -> dict[str, str]:
    """The broken checks of a table, with what they say."""
    try:
        report = memwal.open_table(table.uri, engine="local").verify(deep=deep)
    except Corruption as error:
        report = error.report
    return {check.name: check.detail for check in report.checks if check.ok is False}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two fragments with deletions of one and of two rows, and two generations to be merged."""
    table = make_table(tmp_path / "t", rows=range(20), max_rows_per_file=10)
    table.flush(table.shards[0], Put([30], 1), Delete([1, 11, 12]))
    table.merge_all()
    table.flush(table.shards[0], Put([31], 2), Put([31, 32], 3))
    table.flush(table.shards[0], Put([33], 4))
    assert broken(table) == {}
    return table


def files(table: Table, pattern: str) -> list[Path]:
    return sorted(Path(table.uri).glob(pattern))


def test_a_deletion_file_in_place_of_another(table: Table) -> None:
    one, two = files(table, "_deletions/*")
    shutil.copy(one, two)
    found = broken(table)
    assert list(found) == ["base table's files"]
    assert "deletion vector length does not match" in found["base table's files"]


def test_a_deletion_file_that_is_gone(table: Table) -> None:
    files(table, "_deletions/*")[0].unlink()
    assert list(broken(table)) == ["base table's files"]
    with pytest.raises(Corruption, match=r"the latest version needs it.*MW-F07"):
        memwal.open_table(table.uri).read().read_all()


def test_a_data_file_that_is_cut_is_corruption_for_reads_too(table: Table) -> None:
    for file in files(table, "data/*"):
        file.write_bytes(file.read_bytes()[:300])
    assert list(broken(table)) == ["base table's files"]
    with pytest.raises(Corruption, match="MW-F01"):
        memwal.open_table(table.uri).read().read_all()


def test_a_file_that_only_a_checkpoint_needs(table: Table) -> None:
    memwal.open_table(table.uri, engine="local").checkpoint("kept")
    kept = {file.name for file in files(table, "data/*")}
    table.dataset.optimize.compact_files()
    assert broken(table) == {}
    now = {f.path for part in table.dataset.get_fragments() for f in part.data_files()}
    gone = next(file for file in files(table, "data/*") if file.name in kept - now)
    gone.unlink()
    assert gone.name in broken(table)["base table's files"]


def test_the_version_of_a_checkpoint(table: Table) -> None:
    memwal.open_table(table.uri, engine="local").checkpoint("kept")
    table.dataset.delete("k = 5")
    files(table, "_versions/*.manifest")[1].unlink()
    assert "that of checkpoint 'kept'" in broken(table)["base table's files"]


def test_a_generation_that_only_a_checkpoint_lists(table: Table) -> None:
    memwal.open_table(table.uri, engine="local").checkpoint("kept")
    unlist_generation(table, table.shards[0], 3)
    assert list(broken(table)) == ["generations contiguous"]
    files(table, "_mem_wal/*/*_gen_3/data/*")[0].unlink()
    assert "checkpoint 'kept' needs it" in broken(table)["checkpoints"]


@pytest.mark.parametrize("data", [b"", b'{"branch": null', b'{"branch": null, "version": 1}'])
def test_a_tag_of_a_checkpoint_that_does_not_name_its_version(table: Table, data: bytes) -> None:
    memwal.open_table(table.uri, engine="local").checkpoint("kept")
    [tag] = files(table, "_refs/tags/*")
    tag.write_bytes(data)
    assert "'kept' has no tag that names its version" in broken(table)["checkpoints"]


@pytest.mark.parametrize("branch", [None, "dev"])
def test_a_tag_of_a_version_that_is_gone(table: Table, branch: str | None) -> None:
    dataset = table.dataset.create_branch(branch) if branch else table.dataset
    dataset.delete("k = 5")
    dataset.tags.create("old", (branch, dataset.version))
    dataset.delete("k = 6")
    assert broken(table) == {}
    [tag] = files(table, "_refs/tags/*")
    if branch is None:  # as an older Lance wrote it
        tag.write_text(json.dumps({"version": dataset.version - 1, "manifestSize": 9}))
        assert broken(table) == {}
    # The newest has the lowest name.
    files(table, f"{'tree/dev/' if branch else ''}_versions/*.manifest")[1].unlink()
    assert "which is not in" in broken(table)["tags"]
    for damaged in (b"{", b"[]"):
        tag.write_bytes(damaged)
        assert "can't be read" in broken(table)["tags"]


@pytest.mark.parametrize("pattern", ["data/*", "_indices/*/*", "_mem_wal/*/*_gen_2/data/*"])
def test_what_is_garbled_at_its_full_length(table: Table, pattern: str) -> None:
    table.dataset.create_scalar_index("k", "BTREE")
    report = memwal.open_table(table.uri, engine="local").verify(deep=True)
    [pages] = (check for check in report.checks if check.name == "pages")
    assert pages.ok and report.read_bytes == sum(
        file.stat().st_size
        for kind in ("data/*", "_indices/*/*.lance", "_mem_wal/*/*_gen_*/data/*")
        for file in files(table, kind)
    )
    garbled = files(table, pattern)[0]
    data = garbled.read_bytes()
    half = len(data) // 2
    garbled.write_bytes(Random(1).randbytes(half) + data[half:])
    assert garbled.name in broken(table, deep=True)["pages"]
    if pattern == "data/*":
        assert broken(table) == {}


@pytest.mark.parametrize("merged", [True, False])
def test_a_shard_without_any_manifest(tmp_path: Path, merged: bool) -> None:
    """It is the table's only one, so that a view has none."""
    table = make_table(tmp_path / "t", rows=range(5))
    table.flush(table.shards[0], Put([30], 1))
    if merged:
        table.merge_all()
    for file in files(table, "_mem_wal/*/manifest/*"):
        file.unlink()
    found = broken(table)
    assert set(found) <= {"a manifest for each shard", "shard manifests"}
    assert table.shards[0] in str(found)


def test_a_store_that_is_away_is_no_damage(table: Table) -> None:
    """Whichever request it does not answer: no check fails, and the run does."""
    memwal.open_table(table.uri, engine="local").checkpoint("kept")
    view = table.stores.views.table()
    objects = FaultyObjects(table.stores.objects)
    make_checks(list_checks(StoredFacts(stores_over(table, objects), view)), SILENT)
    for operation, path in sorted(set(objects.calls)):
        away = Fault(operation=operation, path=path, nth=None, error=StoreUnavailable("away"))
        stores = stores_over(table, FaultyObjects(table.stores.objects, away))
        checks = make_checks(list_checks(StoredFacts(stores, view)), SILENT)
        assert not [check for check in checks if check.ok is False], (operation, path)
        if any(check.error for check in checks):
            report = report_checks("t", 1, checks, ())
            assert (report.exit_code, report.error) == (1, "away")


def test_an_older_version_under_the_newest_name(table: Table) -> None:
    newest, before = files(table, "_versions/*.manifest")[:2]
    shutil.copy(before, newest)
    assert int(lance.dataset(table.uri).version) == int(layout.U64_MAX - int(before.stem))
    assert "holds table version" in broken(table)["newest version"]


def test_a_deletion_file_that_is_empty(table: Table) -> None:
    files(table, "_deletions/*")[0].write_bytes(b"")
    assert list(broken(table)) == ["base table's files"]
    with pytest.raises(Corruption, match="MW-F01"):
        memwal.open_table(table.uri).read().read_all()


def test_a_deletion_file_of_a_generation_in_place_of_another(table: Table) -> None:
    """Where several puts have a key, the older rows are deleted in the generation."""
    [one] = files(table, "_mem_wal/*/*_gen_2/_deletions/*")
    shutil.copy(files(table, "_deletions/*")[-1], one)
    assert f"{one.name}: unknown cookie" in broken(table)["listed generations"]


def test_wal_entries_out_of_order(table: Table) -> None:
    """A read with the WAL refuses them."""
    shard = table.shards[0]
    wal_tables.abandon(table, shard, Put([40], 5), Put([41], 6))
    assert broken(table) == {}
    highest = max(position for position, _ in table.stores.wal.list_entries(shard))
    shutil.copy(
        wal_tables.entry_file(table, shard, 1), wal_tables.entry_file(table, shard, highest)
    )
    with pytest.raises(Corruption, match="may follow"):
        memwal.open_table(table.uri).read(with_wal=True).read_all()
    assert "may follow" in broken(table)["WAL continuous above the replay position"]


def test_a_wal_entry_in_place_of_one_that_is_flushed(table: Table) -> None:
    """No read looks at it there; and what it was exchanged for is passed over."""
    shard = table.shards[0]
    wal_tables.abandon(table, shard, Put([40], 5))
    highest = max(position for position, _ in table.stores.wal.list_entries(shard))
    one, two = (wal_tables.entry_file(table, shard, position) for position in (1, highest))
    one_data, two_data = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_data)
    two.write_bytes(one_data)
    found = broken(table)["WAL continuous above the replay position"]
    assert "position 1 is covered, and generation 4 is not flushed" in found


def test_a_schema_that_lance_panics_over(table: Table) -> None:
    newest = files(table, "_versions/*.manifest")[0]
    newest.write_bytes(newest.read_bytes().replace(b"int64", b"ynt64"))
    opened = memwal.open_table(table.uri, engine="local")
    for look in (opened.verify, opened.read, lambda: opened.read(key={"k": 1})):
        with pytest.raises(Corruption, match=r"can't be opened.*ynt64.*MW-F01"):
            look()


def stores_over(table: Table, objects: Objects) -> Stores:
    """The stores of a table, whose objects are read through these."""
    stores = replace(table.stores)
    vars(stores)["objects"] = objects
    return stores


def test_a_writer_that_flushes_meanwhile_is_no_damage(table: Table) -> None:
    """A view is older than the hints that are read after it."""
    stores = table.stores
    view = stores.views.table()
    facts = StoredFacts(stores, view)
    assert all(facts.read_wal(shard) for shard in table.shards)
    table.flush(table.shards[0], Put([50], 7))
    table.merge_all()
    hints = facts.hints
    assert len(hints) == 2 and check_hints(hints).ok
    assert facts.has_moved(view.shards[0].manifest)
    newer = find_newer_manifests(facts, hints, {})
    assert newer == {}
    assert check_hints([replace(hint, newest=hint.newest - 1) for hint in hints]).ok is False
    assert not check_hints([Hint(path="x", shard_id=None, found=None, newest=1)]).ok


def test_a_wal_entry_that_a_listing_leaves_out_is_no_damage(table: Table) -> None:
    """As one does that a live writer puts later ones under."""
    shard, stores = table.shards[0], table.stores
    wal_tables.abandon(table, shard, Put([40], 5), Put([41], 6))
    highest = max(position for position, _ in stores.wal.list_entries(shard))
    file = wal_tables.entry_file(table, shard, highest - 1)
    aside = file.rename(file.with_suffix(".aside"))
    late = Fault(operation="exists", path="*/wal/*", hook=lambda: shutil.move(aside, file))
    over = stores_over(table, FaultyObjects(stores.objects, late))
    found = StoredFacts(over, stores.views.table()).read_wal(shard)
    assert {highest - 1, highest} <= {*found.positions}


@pytest.mark.parametrize(
    ("text", "is_damage"),
    [
        ("External error: Encountered corrupt file x.lance: deletion vector length", True),
        ("LanceError(IO): Generic memory error: Invalid range 0..9 for object of size 2", True),
        (
            "Invalid user input: Flat buffer has 0 bytes, expected 32, "
            "/home/runner/work/lance/lance/rust/lance-encoding/src/encodings/fixed.rs:83:13",
            True,
        ),
        ("External error: Lance reader producer terminated before end of stream", True),
        (
            "Schema error: Field 'k' references parent id -5, which must appear earlier "
            "in the protobuf field list",
            True,
        ),
        ("Invalid user input: column x not found, /rust/lance/src/dataset/scanner.rs:9:1", False),
        ("Failed to get index statistics for index i: expected `:` at line 1 column 256", True),
        ("Invalid user input: not JSON: expected value at line 1 column 1", False),
        ("SQL parser error: Expected: an expression, found: EOF at Line: 1, Column: 4", False),
        ("Task was aborted", True),
        ('External error: task 1153 panicked with message "called `Option::unwrap()`"', True),
        ("LanceError(IO): Generic S3 error: error sending request for url (http://x)", False),
    ],
)
def test_what_lance_says_of_damage(text: str, is_damage: bool) -> None:
    assert says(OSError(text), Says.DAMAGED) is is_damage


def test_what_is_collected_while_it_is_read_is_no_damage() -> None:
    """There is a later version then, and a read of that succeeds."""

    def fail() -> Iterator[pa.RecordBatch]:
        raise Missing("data/x.lance does not exist")
        yield

    with pytest.raises(StoreUnavailable, match="read again"):
        list(faults.report_gone(fail(), Moment(), lambda: False))
    with pytest.raises(Corruption, match="MW-F07"):
        list(faults.report_gone(fail(), Moment(), lambda: True))
    with pytest.raises(Refused, match="MW-H02"):
        list(faults.report_gone(fail(), Moment(version=3), lambda: False))


def test_a_deep_look_finds_keys_that_the_base_holds_twice(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "utf8+int32", rows=range(9), doubles=[3, 4])
    found = broken(table, deep=True)
    assert list(found) == ["one row a key in the base"]
    assert "2 keys more than once: userId=" in found["one row a key in the base"]
    assert not broken(table)
