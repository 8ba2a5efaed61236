"""Permission that is taken away: from folders on local disks, from prefixes and verbs on S3."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwal.format import layout
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.report import MergeTableReport
from memwal.report import DONE
from tests.faults import live
from tests.faults.live import Watched
from tests.faults.s3proxy import NONE, S3Proxy, Toxics
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table
from tests.support.nursery import memwal, start
from tests.support.s3server import S3Server
from tests.support.sampling import SEED

pytestmark = pytest.mark.integration

COLLECT = ["--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention"]


def with_work(uri: object, options: dict[str, str] | None = None) -> Table:
    """Two shards, each with generations to merge, to drop and to delete."""
    table = runs.collectable(uri, shards=2, generations=1, options=options)
    runs.garbage(table)
    for place, shard in enumerate(table.shards):  # a key belongs to one shard
        table.flush(shard, Put([400 + place], 1000))
    for done in table.merge_all():
        assert done.error is None
    runs.catch_up(table)
    runs.expire(table)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put([460 + place], 2000))
    return table


def simple(uri: object, options: dict[str, str] | None = None) -> Table:
    """Something to merge."""
    table = builders.make_table(uri, rows=range(5), options=options)
    table.flush(table.shards[0], Put([1, 7], 50))
    return table


# ---- local files


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def memwal_without_privileges(arguments: list[str]) -> None:
    """`memwal ARGUMENTS`; a root that does not stand above file modes (no CAP_DAC_OVERRIDE)."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        nothing = (_Data * 2)()
        if libc.capset(ctypes.byref(_Header(version=0x20080522, pid=0)), nothing) != 0:
            raise OSError(ctypes.get_errno(), "capset")
    memwal(arguments)


@contextmanager
def closed(folder: Path, mode: int) -> Iterator[None]:
    before = folder.stat().st_mode
    folder.chmod(mode)
    try:
        yield
    finally:
        folder.chmod(before)


def ran(*arguments: str) -> tuple[int, dict[str, Any]]:
    words = [*arguments, "--engine", "local", "--json"]
    with start(memwal_without_privileges, words) as process:
        out, _ = process.communicate()
    return process.wait(), json.loads(out)


READ_ONLY, UNREADABLE = 0o555, 0o000

# case -> (job, folder below the table, mode, what the error has to name, exit code)
LOCAL: dict[str, tuple[list[str], Callable[[Table], str], int, int]] = {
    "no new versions": (["merge"], lambda t: layout.VERSIONS, READ_ONLY, 6),
    "versions can't be read": (["merge"], lambda t: layout.VERSIONS, UNREADABLE, 6),
    "no new data": (["merge"], lambda t: "data", READ_ONLY, 6),
    "a generation can't be read": (["merge"], lambda t: pending(t), UNREADABLE, 6),
    "a shard can't be read": (["merge"], lambda t: layout.shard_folder(t.shards[0]), UNREADABLE, 6),
    "no new manifests": (
        ["garbage", *COLLECT],
        lambda t: f"{layout.shard_folder(t.shards[0])}/manifest",
        READ_ONLY,
        6,
    ),
    "nothing may be deleted": (
        ["garbage", *COLLECT],
        lambda t: f"{layout.shard_folder(t.shards[0])}/{orphan(t)}",
        READ_ONLY,
        6,
    ),
}


def pending(table: Table) -> str:
    generation = runs.manifest(table).flushed_generations[-1]
    return f"{layout.shard_folder(table.shards[0])}/{generation.path}"


def orphan(table: Table) -> str:
    """A folder that was dropped from the manifest, so that the next run deletes it."""
    listed = {g.path for g in runs.manifest(table).flushed_generations}
    names = table.stores.objects.list_folders(layout.shard_folder(table.shards[0]))
    (name,) = [n for n in names if layout.parse_generation_folder(n) and n not in listed]
    return name


@pytest.mark.nightly
@pytest.mark.parametrize("case", LOCAL)
def test_a_folder_that_is_closed(tmp_path: Path, case: str) -> None:
    job, folder_of, mode, exit_code = LOCAL[case]
    table, other = with_work(tmp_path / "t"), simple(tmp_path / "other")
    truth = table.truth()
    folder = Path(table.uri) / folder_of(table)
    with closed(folder, mode):
        code, found = ran(job[0], table.uri, other.uri, *job[1:])
    assert code == exit_code, found
    told, well = found["tables"]
    assert well["error"] is None, well
    assert "Permission denied" in told["error"], told["error"]
    assert case != "a shard can't be read" or "access refused to user" in told["error"]
    assert told["table"] == table.uri
    assert str(folder.relative_to(table.uri)) in told["error"], told["error"]
    if "_mem_wal" in str(folder) and job[0] == "merge":
        assert {s["outcome"] for s in told["shards"]} == {"done", "failed"}, told["shards"]
        assert table.shards[0] in told["error"]
    builders.same_rows(table.lsm_rows(), truth, case)
    code, found = ran(job[0], table.uri, *job[1:])
    assert (code, found["outcome"]) == (0, DONE), found
    builders.same_rows(table.lsm_rows(), truth, f"{case}, and open again")
    live.check_verified(table)


# ---- S3


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint, SEED) as proxy:
        yield proxy


def places(table: Table) -> list[str]:
    """Folders of a table that may be closed; the last is the table itself."""
    return [f"{layout.VERSIONS}/", "data/", f"{layout.shard_folder(table.shards[0])}/", ""]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_access_to_s3_is_taken_away_half_way(
    s3_server: S3Server, proxy: S3Proxy, seed: int
) -> None:
    """From some request on, a prefix of one table is closed, for writing or for all."""
    chance = random.Random(seed)
    bucket = s3_server.make_bucket()
    options = proxy.options(s3_server.storage_options)
    table, other = (
        replace(make(f"s3://{bucket}/{name}", s3_server.storage_options), options=options)
        for name, make in (("t", with_work), ("other", simple))
    )
    below = places(table)[seed % 4]
    verbs = {"PUT", "POST", "DELETE"} | ({"GET", "HEAD"} if chance.random() < 0.5 else set())
    first = proxy.requests + chance.randrange(60)

    def forbidden(method: str, key: str) -> bool:
        closed = key.startswith(f"{bucket}/t/{below}")
        return proxy.requests >= first and method in verbs and closed

    proxy.toxics = Toxics(forbidden=forbidden)
    progress = Watched()
    told, well = live.maintain(table, other, progress=progress).tables
    proxy.toxics = NONE
    print(f"{below} {sorted(verbs)}: {dict(proxy.faults)}, exit {told.exit_code}: {told.error}")
    assert not progress.traces, progress.traces[0]
    assert (well.outcome, well.error) == (DONE, None)
    if proxy.faults["forbidden"] and told.error is not None:
        assert told.exit_code in (1, 2, 6)
        assert below.rstrip("/") in told.error
        assert re.search("access refused|AccessDenied|access denied", told.error)
    builders.same_rows(table.lsm_rows(), table.truth(), "while it was closed")
    claim = table.stores.leases.current()
    if claim is not None and table.stores.leases.is_live(claim):
        table.stores.leases.break_("its release was refused")
    live.finish(table, grace=lambda: time.sleep(live.GRACE_SECONDS))
    builders.same_rows(table.lsm_rows(), table.truth(), "open again")
    live.check_verified(table)


@pytest.mark.nightly
def test_a_shard_that_is_closed_on_s3_does_not_stop_the_others(
    s3_server: S3Server, proxy: S3Proxy
) -> None:
    bucket = s3_server.make_bucket()
    table = with_work(f"s3://{bucket}/t", s3_server.storage_options)
    closed, opened = table.shards
    table = replace(table, options=proxy.options(s3_server.storage_options))
    prefix = f"{bucket}/t/{layout.shard_folder(closed)}/"
    proxy.toxics = Toxics(forbidden=lambda method, key: key.startswith(prefix))
    report = run_merge(MergeOptions(tables=[live.resolved(table)], engine="local"), Watched())
    proxy.toxics = NONE
    assert report.exit_code == 6
    (told,) = report.tables
    assert isinstance(told, MergeTableReport)
    outcomes = {shard.shard_id: shard.outcome for shard in told.shards}
    assert outcomes == {closed: "failed", opened: DONE}
    assert f"{table.uri}/{layout.shard_folder(closed)}/" in str(told.error)
    assert "access refused" in str(told.error)
    live.finish(table, grace=lambda: time.sleep(live.GRACE_SECONDS))
    builders.same_rows(table.base_rows(), table.truth(), "open again")
