"""Tables that Lance, or a person, copied: with progress that is not of the shards beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.config import ResolvedTable, Settings
from memwal.errors import LeaseHeld, Refused
from memwal.jobs.init import store as init_store
from memwal.jobs.init.job import InitOptions, run_init
from memwal.jobs.init.plan import FoundTable, InitTableReport, Step, plan_steps
from memwal.jobs.init.request import InitRequest
from memwal.jobs.merge.apply import RefreshWatch, ShardMerger
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from memwal.run.reports import take_report
from memwal.run.stores import open_stores
from memwal.store.shards.inherited import InheritedProgress
from tests.support.lancedb_process import lancedb_client
from tests.support.progress import Quiet
from tests.support.sampling import grid
from tests.support.stopping import Stop, Stopper

pytestmark = pytest.mark.integration

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("n", pa.int64()),
    ]
)
SHARD = ShardId("11111111-2222-4333-8444-555555555555")
OTHER = ShardId("11111111-2222-4333-8444-666666666666")
ERASE = ("garbage", "--execute", "--grace", "0s", "--retention", "0s", "--allow-short-retention")

Copy = Callable[[Path, Path], Path]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "n": [i * 10 for i in ids]}, schema=SCHEMA)


def put(path: Path, *ids: int, shard: str = SHARD) -> None:
    """Each row in a generation of its own."""
    for i in ids:
        with lance.dataset(path).mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
            writer.put(rows(i))


def memwal(path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    command, *options = arguments
    done = CliRunner().invoke(app, [command, str(path), *options, "--json"], catch_exceptions=False)
    assert done.exit_code == code, (arguments, done.output)
    tables = json.loads(done.stdout)["tables"]
    return tables[0] if tables else {}


def read(path: Path, *options: str) -> set[int]:
    return {row["id"] for row in memwal(path, "read", *options)["rows"]}


def base(path: Path) -> set[int]:
    return set(lance.dataset(path).to_table()["id"].to_pylist())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "source.lance"
    lance.write_dataset(rows(0), path)
    lance.dataset(path).initialize_mem_wal(unsharded=True)
    put(path, 1, 2, 3)
    memwal(path, "merge")
    return path


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """One row in the base, and three generations that are merged."""
    return Path(shutil.copytree(made, tmp_path / "source.lance"))


def deep_clone(source: Path, target: Path) -> Path:
    table = lance.dataset(source)
    table.deep_clone(str(target), table.version)
    return target


def shallow_clone(source: Path, target: Path) -> Path:
    table = lance.dataset(source)
    table.shallow_clone(str(target), table.version)
    return target


def branch(source: Path, target: Path) -> Path:
    lance.dataset(source).create_branch("b")
    return source / "tree" / "b"


def copy_without_shards(source: Path, target: Path) -> Path:
    """As `cp -r`, without what begins with `_mem` or is memwal's own."""
    return Path(
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("_mem_wal", "_maintenance"))
    )


COPIES = [deep_clone, shallow_clone, branch, copy_without_shards]
REFUSED = [
    *(("merge",), ("read",), ERASE, ("read", "--key", "id=11"), ("read", "--version", "3")),
    *(("snapshot",), ("index-catchup",), ("quiesce",), ("maintain",)),
    ("rescue", "--yes", "--shard", SHARD),
]


@pytest.mark.parametrize(("copy", "written"), grid(COPIES, [1, 3, 5]))
def test_nothing_is_hidden_or_deleted_and_adopting_brings_all_back(
    source: Path, tmp_path: Path, copy: Copy, written: int
) -> None:
    table = copy(source, tmp_path / "copy.lance")
    new = set(range(11, 11 + written))
    put(table, *new)
    stored = set((table / "_mem_wal" / SHARD).iterdir())

    for command in REFUSED if copy is deep_clone else REFUSED[:3]:
        memwal(table, *command, code=5)
    if copy is deep_clone:
        done = CliRunner().invoke(app, ["checkpoint", "create", str(table), "c"])
        assert done.exit_code == 5, done.output
        assert "(MW-H06)" in memwal(table, "status", code=5)["error"]
        assert "(MW-H06)" in memwal(table, "verify", code=8)["error"]
    assert set((table / "_mem_wal" / SHARD).iterdir()) >= stored

    found = memwal(table, "init", "--adopt-clone")
    assert (found["steps"], found["let_go"]) == (["progress"], [SHARD])
    assert read(table) == {0, 1, 2, 3} | new
    memwal(table, "merge")
    assert base(table) == {0, 1, 2, 3} | new
    if copy is not deep_clone:
        return
    memwal(table, "verify")
    put(table, 40)
    assert memwal(table, "init", "--adopt-clone")["outcome"] == "nothing_to_do"
    memwal(table, *ERASE)
    assert read(table) == {0, 1, 2, 3, 40} | new


def ingest(table: Path, more: Path) -> Any:
    return CliRunner().invoke(app, ["ingest", str(table), str(more), "--shard", SHARD])


@pytest.mark.parametrize("copy", [deep_clone, pytest.param(branch, marks=pytest.mark.nightly)])
def test_an_untouched_copy_is_told_and_no_writer_of_ours_starts(
    source: Path, tmp_path: Path, copy: Copy
) -> None:
    table = copy(source, tmp_path / "copy.lance")
    [warning] = memwal(table, "status")["warnings"]
    assert SHARD in warning and "--adopt-clone" in warning
    assert warning in memwal(table, "verify")["warnings"]
    assert read(table) == {0, 1, 2, 3}  # hides nothing yet

    more = tmp_path / "more.parquet"
    pq.write_table(rows(11, 12), more)
    done = ingest(table, more)
    assert (done.exit_code, "(MW-H06)" in done.output) == (5, True), done.output
    assert not (table / "_mem_wal").exists()

    memwal(table, "init", "--adopt-clone")
    assert memwal(table, "status")["warnings"] == []
    assert ingest(table, more).exit_code == 0
    memwal(table, "merge")
    assert base(table) == {0, 1, 2, 3, 11, 12}


def test_a_writer_that_has_not_flushed_is_seen(source: Path, tmp_path: Path) -> None:
    """Nothing is listed yet: the shard's manifest tells by itself."""
    table = deep_clone(source, tmp_path / "clone.lance")
    writer = lance.dataset(table).mem_wal_writer(SHARD, max_wal_flush_interval_ms=1)
    writer.put(rows(11))
    memwal(table, "read", code=5)
    memwal(table, "read", "--with-wal", code=5)
    with pytest.raises(Refused, match="not of this shard"):
        open_stores(str(table), {}).views.shard(SHARD)
    memwal(table, "init", "--adopt-clone")
    assert read(table, "--with-wal") == {0, 1, 2, 3, 11}
    writer.close()
    memwal(table, "merge")
    assert base(table) == {0, 1, 2, 3, 11}


@pytest.mark.parametrize(
    "left", ["all", "generations", pytest.param("WAL", marks=pytest.mark.nightly)]
)
def test_a_shard_that_lost_its_manifests_is_no_clone(source: Path, left: str) -> None:
    """What it has not merged is neither left out without a word nor let go of."""
    put(source, 4)
    put(source, 21, shard=OTHER)
    folder = source / "_mem_wal" / SHARD
    shutil.rmtree(folder / "manifest")
    if left == "generations":
        shutil.rmtree(folder / "wal")
    elif left == "WAL":
        for generation in folder.glob("*_gen_*"):
            shutil.rmtree(generation)
    version = lance.dataset(source).version

    for command in (("read",), ("read", "--with-wal"), ("init", "--adopt-clone")):
        done = CliRunner().invoke(app, [command[0], str(source), *command[1:], "--json"])
        assert (done.exit_code, "(MW-M06)" in done.output) == (8, True), done.output
        assert f"{SHARD}: its folder has no manifest: `memwal repair {source}` says" in done.output
    status = memwal(source, "status", code=6)
    assert "memwal repair" in status["error"]
    assert "--adopt-clone" not in json.dumps(status)
    lacking = [
        c for c in memwal(source, "verify", code=8)["checks"] if "no manifest" in c["detail"]
    ]
    assert [c["name"] for c in lacking] == ["shard manifests"]
    assert lance.dataset(source).version == version
    assert "(MW-M06)" in memwal(source, "merge", code=6)["error"]

    [item] = memwal(source, "repair", "--execute", "--yes", code=8)["items"]
    assert "restore a backup" in item["evidence"] and f"shard {SHARD}" in item["lost"][0]


def test_a_folder_that_a_writer_is_about_to_claim_is_an_untouched_clone_s(
    source: Path, tmp_path: Path
) -> None:
    table = deep_clone(source, tmp_path / "clone.lance")
    manifests = table / "_mem_wal" / SHARD / "manifest"
    manifests.mkdir(parents=True)
    (manifests / "staged#1").write_bytes(b"")
    [warning] = memwal(table, "status")["warnings"]
    assert "--adopt-clone" in warning
    assert memwal(table, "init", "--adopt-clone")["let_go"] == [SHARD]


def test_a_first_manifest_that_comes_between_the_looks_is_seen(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = open_stores(str(source), {}).views
    monkeypatch.setattr(views, "read_shards", lambda shards: [None for _ in shards])
    view = views.table()
    assert (view.shard_ids, view.broken) == ([SHARD], ())


@pytest.mark.parametrize("way", ["copied", "moved"])
def test_a_table_with_all_its_files_is_sound(source: Path, tmp_path: Path, way: str) -> None:
    put(source, 4)
    target = tmp_path / "target.lance"
    if way == "moved":
        source.rename(target)
    else:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("_maintenance"))
    assert read(target) == {0, 1, 2, 3, 4}
    assert memwal(target, "init", "--adopt-clone")["outcome"] == "nothing_to_do"
    memwal(target, "merge")
    memwal(target, *ERASE)
    put(target, 6)
    assert read(target) == {0, 1, 2, 3, 4, 6}
    memwal(target, "verify")


def test_a_clone_with_its_shards_copied_along_is_sound(source: Path, tmp_path: Path) -> None:
    """Long after they were merged: within minutes, no clock tells it from one without."""
    put(source, 4, 5)
    target = deep_clone(source, tmp_path / "clone.lance")
    shutil.copytree(source / "_mem_wal", target / "_mem_wal")
    memwal(target, "read", code=5)  # refused at worst
    memwal(target, "init", "--adopt-clone")
    memwal(target, "merge", "--allow-reinitialised")
    assert base(target) == {0, 1, 2, 3, 4, 5}


def test_a_clone_that_merges_hidden_rows_had_merges_of_its_own(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a memwal did that knew nothing of clones."""
    table = deep_clone(source, tmp_path / "clone.lance")
    put(table, 11, 12, 13, 14, 15)
    with monkeypatch.context() as patched:
        patched.setattr(InheritedProgress, "part", lambda self, view: view)
        memwal(table, "merge")
    assert base(table) == {0, 1, 2, 3, 14, 15}
    memwal(table, "read", code=5)
    memwal(table, "init", "--adopt-clone")
    memwal(table, "merge")
    assert base(table) == {0, 1, 2, 3, 11, 12, 13, 14, 15}


def test_operands_that_were_merged_are_not_merged_again(source: Path) -> None:
    view = replace(open_stores(str(source), {}).views.table(), policy_text="{}")
    found = FoundTable(view=view, inherited={SHARD: range(3, 6)})
    with pytest.raises(Refused, match="twice") as caught:
        plan_steps(found, InitRequest(adopt_clone=True))
    assert caught.value.code == "MW-T11"
    assert plan_steps(
        replace(found, inherited={SHARD: range(5, 6)}), InitRequest(adopt_clone=True)
    ) == (Step.PROGRESS,)


def test_a_restore_of_an_adopted_clone_brings_its_progress_back(
    source: Path, tmp_path: Path
) -> None:
    table = deep_clone(source, tmp_path / "clone.lance")
    first = lance.dataset(table).version
    put(table, 11)
    memwal(table, "init", "--adopt-clone")
    memwal(table, "merge")
    put(table, 12, 13, 14)
    memwal(table, "merge")
    old = lance.dataset(table, version=first)
    old.restore()
    memwal(table, "merge", code=5)
    memwal(table, "read", code=5)
    memwal(table, "init", "--adopt-clone")
    assert read(table) == {0, 1, 2, 3, 11, 12, 13, 14}


@pytest.fixture(scope="module")
def made_turned_back(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    table = deep_clone(made, tmp_path_factory.mktemp("turned") / "clone.lance")
    first = lance.dataset(table).version
    put(table, 11, 12)
    memwal(table, "init", "--adopt-clone")
    memwal(table, "merge")
    merged = lance.dataset(table).version
    lance.dataset(table, version=first).restore()
    turned = lance.dataset(table).version
    lance.dataset(table, version=merged).restore()
    for manifest in lance.dataset(table).versions():
        if manifest["version"] < turned:
            name = f"{2**64 - 1 - manifest['version']:020}.manifest"
            (table / "_versions" / name).unlink()
    return table, turned


@pytest.fixture
def turned_back(made_turned_back: tuple[Path, int], tmp_path: Path) -> tuple[Path, int]:
    """A clone that was adopted and merged, restored to what it was before, and back again.

    And the version that has progress of the source; all that are older have been expired.
    """
    table, turned = made_turned_back
    return Path(shutil.copytree(table, tmp_path / "clone.lance")), turned


def test_garbage_does_not_believe_a_version_from_before_an_adoption(
    turned_back: tuple[Path, int],
) -> None:
    table, turned = turned_back
    short = ("--execute", "--grace", "0s", "--retention", "90d", "--allow-short-retention")
    for _ in range(2):
        memwal(table, "garbage", *short)
    lance.dataset(table, version=turned).restore()
    memwal(table, "init", "--adopt-clone")
    assert read(table) == {0, 1, 2, 3, 11, 12}


def test_what_an_adoption_let_go_of_is_no_progress_where_nothing_else_tells(
    turned_back: tuple[Path, int],
) -> None:
    """What was restored is gone, and the restore is younger than the first generations."""
    table, turned = turned_back
    put(table, 13, 14)
    lance.dataset(table, version=turned).restore()
    memwal(table, "read", code=5)
    memwal(table, "merge", code=5)
    memwal(table, "init", "--adopt-clone")
    assert read(table) == {0, 1, 2, 3, 11, 12, 13, 14}


def test_a_record_of_an_adoption_that_is_damaged_is_told(turned_back: tuple[Path, int]) -> None:
    table, _ = turned_back
    (record,) = (table / "_maintenance" / "adopted").iterdir()
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    found = memwal(table, "garbage", "--execute", code=8)
    assert "MW-M09" in found["error"]
    assert "its format is 2" in found["error"]


def test_where_the_clone_s_version_has_expired_times_tell(source: Path, tmp_path: Path) -> None:
    """The store and the manifests agree that the generation is younger than its merge."""
    table = deep_clone(source, tmp_path / "clone.lance")
    lance.dataset(table).update_config({"a": "b"})
    put(table, 11, 12, 13, 14)
    oldest, _ = sorted((table / "_versions").glob("*.manifest"), key=lambda p: p.stat().st_mtime_ns)
    oldest.unlink()
    memwal(table, "read", code=5)
    memwal(table, "merge", code=5)


@pytest.fixture
def two_shards(source: Path, tmp_path: Path) -> Path:
    """A clone with a generation in each of two shards, of which it inherited progress of one."""
    table = deep_clone(source, tmp_path / "clone.lance")
    put(table, 11)
    put(table, 21, shard=OTHER)
    return table


def adopt(table: Path, steps: Callable[[str], None] = lambda step: None, **options: Any) -> Any:
    resolved = ResolvedTable(name="t", uri=str(table), settings=Settings(), storage_options={})
    request = InitRequest(adopt_clone=True)
    return run_init(InitOptions(tables=[resolved], request=request, **options), Quiet(), steps)


def test_another_shard_s_progress_that_is_merged_meanwhile_stays(two_shards: Path) -> None:
    def merge_beside(step: str) -> None:
        if step == Step.PROGRESS:
            memwal(two_shards, "merge", "--shard", OTHER, "--no-lease", code=4)

    adopt(two_shards, merge_beside)
    memwal(two_shards, "merge")
    assert base(two_shards) == {0, 1, 2, 3, 11, 21}


def test_a_merge_that_slips_in_is_not_overwritten(
    two_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that took its view before the lease was claimed."""
    commit, slipped = init_store.replace_mem_wal_entry, []

    def commit_late(*args: Any, **kwargs: Any) -> int:
        if not slipped:
            slipped.append(1)
            with monkeypatch.context() as patched:
                patched.setattr(RefreshWatch, "_newest_token", lambda self: 0)
                memwal(two_shards, "merge", "--shard", OTHER, "--no-lease")
        return commit(*args, **kwargs)

    monkeypatch.setattr(init_store, "replace_mem_wal_entry", commit_late)
    memwal(two_shards, "init", "--adopt-clone")
    merged = open_stores(str(two_shards), {}).views.table().mem_wal.merged
    assert dict(merged) == {OTHER: 1}
    memwal(two_shards, "merge")
    assert base(two_shards) == {0, 1, 2, 3, 11, 21}


def test_progress_is_not_raised_again_by_a_run_whose_lease_was_lost(two_shards: Path) -> None:
    """Another merge may have built on the lowered progress by then."""
    stores = open_stores(str(two_shards), {})

    merger = ShardMerger(views=stores.views, table=open_merge_table(stores), clock=stores.clock)

    def merge_beside(step: str) -> None:
        if step == "let go":
            assert merger.run(OTHER, MergeRequest()).commits == 1  # it began before the adoption
            stores.leases.break_("test")

    assert adopt(two_shards, merge_beside).exit_code == LeaseHeld.exit_code
    assert not stores.views.table().mem_wal.merged
    memwal(two_shards, "merge")
    assert base(two_shards) == {0, 1, 2, 3, 11, 21}


def test_one_that_is_killed_before_its_commit_changed_nothing(source: Path, tmp_path: Path) -> None:
    table = deep_clone(source, tmp_path / "clone.lance")
    put(table, 11)
    before = lance.dataset(table).version
    with pytest.raises(Stop):
        adopt(table, Stopper(1), lease=False)
    assert lance.dataset(table).version == before
    assert take_report(adopt(table, lease=False), InitTableReport).steps == ("progress",)
    assert read(table) == {0, 1, 2, 3, 11}


def test_an_overwritten_table_has_no_progress(source: Path) -> None:
    lance.write_dataset(rows(50), source, mode="overwrite")
    memwal(source, "merge", code=2)
    found = memwal(source, "init", "--adopt-clone", code=2)
    assert "it has no MemWAL" in found["error"]


@pytest.mark.nightly
def test_a_clone_by_lancedb_under_the_same_shard_ids(tmp_path: Path) -> None:
    def row(key: int) -> dict[str, Any]:
        return {"id": key, "tenant": "a", "n": key}

    with lancedb_client(tmp_path) as lancedb:
        lancedb("create", spec=["unsharded"])
        for key in range(3):
            lancedb("put", rows=[row(key)])
        memwal(tmp_path / "t.lance", "merge")
        lancedb("clone", name="c")
        for key in range(10, 15):
            lancedb("put", rows=[row(key)])
        table = tmp_path / "c.lance"
        memwal(table, "merge", code=5)
        memwal(table, "read", code=5)
        assert {found["id"] for found in lancedb("read")} == {0, 1, 2, 13, 14}  # hides three, too
        memwal(table, "init", "--adopt-clone")
        memwal(table, "merge")
        assert read(table) == {0, 1, 2, *range(10, 15)}
        assert {found["id"] for found in lancedb("read")} == {0, 1, 2, *range(10, 15)}
