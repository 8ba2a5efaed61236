"""A disk that fills up on the way: a small tmpfs, with so much left on it and no more.

What a job would have taken is measured first; then it gets nothing of that, and after it a half.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.format import layout
from memwal.report import DONE
from memwal.store.objects.full_disk import RESERVE_BYTES
from tests.faults import live
from tests.faults.live import Model
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import Delete, Put, Table

pytestmark = pytest.mark.nightly

LEVELS = 2
DISK_BYTES = 24 * 1024 * 1024
FULL = "No space left on device"

COLLECT = ["--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention"]
JOBS: dict[str, list[str]] = {
    "merge": [],
    "garbage": COLLECT,
    "index-catchup": [],
    "compaction": [],
    "snapshot": [],
    "maintain": COLLECT,
}
AT_NIGHT = [pytest.param(job, marks=pytest.mark.nightly) for job in list(JOBS)[2:]]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "memwal-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Work for every job: to merge, to catch up, to compact, to snapshot, to drop and to delete."""
    table = runs.collectable(tmp_path_factory.mktemp("full") / "t", shards=2, generations=2)
    runs.garbage(table)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put(range(300 + place, 340, 2), 1000), Delete([place]))
    for done in table.merge_all():
        assert done.error is None
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put(range(310 + place, 360, 2), 2000))
    return table


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_bsize


def leave(disk: Path, size_bytes: int) -> Path:
    """Fill the disk but for so much; returns the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(1, free_bytes(disk) - size_bytes))
    return ballast


def copied(table: Table, folder: Path) -> Table:
    shutil.rmtree(folder, ignore_errors=True)
    return table.copied(folder)


def run(job: str, table: Table) -> tuple[int, dict[str, Any]]:
    """`memwal JOB TABLE --json`."""
    return ask(job, table.uri, *JOBS[job], "--engine", "local")


def ask(*words: str) -> tuple[int, dict[str, Any]]:
    """`memwal WORDS --json`, in this process."""
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("job", ["merge", "garbage", *AT_NIGHT])
def test_a_disk_that_fills_up_under_a_job(disk: Path, original: Table, job: str) -> None:
    truth = original.truth()
    table = copied(original, disk / "t")
    before = free_bytes(disk)
    code, found = run(job, table)
    assert (code, found["outcome"]) == (0, DONE), found
    needed = max(before - free_bytes(disk), 64 * 1024)
    codes = []
    for level in range(LEVELS):
        table = copied(original, disk / "t")
        ballast = leave(disk, needed * level // LEVELS)
        code, found = run(job, table)
        codes.append(code)
        assert code in (0, 1, 6), found
        if code:
            (told,) = found["tables"]
            assert FULL in told["error"], told
            assert "`memwal garbage TABLE --execute`" in told["error"], told
            assert table.uri in json.dumps(found)
        builders.same_rows(table.lsm_rows(), truth, f"{job} on a full disk")
        ballast.unlink()
        if code:  # its release did not fit either
            table.stores.leases.break_("its process would be gone")
        code, found = run(job, table)
        assert code == 0, found
        builders.same_rows(table.lsm_rows(), truth, f"{job}, once there was space")
        live.check_verified(table)
    if job == "garbage":
        assert not any(codes), "garbage has to be collected on a full disk"
    else:
        assert codes[0] != 0, "nothing was left, and it did not notice"


@pytest.mark.parametrize(
    ("left_bytes", "flags"), [(0, []), (4096, []), (12 * 1024, []), (0, ["--no-lease"])]
)
def test_what_nothing_needs_makes_space_on_a_full_disk(
    disk: Path, original: Table, left_bytes: int, flags: list[str]
) -> None:
    """The checkpoint that held some of it is dropped there, too."""
    table = copied(original, disk / "t")
    assert run("index-catchup", table)[0] == 0
    assert ask("checkpoint", "create", table.uri, "month-end")[0] == 0
    ballast = leave(disk, left_bytes)
    assert ask("checkpoint", "drop", table.uri, "month-end")[0] == 0
    assert not list(Path(table.uri, "_refs/tags").glob("*.json"))
    assert not list(Path(table.uri, layout.CHECKPOINTS).iterdir())
    code, told = ask("garbage", table.uri, *COLLECT, *flags, "--engine", "local")
    assert code == 0, told
    (found,) = told["tables"]
    assert found["dropped"] and found["deleted"], found
    assert free_bytes(disk) > left_bytes + RESERVE_BYTES
    assert Path(table.uri, layout.RESERVE).stat().st_size == RESERVE_BYTES
    ballast.unlink()
    assert run("merge", table)[0] == 0
    builders.same_rows(table.lsm_rows(), original.truth(), "collected on a full disk")
    live.check_verified(table)


def test_a_full_disk_is_maintained_all_the_same(disk: Path, original: Table) -> None:
    """The merge has no room, and the garbage that comes after it makes some."""
    table = copied(original, disk / "t")
    ballast = leave(disk, 0)
    code, found = run("maintain", table)
    assert code != 0
    (told,) = found["tables"]
    first, *_, last = told["jobs"]
    assert (first["job"], first["outcome"]) == ("merge", "failed"), first
    assert FULL in told["error"]
    assert last["job"] == "garbage", last
    assert last["deleted"], last
    code, found = run("maintain", table)
    assert code == 0, found
    builders.same_rows(table.lsm_rows(), original.truth(), "maintained on a full disk")
    ballast.unlink()
    live.check_verified(table)


def test_the_next_job_with_space_leaves_some_for_garbage(disk: Path, original: Table) -> None:
    """Of a table that has none: a copy, or garbage that was killed."""
    table = copied(original, disk / "t")
    reserve = Path(table.uri, layout.RESERVE)
    reserve.unlink()
    assert run("snapshot", table)[0] == 0
    blocks = reserve.stat().st_blocks * 512
    assert blocks >= RESERVE_BYTES, "nothing is kept by a file that takes no space"


@pytest.mark.nightly
def test_a_writer_meets_a_full_disk(disk: Path) -> None:
    """What was acknowledged before is there, and the next writer goes on."""
    shutil.rmtree(disk / "w", ignore_errors=True)
    table = builders.make_table(disk / "w", rows=range(10))
    model, (shard,) = Model.of(table, 60, range(10)), table.shards
    schema, operations = table.dataset.schema, live.operations(range(60), random.Random(7))

    def write(operations: Iterable[Put | Delete]) -> None:
        with live.open_writer(table, shard) as writer:
            for op in operations:
                model.begun(op)
                builders.apply(table, writer, schema, op, {})
                model.acknowledged(op)

    ballast = leave(disk, 400 * 1024)
    with pytest.raises((OSError, RuntimeError)):
        write(operations)
    assert free_bytes(disk) < 4096
    ballast.unlink()
    write(itertools.islice(operations, 5))
    model.check(table.lsm_rows(), "after a full disk")
    live.finish(table, grace=lambda: time.sleep(live.GRACE_SECONDS))
    model.check(table.base_rows(), "merged after a full disk")
    live.check_verified(table)


@pytest.mark.nightly
@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_a_read_whose_rows_have_no_room(disk: Path, original: Table, ending: str) -> None:
    """Not a wrong request: nothing of the file stays, and the same may be asked again."""
    ballast = leave(disk, 0)
    file = disk / f"rows.{ending}"
    words = ["read", original.uri, "--columns", "k,n,text", "--output", str(file)]
    code, found = ask(*words)
    assert code == 1, found
    assert f"--output {file}: the disk is full" in found["error"]
    assert found["seconds"] > 0
    assert list(disk.glob("*rows*")) == []
    ballast.unlink()
    assert ask(*words)[0] == 0
    file.unlink()


@pytest.mark.nightly
def test_a_backup_that_has_no_room_is_none(disk: Path, original: Table) -> None:
    dest = disk / "backups"
    shutil.rmtree(disk / "t", ignore_errors=True)
    ballast = leave(disk, sum(f.stat().st_size for f in Path(original.uri).rglob("*.*")) // 2)
    code, found = ask("backup", "create", original.uri, str(dest), "--name", "full")
    assert code == 1, found
    assert FULL in json.dumps(found)
    assert list(dest.glob("_maintenance/backups/*.pb")) == []
    ballast.unlink()
    again = ("backup", "create", original.uri, str(dest), "--name", "whole", "--verify")
    if ask(*again)[0] == 4:  # its lease could not be given back either: it expires, or is broken
        assert ask("lease", "break", str(dest), "--reason", "the disk was full")[0] == 0
        assert ask(*again)[0] == 0
    shutil.rmtree(dest)
