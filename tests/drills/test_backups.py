"""Seconds of torture for backups; `make drill` takes minutes. And what its judge finds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills import backups
from tests.drills.backups import find_prefix, take_out
from tests.drills.tables import Rows
from tests.support.sampling import many

DISK_BYTES = 64 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "memwal-test", str(place)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.integration
@pytest.mark.long
def test_whole_backups_are_one_moment_each(tmp_path: Path) -> None:
    verdict = backups.torture(tmp_path / "t", seconds=many(60, 6), seed=3)
    assert verdict.findings == []
    assert "last" in verdict.checked and len(verdict.runs) > 3


@pytest.mark.integration
@pytest.mark.long
def test_a_disk_that_is_full_half_way(tmp_path: Path, disk: Path) -> None:
    def resize(size_bytes: int) -> None:
        options = f"remount,size={size_bytes}"
        subprocess.run(["mount", "-o", options, str(disk)], check=True)

    assert backups.fill_up(tmp_path, disk, resize, 5) == []


def rows(*numbers: int, head: int) -> Rows:
    """What writer 1 put with these numbers, beside its row that every put replaces."""
    base = 1_000_000
    found = {(base + 1 + n,): {"n": n} for n in numbers}
    return {**found, (base,): {"n": head}, (5,): {"n": 4}}


@pytest.mark.parametrize(
    ("found", "last", "problem"),
    [
        (rows(0, 1, 2, head=2), 2, None),
        ({}, -1, None),
        (rows(0, 2, head=2), 2, "writer 1: of puts up to 2 only 2 rows"),
        (rows(0, 1, head=2), 1, "writer 1: put 1 beside put 2"),
        (rows(0, 1, 2, head=1), 2, "writer 1: put 2 beside put 1"),
    ],
)
def test_what_is_a_moment(found: Rows, last: int, problem: str | None) -> None:
    assert find_prefix(found, 1) == (last, problem)


@pytest.mark.integration
def test_the_judge_notices_what_is_damaged_gone_or_older(tmp_path: Path) -> None:
    verdict = backups.torture(tmp_path / "t", seconds=2, seed=1, shards=1)
    dest = tmp_path / "t" / "dest"
    assert verdict.findings == []
    assert take_out(dest, "last", tmp_path / "whole") == []
    entries = sorted((tmp_path / "whole").glob("_mem_wal/*/wal/*"), key=lambda f: f.stem[::-1])
    run = verdict.runs[-1]
    assert backups.judge_moment(tmp_path / "t", tmp_path / "whole", run, 1) == []

    damaged = dest / entries[-1].relative_to(tmp_path / "whole")
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    assert len(take_out(dest, "last", tmp_path / "damaged")) == 1
    damaged.unlink()
    assert take_out(dest, "last", tmp_path / "gone") == [f"{damaged.relative_to(dest)} is gone"]

    for folder in (tmp_path / "whole").glob("_mem_wal/*/*_gen_*"):
        for file in folder.glob("data/*"):
            file.unlink()
    for entry in entries:
        entry.unlink()
    assert backups.judge_moment(tmp_path / "t", tmp_path / "whole", run, 1) != []
