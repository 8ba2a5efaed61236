"""Clocks that are an hour off, either way, beside a store whose own time is right.

The clock of the process is moved by libfaketime where it is installed (Debian: libfaketime), and
Lance's with it; where it is not, at memwal's one real clock (`memwal.clock.SystemClock`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.errors import LeaseHeld
from memwal.read import open_table
from tests.faults import live
from tests.faults.live import Model
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
HOUR_SECONDS = 3600
_FAKETIME = [
    Path("/usr/lib") / folder / "faketime" / "libfaketimeMT.so.1"
    for folder in (f"{os.uname().machine}-linux-gnu", "")
]
FAKETIME = next((path for path in _FAKETIME if path.exists()), None)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[object, dict[str, str]]]:
    if request.param == "local":
        yield tmp_path / "t", {}
        return
    server: S3Server = request.getfixturevalue("s3_server")
    yield f"s3://{server.make_bucket()}/t", server.storage_options


def moved(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """memwal's clock; not Lance's, and not the store's."""
    monkeypatch.setattr(
        SystemClock, "now_nanos", lambda self: time.time_ns() + round(seconds * 1e9)
    )


def run_moved(seconds: int, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`memwal ARGUMENTS --json` as a process whose whole clock is moved."""
    done = subprocess.run(
        [sys.executable, "-m", "memwal", *arguments, "--json"],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Files keep the times that the kernel gave them.
            "NO_FAKE_STAT": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def options_of(table: Table) -> Sequence[str]:
    pairs = table.options.items()
    return [word for name, value in pairs for word in ("--storage-option", f"{name}={value}")]


def collectable(place: tuple[object, dict[str, str]]) -> Table:
    """Everything merged, and dropped from the manifests a moment ago: all of it is in its grace."""
    uri, options = place
    table = runs.collectable(uri, options=options, generations=2)
    report = runs.garbage(table, grace=0)
    assert report.dropped == 2, report
    return table


# ---- garbage


def test_an_hour_fast_clock_does_not_shorten_the_grace(
    place: tuple[object, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = collectable(place)
    before = runs.folders(table)
    moved(monkeypatch, HOUR_SECONDS)
    # By its own clock everything is older than this grace.
    report = runs.garbage(table, grace=HOUR_SECONDS / 2, wal=True)
    assert report.error is None
    assert report.deleted == 0
    assert runs.folders(table) == before
    # Not a refusal to work at all: with no grace it goes.
    assert runs.garbage(table, grace=0, wal=True).deleted > 0
    assert runs.folders(table) == []


def test_an_hour_slow_clock_keeps_for_longer_and_goes_on_when_it_is_right(
    place: tuple[object, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = collectable(place)
    with monkeypatch.context() as slow:
        moved(slow, -HOUR_SECONDS)
        report = runs.garbage(table, grace=0, wal=True)
        assert (report.error, report.deleted) == (None, 0)
    assert runs.garbage(table, grace=0, wal=True).deleted > 0


# ---- leases


@pytest.mark.parametrize("seconds", [-HOUR_SECONDS, HOUR_SECONDS])
def test_two_clocks_never_hold_the_lease_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """Skew may cost an early take-over; then the former holder's next commit is stopped."""
    table = builders.make_table(tmp_path / "t")
    here = table.stores.leases
    claim = here.acquire("merge")
    with monkeypatch.context() as other:
        moved(other, seconds)
        there = table.stores.leases
        try:
            taken = there.acquire("merge")
        except LeaseHeld:
            assert seconds < 0, "a slow clock waits"
            here.check(claim.token)
            return
        there.check(taken.token)
    with pytest.raises(LeaseHeld):
        here.check(claim.token)
    with pytest.raises(LeaseHeld):
        here.renew(claim)


# ---- whole processes, Lance's clock too


@pytest.mark.nightly
@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
@pytest.mark.parametrize("seconds", [-HOUR_SECONDS, HOUR_SECONDS], ids=["slow", "fast"])
def test_a_host_with_a_wrong_clock_maintains(tmp_path: Path, seconds: int) -> None:
    """Writers with the right time; one that is off keeps what is in its grace and retention."""
    keys = 60
    table = builders.make_table(tmp_path / "t", rows=range(0, keys, 2), shards=2, indexed=True)
    model = Model.of(table, keys, range(0, keys, 2))
    for number in range(3):
        for place, shard in enumerate(table.shards):
            op = Put(live.keys_of(place, 2, keys)[number : number + 9], 100 * number + place * 20)
            table.flush(shard, op)
            model.acknowledged(op)
    folders = {shard: runs.folders(table, shard) for shard in table.shards}
    command = ["maintain", table.uri, "--engine", "local", "--execute", "--wal"]
    limits = ["--retention", "30m", "--grace", "30m", "--allow-short-retention"]
    versions = set(table.versions())
    code, found = run_moved(seconds, *command, *limits)
    assert code == 0, found
    assert len(versions) > 1
    assert versions <= set(table.versions())
    assert {shard: runs.folders(table, shard) for shard in table.shards} == folders
    model.check(table.keyed(open_table(table.uri).read().read_all()), "after a wrong clock")
    # A slow host's leases, versions and records are behind, a fast one's ahead: nobody waits.
    live.finish(table, grace=lambda: time.sleep(live.GRACE_SECONDS))
    model.check(table.keyed(open_table(table.uri).read().read_all()), "after the rerun")
    live.check_verified(table)
