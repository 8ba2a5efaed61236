"""Garbage collection on real tables: what goes, what stays, and what each gate guards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.format import codec, layout
from memwal.jobs.garbage.store import cache
from memwal.jobs.garbage.store import versions as retained_versions
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.plan import SnapshotLimits
from tests.support import builders, snapshot_files
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table
from tests.support.fencing import ShardFencing, claim_epoch
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

HOUR = 3600.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return runs.laid_out(tmp_path_factory.mktemp("made") / "t")


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """One shard with three merged generations, and every version still there."""
    return made.copied(tmp_path / "t")


@pytest.fixture
def collectable(table: Table) -> Table:
    """Of which all generations may go."""
    runs.expire(table)
    return table


# ---- the whole way


@pytest.fixture(scope="module", params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def anywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    uri, options = str(tmp_path_factory.mktemp("local") / "t"), {}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        uri, options = f"s3://{server.make_bucket()}/some/table", server.storage_options
    return runs.collectable(uri, options=options, shards=2, generations=2)


def test_a_table_is_emptied_in_passes_and_reads_do_not_change(anywhere: Table) -> None:
    table = anywhere
    table.flush(table.shards[0], Put([500], 1))  # pending: stays
    truth, epochs, before = table.truth(), builders.epochs(table), runs.files(table)

    dry = runs.garbage(table, execute=False, wal=True)
    assert dry.outcome == "done"
    assert (dry.dropped, dry.deleted, dry.bytes_freed) == (0, 0, 0)
    assert list(runs.fates(dry, "generation").values()).count("drop") == 4
    assert runs.files(table) == before
    assert not list(table.stores.objects.list(f"{layout.MAINTENANCE}/lease"))

    manifests = {s: runs.manifest(table, s) for s in table.shards}
    dropped = runs.garbage(table, wal=True)
    assert (dropped.outcome, dropped.dropped, dropped.deleted) == ("done", 4, 0)
    for shard, old in manifests.items():
        kept = tuple(g for g in old.flushed_generations if g.generation > 2)
        new = runs.manifest(table, shard)
        assert new == replace(old, version=old.version + 1, flushed_generations=kept, raw=new.raw)
    assert runs.folders(table) == [1, 2, 3]
    builders.same_rows(table.lsm_rows(), truth, "after the drop")

    kept = {s: sorted({*runs.sentinels(table, s), max(runs.positions(table, s))})
            for s in table.shards}  # fmt: skip
    deleted = runs.garbage(table, wal=True)
    done = Counter(i.kind for i in deleted.items if i.action == "delete")
    assert done["generation"] == 4
    assert done["wal_entry"] > 0
    assert (deleted.dropped, deleted.deleted) == (0, done.total())
    gone = before.keys() - runs.files(table).keys()
    assert deleted.objects_deleted == len(gone)
    assert deleted.bytes_freed == sum(before[path] for path in gone)
    assert all("_gen_" in path or "/wal/" in path for path in gone)
    assert len({i.path for i in deleted.items}) == len(deleted.items)
    assert [runs.folders(table, s) for s in table.shards] == [[3], []]
    assert {s: runs.positions(table, s) for s in table.shards} == kept
    builders.same_rows(table.lsm_rows(), truth, "after the deletes")

    stored = runs.files(table)
    idle = runs.garbage(table, wal=True)
    assert idle.outcome == "nothing_to_do"
    assert runs.files(table) == stored
    assert builders.epochs(table) == epochs
    builders.same_rows(table.lsm_rows(), truth, "at the end")
    table.flush(table.shards[1], Put([600], 1))
    table.merge_all()
    builders.same_rows(table.base_rows(), table.truth(), "the table goes on")


def test_versions_are_expired_first_when_asked(table: Table) -> None:
    dry = runs.garbage(table, execute=False, retention=0)
    assert any("would be expired first" in text for text in dry.warnings)
    versions = table.versions()
    assert (dry.outcome, runs.listed(table)) == ("done", [1, 2, 3])
    assert runs.actions(runs.garbage(table, execute=False)) == {"keep"}
    done = runs.garbage(table, retention=0)
    assert (done.dropped, done.versions_expired) == (3, len(versions) - 1)
    drops = {item.path for item in dry.items if item.action == "drop"}
    assert {item.path for item in done.items if item.action == "drop"} == drops
    assert len(drops) == 3
    assert done.version_bytes_freed > 0
    assert table.versions() == [done.version_after]


# ---- gate 1: time travel


def check_held(table: Table, reason: str) -> None:
    report = runs.garbage(table, retention=0)
    assert runs.actions(report) == {"keep"}
    assert any(reason in text for text in runs.reasons(report)), runs.reasons(report)
    assert runs.listed(table) == [1, 2, 3]
    assert runs.folders(table) == [1, 2, 3]


def check_released(table: Table) -> None:
    runs.collect(table, retention=0)
    assert runs.listed(table) == []
    assert runs.folders(table) == []


def before_merge(table: Table) -> int:
    """The last version that has merged nothing, though it has a MemWAL index."""
    return max(v for v in table.versions() if not table.progress(v))


def test_a_tag_holds(table: Table) -> None:
    version = before_merge(table)
    table.dataset.tags.create("kept", version)
    check_held(table, f"version {version} is retained")
    builders.same_rows(table.lsm_rows(version), table.truth(), "time travel")
    before = len(list(table.stores.objects.list(f"{layout.MAINTENANCE}/lease")))
    check_held(table, f"version {version} is retained")  # nothing to expire, so no lease either
    assert len(list(table.stores.objects.list(f"{layout.MAINTENANCE}/lease"))) == before
    table.dataset.tags.delete("kept")
    check_released(table)


def test_a_branch_holds(table: Table) -> None:
    branch = "dev/x/y"
    version = before_merge(table)
    table.at(version).create_branch(branch)
    # The version that it starts from is held as well, and comes first; the branch has its own.
    check_held(table, "is retained")
    evidence = runs.evidence_of(table).read(
        {}, limits=runs.GarbageLimits(), now_nanos=0, verified=True
    )
    assert [v.name for v in evidence.versions if not v.on_main] == [
        f"version {version} of branch {branch}"
    ]
    table.dataset.branches.delete(branch)
    check_released(table)


def test_a_branch_that_can_not_be_found_holds(collectable: Table) -> None:
    """Its generations are Lance tables below `tree/` too, and no branches."""
    table = collectable
    table.dataset.create_branch("dev")
    own = Path(table.uri, "tree/dev") / layout.shard_folder(table.shards[0]) / "0badcafe_gen_1"
    (own / "_versions").mkdir(parents=True)
    (own / "_versions/1.manifest").write_bytes(b"whatever it is")
    assert runs.actions(runs.garbage(table, execute=False)) == {"drop"}
    shutil.rmtree(Path(table.uri, "tree"))
    report = runs.garbage(table)
    assert (report.outcome, report.exit_code) == ("failed", 8)
    assert "branch 'dev' has no version" in (report.error or "")
    assert runs.actions(report) == {"keep"}


def test_a_detached_version_holds(table: Table) -> None:
    old = table.at(before_merge(table))
    nothing = lance.LanceOperation.Append([])
    lance.LanceDataset.commit(old, nothing, read_version=old.version, detached=True)
    runs.expire(table)
    assert len(table.versions()) == 2
    check_held(table, "detached version")
    (path,) = [p for p in runs.files(table, "_versions") if "/d" in p]
    table.stores.objects.delete([path])
    check_released(table)


def test_an_unreadable_version_holds_everything(collectable: Table) -> None:
    table = collectable
    runs.garbage(table, execute=False)
    stored = max(Path(table.uri, "_versions").glob("*.manifest"))
    data, older = stored.read_bytes(), layout.table_manifest_names(2)[0]
    damages = {"torn": (older, data[:-7]), "empty": (older, b""), "of another": (older, data)}
    for what, (name, found) in (damages | {"renamed": ("2-staged.manifest", data)}).items():
        stored.with_name(name).write_bytes(found)
        before = runs.files(table)
        report = runs.garbage(table)
        assert (report.outcome, report.exit_code) == ("failed", 8), what
        assert runs.actions(report) == {"keep"}
        assert runs.files(table) == before
        stored.with_name(name).unlink()
    assert runs.garbage(table).dropped == 3


# ---- gate 2: indexes


def test_an_index_that_lags_holds(collectable: Table) -> None:
    table = collectable
    shard = table.shards[0]
    table.flush(shard, Put([900], 1))
    table.merge_all()
    runs.expire(table)
    report = runs.garbage(table)
    number = table.progress()[shard]
    assert number == 4
    held = {
        i.path[-1]: i.reason for i in report.items if i.kind == "generation" and i.action == "keep"
    }
    assert held == {"4": "index 'key_idx' has caught up to 3 only"}
    assert runs.listed(table) == [4]
    runs.catch_up(table)
    runs.expire(table)
    runs.garbage(table)
    assert runs.listed(table) == []


# ---- grace


def test_nothing_is_deleted_within_the_grace(collectable: Table) -> None:
    table = collectable
    runs.age(table, 2 * HOUR)
    assert runs.garbage(table, grace=HOUR).dropped == 3
    report = runs.garbage(table, grace=HOUR)
    assert report.outcome == "nothing_to_do"
    assert all("named it when the grace began" in r for r in runs.reasons(report))
    runs.age(table, HOUR / 2)
    assert runs.garbage(table, grace=HOUR).outcome == "nothing_to_do"
    runs.age(table, HOUR)
    assert runs.garbage(table, grace=HOUR).deleted == 3


# ---- strangers


def test_strangers_are_left_alone(collectable: Table) -> None:
    """Also what looks like a lost snapshot but for its columns, its folder's name, or company."""
    table, root = collectable, Path(collectable.uri)
    shard = layout.shard_folder(table.shards[0])
    names = ["notes", "0badcafe_gen_01", "0BADCAFE_gen_1", "x_gen_1", "0badcafe_gen_1.tmp"]
    marks = "shard_id flushed_generations replay_after_wal_entry_position"
    another, accompanied = (f"_indices/0d9f7a2e-3c4b-4a5d-8e6f-7a8b9c0d1e2{n}" for n in "ab")
    strangers = {
        **{f"{shard}/{name}/file": "x" for name in names},
        "_mem_wal/not-a-shard/0badcafe_gen_1/file": "x",
        f"{shard}/0badcafe_gen_2": "a file, no folder",
        f"{another}/index.lance": "shard_id and the columns of another index",
        "_indices/no-uuid/index.lance": marks,
        f"{accompanied}/index.lance": marks,
        f"{accompanied}/more.lance": "",
    }
    for name, text in strangers.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    runs.age(table, 10 * HOUR)
    runs.collect(table, wal=True)
    assert strangers.keys() <= runs.files(table).keys()
    report = runs.garbage(table)
    kept = {i.path.rsplit("/", 1)[-1] for i in report.items if "left alone" in i.reason}
    assert kept == {*names, "0badcafe_gen_2"}
    assert any("not-a-shard" in w for w in report.warnings)


# ---- the WAL


def test_a_stalled_writer_is_still_refused_when_the_wal_was_collected(
    collectable: Table,
) -> None:
    """It stalls after a put, and another one claims its shard."""
    table, schema = collectable, collectable.dataset.schema
    stalled = table.writer(table.shards[0])
    stalled.put(pa.Table.from_pylist([table.row(70, 1)], schema=schema))
    table.flush(table.shards[0], *(Put([key], 1) for key in (71, 72, 73)))
    table.merge_all()
    runs.catch_up(table)
    runs.expire(table)
    runs.collect(table, wal=True)
    before = runs.positions(table)
    highest = max(before)
    assert set(before) == {*runs.sentinels(table), highest}
    row = pa.Table.from_pylist([table.row(99, 1)], schema=schema)
    with pytest.raises(OSError, match=r"(?i)fenced"):
        stalled.put(row)
    with pytest.raises(OSError, match=r"(?i)fenced"):
        stalled.close()
    assert runs.positions(table) == before
    with table.writer(table.shards[0]) as third:
        third.put(row)
        assert runs.positions(table) == [*before, highest + 1, highest + 2]
        assert runs.sentinels(table)[-1] == highest + 1
    assert runs.manifest(table).replay_after_wal_entry_position == highest + 2
    table.merge_all()
    keys = set(table.base_rows())
    assert {table.kind.key(k) for k in (70, 71, 72, 73, 99)} <= keys


def test_no_hole_is_left_above_the_last_position_seen(tmp_path: Path) -> None:
    """pylance takes a hole right after the last position seen for the tip of the WAL."""
    table = runs.collectable(tmp_path / "t", generations=5)
    shard = table.shards[0]
    runs.collect(table)
    current = runs.manifest(table)
    highest = current.replay_after_wal_entry_position
    behind = replace(current, version=current.version + 1, wal_entry_position_last_seen=4)
    table.stores.objects.put_if_absent(
        layout.shard_manifest_path(shard, behind.version), codec.encode_shard_manifest(behind)
    )
    assert 4 in runs.sentinels(table)
    above = [p for p in runs.positions(table) if p > 4]
    runs.garbage(table, wal=True)
    assert [p for p in runs.positions(table) if p > 4] == above
    with table.writer(shard):
        assert runs.sentinels(table)[-1] == highest + 1


@pytest.mark.parametrize("fenced", [False, True], ids=["before its sentinel", "after it"])
def test_entries_that_lead_an_unfinished_claim_to_a_newer_sentinel_stay(
    collectable: Table, fenced: bool
) -> None:
    """A writer that stalls inside its claim replays these entries when it wakes.

    Its claim is all that it has written: the manifest with its epoch, and at most its sentinel.
    """
    table, shard = collectable, collectable.shards[0]
    if fenced:
        stalled = ShardFencing(table.stores.objects).claim(shard).manifest
    else:
        stalled = claim_epoch(table.stores.shard_manifests, shard)
    first = stalled.replay_after_wal_entry_position + 1
    table.flush(shard, Put([600], 1))
    table.flush(shard, Put([601], 2))
    assert runs.manifest(table).writer_epoch == stalled.writer_epoch + 2
    table.merge_all()
    runs.catch_up(table)
    runs.expire(table)
    runs.collect(table, wal=True)
    newer = next(
        p
        for p, info in table.stores.wal.list_entries(shard)
        if table.stores.wal.read(shard, p, info).writer_epoch > stalled.writer_epoch
    )
    assert newer in runs.sentinels(table)
    assert set(runs.positions(table)) >= set(range(first, newer + 1))
    report = runs.garbage(table, wal=True, execute=False)
    assert any("leads the claim of epoch" in why for why in runs.reasons(report))


# ---- broken and sealed shards


def torn(path: Path, table: Table) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def forged(path: Path, table: Table) -> None:
    """A manifest that wants something else deleted."""
    data = path.read_bytes()
    name = runs.manifest(table, table.shards[0]).flushed_generations[0].path.encode()
    path.write_bytes(data.replace(name, b"../../data".ljust(len(name), b"x")))


@pytest.mark.parametrize("damage", [torn, forged], ids=["torn", "forged"])
def test_a_broken_shard_is_left_alone_and_the_others_are_served(
    tmp_path: Path, damage: Callable[[Path, Table], None]
) -> None:
    table = runs.collectable(tmp_path / "t", shards=2)
    broken, healthy = table.shards
    path = tmp_path / "t" / layout.shard_manifest_path(broken, runs.manifest(table, broken).version)
    damage(path, table)
    below = layout.shard_folder(broken)
    before = runs.files(table, below)
    report = runs.garbage(table, wal=True)
    assert (report.outcome, report.exit_code, report.dropped) == ("partial", 6, 3)
    assert runs.garbage(table, wal=True).deleted >= 3
    assert runs.folders(table, healthy) == []
    assert runs.files(table, below) == before
    assert broken in (report.error or "")
    alone = runs.garbage(table, wal=True)
    assert (alone.outcome, alone.exit_code) == ("failed", 8)
    assert {i.action for i in alone.items if i.shard_id == broken} == {"keep"}


# ---- orphans


def test_shards_without_a_mem_wal_index_go_when_adopted(table: Table) -> None:
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    before = runs.files(table)
    for adopt, text in ((False, "--adopt-orphans"), (True, "is retained and has the MemWAL index")):
        report = runs.garbage(table, adopt_orphans=adopt)
        assert (report.outcome, report.exit_code) == ("refused", 5)
        assert text in (report.error or "")
    listed = runs.garbage(table, adopt_orphans=True, retention=0, execute=False)
    assert (listed.outcome, runs.actions(listed)) == ("done", {"delete"})
    assert runs.files(table) == before
    done = runs.garbage(table, adopt_orphans=True, retention=0)
    assert (done.outcome, done.deleted) == ("done", 1)
    assert runs.files(table, layout.MEM_WAL) == {}
    (again,) = runs.run(table, adopt_orphans=True).tables
    assert (again.outcome, again.exit_code) == ("nothing_to_do", 0), "a plain table by now"
    assert len(table.dataset.to_table()) > 0


def test_an_external_snapshot_that_lost_its_entry_goes(table: Table) -> None:
    stores = table.stores

    def refresh() -> None:
        snapshot_files.refresh(stores, limits=SnapshotLimits(inline_shards_max=0))

    def stored() -> set[str]:
        return {p for p in runs.files(table, "_indices") if p.endswith("/index.lance")}

    refresh()
    (first,) = stored()
    report = runs.garbage(table)
    assert runs.found(report, first).action == "keep"
    assert "names it" in runs.found(report, first).reason
    table.flush(table.shards[0], Put([77], 1))
    table.merge_all()
    refresh()
    (second,) = stored() - {first}
    assert runs.found(runs.garbage(table), first).action == "keep"  # an older version names it
    report = runs.garbage(table, retention=0, grace=HOUR)
    assert {runs.found(report, p).action for p in stored()} == {"keep"}
    runs.garbage(table)
    assert stored() == {second}


# ---- the cache


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_versions, "_CACHED_VERSIONS_MIN", 1)


CACHE = f"{layout.MAINTENANCE}/cache/retained_versions.json"


@pytest.mark.usefixtures("cached")
def test_the_cache_is_written_by_runs_that_act_and_saves_reads(table: Table) -> None:
    path = Path(table.uri) / CACHE
    runs.garbage(table, execute=False)
    assert not path.exists()
    full = runs.run(table).requests["get"]
    written = path.read_bytes()
    assert full - runs.run(table).requests["get"] == len(table.versions()) - 1
    for torn in (b"", b"[]", b'{"format": 1, "entries": []}', b"\xff"):
        path.write_bytes(torn)
        assert runs.garbage(table).outcome == "nothing_to_do"
        assert path.read_bytes() == written


def rewritten_cache(table: Table, merged: int) -> None:
    """A cache that is whole, and lies."""
    path = Path(table.uri) / CACHE
    document = json.loads(path.read_text())
    for _, version in document["body"]:
        if "merged" in version:
            version["merged"] = dict.fromkeys(table.shards, merged)
    document["sha256"] = cache.make_digest(document["body"])
    path.write_text(json.dumps(document))


@pytest.mark.usefixtures("cached")
def test_a_forged_cache_deletes_nothing(table: Table) -> None:
    runs.garbage(table)
    path = Path(table.uri) / CACHE
    digest = json.loads(path.read_text())["sha256"]
    rewritten_cache(table, 99)
    assert runs.actions(runs.garbage(table, execute=False)) == {"drop"}  # it is believed so far
    forged = path.read_text()
    path.write_text(json.dumps({**json.loads(forged), "sha256": digest}))
    assert runs.actions(runs.garbage(table, execute=False)) == {"keep"}  # this one is not
    path.write_text(forged)
    report = runs.garbage(table)
    assert (report.outcome, runs.actions(report)) == ("nothing_to_do", {"keep"})
    assert runs.listed(table) == [1, 2, 3]


@pytest.mark.usefixtures("cached")
def test_a_cache_that_is_too_large_is_passed_over(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.stores.views.table()  # the process remembers that no row hides below the progress
    table.stores.prove_store()  # and that the store can be trusted
    full = runs.run(table).requests["get"]
    assert runs.run(table).requests["get"] < full
    size = (Path(table.uri) / CACHE).stat().st_size
    monkeypatch.setattr(cache, "BYTES_MAX", size - 1)
    found = runs.run(table)
    assert (found.outcome, found.requests["get"]) == ("nothing_to_do", full)


@pytest.mark.usefixtures("cached")
def test_a_table_made_again_at_the_address_is_read_anew(tmp_path: Path) -> None:
    """What the cache says of the old table's versions, which has all merged, is not taken."""
    table = runs.collectable(tmp_path / "t")
    runs.garbage(table)
    kept = (tmp_path / "t" / CACHE).read_bytes()
    shutil.rmtree(tmp_path / "t")
    again = runs.laid_out(tmp_path / "t")
    (tmp_path / "t/_maintenance/cache").mkdir(parents=True)
    (tmp_path / "t" / CACHE).write_bytes(kept)
    assert runs.actions(runs.garbage(again)) == {"keep"}


# ---- the command


def invoke(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["garbage", *arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_the_command_lists_by_default_and_acts_when_told(collectable: Table) -> None:
    table = collectable
    code, document = invoke(table.uri)
    assert (code, document["job"], document["outcome"]) == (0, "garbage", "done")
    (found,) = document["tables"]
    assert {"items", "dropped", "deleted", "bytes_freed"} <= found.keys()
    assert found["dropped"] == 0
    assert {"kind", "shard_id", "path", "bytes", "action", "reason"} <= found["items"][0].keys()
    assert runs.listed(table) == [1, 2, 3]
    assert invoke(table.uri, "--execute", "--dry-run")[0] == 0
    assert runs.listed(table) == [1, 2, 3]
    assert invoke(table.uri, "--execute")[1]["tables"][0]["dropped"] == 3
    assert runs.listed(table) == []
    shown = CliRunner().invoke(app, ["garbage", table.uri, "--wal"])
    assert "named it when the grace began" in shown.stdout or "older than the grace" in shown.stdout
    assert "position 1" in shown.stdout


def test_exit_codes(tmp_path: Path) -> None:
    assert invoke(str(tmp_path), "--grace", "soon")[0] == 2
    for short in (["--grace", "9m"], ["--retention", "23h"]):
        assert invoke(str(tmp_path), *short)[0] == 5


def test_a_lease_that_is_held_stops_a_run_that_would_act(collectable: Table) -> None:
    table = collectable
    claim = table.stores.leases.acquire("merge")
    assert invoke(table.uri)[0] == 0
    assert invoke(table.uri, "--execute")[0] == 4
    assert runs.listed(table) == [1, 2, 3]
    assert invoke(table.uri, "--execute", "--no-lease")[0] == 0
    table.stores.leases.release(claim)


@pytest.mark.spark
@pytest.mark.nightly
def test_deletes_fan_out_over_spark(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t", shards=2)
    runs.garbage(table)
    report = runs.run(table, engine="spark", unit_objects_max=10)
    assert report.engine is not None
    assert report.engine.name == "spark"
    assert (report.outcome, report.tables[0].deleted) == ("done", 6)  # type: ignore[attr-defined]
    assert [runs.folders(table, s) for s in table.shards] == [[], []]


def test_no_version_is_expired_while_a_shard_was_never_merged(tmp_path: Path) -> None:
    """An expired version would be the only proof that the shard's rows are not dead ones."""
    table = builders.make_table(tmp_path / "t", rows=range(5), shards=2)
    late, early = table.shards
    table.flush(late, Put([1], 1))
    table.flush(early, Put([2], 2))
    assert table.merger().run(early, MergeRequest()).outcome == "done"
    versions = table.versions()
    found = runs.garbage(table, retention=0.0)
    assert table.versions() == versions
    assert any(late in warning and "never merged" in warning for warning in found.warnings)
    assert table.merger().run(late, MergeRequest()).outcome == "done"
    runs.garbage(table, retention=0.0)
    assert len(table.versions()) < len(versions)
    table.flush(late, Put([3], 3))
    assert table.merger().run(late, MergeRequest()).outcome == "done"
