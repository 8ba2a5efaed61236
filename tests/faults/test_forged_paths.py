"""Garbage with --execute on tables whose manifests lie: nothing outside the table is deleted.

Invariant 10. The table lies beside another one and beside a file that is nobody's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import ShardId
from tests.support import garbage_runs as runs
from tests.support.builders import Table

pytestmark = pytest.mark.integration

OTHER = "0f0e0d0c-0b0a-4908-8706-050403020100"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ShardId, ...]]:
    """A table of which garbage may take everything, to be copied."""
    table = runs.collectable(tmp_path_factory.mktemp("pristine") / "t", shards=2, generations=2)
    return Path(table.uri), tuple(table.shards)


@pytest.fixture
def lake(pristine: tuple[Path, tuple[ShardId, ...]], tmp_path: Path) -> tuple[Table, Path]:
    """The table, and the folder around it with what must stay."""
    source, shards = pristine
    for name in ("table", "other"):
        shutil.copytree(source, tmp_path / name)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    table = Table(uri=str(tmp_path / "table"), kind=runs.builders.KINDS["int64"])
    table.shards.extend(shards)
    return table, tmp_path


def outside(around: Path) -> dict[str, bytes]:
    """Every file that is not the table's, by its own path: links are not followed."""
    return {
        str(path.relative_to(around)): path.read_bytes()
        for name in ("other", "precious")
        for path in (around / name).rglob("*")
        if path.is_file()
    }


def forge(table: Table, change: Callable[[pb.ShardManifest], object]) -> None:
    """Change the first shard's newest manifest, which may be forged already."""
    shard = table.shards[0]
    newest = table.stores.shard_manifests.versions(shard)[-1]
    file = Path(table.uri) / layout.shard_manifest_path(shard, newest)
    message = pb.ShardManifest.FromString(file.read_bytes())
    change(message)
    file.write_bytes(message.SerializeToString())


def paths(around: Path, shard: ShardId, name: str) -> list[str]:
    """Names that lead, or seem to lead, out of the shard's folder."""
    return [
        "../../../precious",
        "../../../other",
        f"../../../other/_mem_wal/{shard}/{name}",
        f"../{OTHER}/{name}",
        str(around / "precious"),
        f"/{name}",
        "%2e%2e%2f%2e%2e%2f%2e%2e%2fprecious",
        f"..%2f..%2f..%2fother/{name}",
        f"{name}/../../../../precious",
        f"{name}/",
        f"{name}\n",
        f"./{name}",
        f"file://{around}/precious",
        "",
        ".",
        "wal",
        "manifest",
    ]


def test_no_forged_path_reaches_a_delete(lake: tuple[Table, Path]) -> None:
    table, around = lake
    before = outside(around)
    genuine = runs.manifest(table, table.shards[0]).flushed_generations[0].path
    own = runs.files(table, layout.shard_folder(table.shards[0])).keys()
    for path in paths(around, table.shards[0], genuine):
        forge(table, lambda m, path=path: setattr(m.flushed_generations[0], "path", path))
        report = runs.garbage(table, wal=True)
        assert report.outcome in ("partial", "failed")
        assert table.shards[0] in (report.error or "")
        kept = {i.action for i in report.items if i.shard_id == table.shards[0]}
        assert kept <= {"keep"}
        assert outside(around) == before
        assert runs.files(table, layout.shard_folder(table.shards[0])).keys() == own


def test_a_folder_that_is_a_link_is_not_followed(lake: tuple[Table, Path]) -> None:
    """A generation, an orphan, a shard and the WAL as links to what is not the table's."""
    table, around = lake
    before = outside(around)
    first, second = (Path(table.uri) / layout.shard_folder(s) for s in table.shards)
    listed = runs.manifest(table, table.shards[0]).flushed_generations[0].path
    shutil.rmtree(first / listed)
    (first / listed).symlink_to(around / "other" / "_mem_wal" / table.shards[0] / listed)
    (first / "deadbeef_gen_1").symlink_to(around / "precious")
    (first.parent / OTHER).symlink_to(around / "other" / "_mem_wal" / table.shards[0])
    shutil.rmtree(second / "wal")
    (second / "wal").symlink_to(around / "other" / "_mem_wal" / table.shards[1] / "wal")
    runs.age(table, 10 * 3600)
    for _ in range(5):
        runs.garbage(table, wal=True)
        assert outside(around) == before
    assert (first / "deadbeef_gen_1").is_symlink()


def test_a_folder_that_becomes_a_link_after_it_was_listed(lake: tuple[Table, Path]) -> None:
    """What was listed is deleted by its name, but not through a link put in its place."""
    table, around = lake
    before = outside(around)
    runs.garbage(table, wal=True)  # drops
    shard = table.shards[0]
    folder = Path(table.uri) / layout.shard_folder(shard)
    twin = around / "other" / layout.shard_folder(shard)
    swapped: list[Path] = []

    def steps(step: str) -> None:
        for generation in sorted(folder.glob("*_gen_*")) if not swapped else ():
            shutil.rmtree(generation)
            generation.symlink_to(twin / generation.name)
            swapped.append(generation)

    runs.garbage(table, wal=True, steps=steps)
    assert swapped
    assert outside(around) == before


@pytest.mark.parametrize("place", ["data", "data/w", "deep/er"])
def test_nothing_is_expired_through_a_link(lake: tuple[Table, Path], place: str) -> None:
    """Lance's cleanup takes what it finds there for files of the table that no version names."""
    table, around = lake
    table.dataset.update_config({"another": "version"})
    good = Table(uri=shutil.copytree(table.uri, f"{table.uri}-2"), kind=table.kind)
    theirs, link = around / "other" / "data", Path(table.uri) / place
    (theirs / "live.lance").write_bytes(b"x")
    for file in theirs.iterdir():
        os.utime(file, (0, 0))
    if link.exists():
        shutil.rmtree(link)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(theirs)
    before, versions = outside(around), table.versions()

    for execute in (False, True):
        done = runs.run(table, good, execute=execute, retention=0)
        refused, collected = done.tables
        assert (done.exit_code, refused.outcome, collected.outcome) == (6, "refused", "done")
        assert f"{link} is a symbolic link" in (refused.error or "")
        assert (outside(around), table.versions()) == (before, versions)
    assert len(good.versions()) == 1
    assert runs.garbage(table).outcome == "done"
