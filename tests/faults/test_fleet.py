"""One `memwal watch` over healthy tables that are written to, and beside them sick ones."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from memwal.format import layout
from memwal.model import LeaseClaim
from memwal.run.stores import Stores, open_stores
from memwal.store.records.lease import encode_claim
from tests.bench.flushing import BASE_ROWS, DIM, Flushing
from tests.bench.tables import make_base, new_shards
from tests.support.sick_tables import BIG, DEADLY, SILENT, SickTables, find_pid
from tests.support.watching import Watch

pytestmark = [pytest.mark.nightly, pytest.mark.races]

HEALTHY = 20
OBJECTS = 20_000
WRITING_SECONDS = 10.0
SECONDS_MAX = 180.0
SHARED = 20
LEASE_SECONDS = 15.0
# On a machine that is busy with other tests.
ROUND_SECONDS = 60.0


def make_tables(folder: Path, count: int) -> dict[str, Path]:
    """Tables with an index each, written in one shard each; copies of one."""
    origin = folder / "origin"
    make_base(origin, BASE_ROWS, dim=DIM)
    lance.dataset(str(origin)).create_scalar_index("id", "BTREE")
    return {f"t{n}": Path(shutil.copytree(origin, folder / f"t{n}")) for n in range(count)}


def find_pending(tables: dict[str, Path]) -> dict[str, int]:
    """How many generations of each table are not merged, of those that have any."""
    views = {name: open_stores(str(path), {}).views.table() for name, path in tables.items()}
    counts = {n: sum(len(shard.pending) for shard in v.shards) for n, v in views.items()}
    return {name: count for name, count in counts.items() if count}


def until(there: Callable[[], bool], what: Callable[[], object], watch: Watch) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not there():
        assert watch.ended_with() is None, watch.stderr()
        assert time.monotonic() < deadline, f"{what()}; {watch.stderr()[-2000:]}"
        time.sleep(0.2)


def test_sick_tables_take_no_healthy_one_s_turn(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, HEALTHY)
    written = [(str(path), shard) for path in tables.values() for shard in new_shards(1)]
    config = tmp_path / "memwal.toml"
    with SickTables(tmp_path, objects=OBJECTS) as sick:
        lines = [f'[tables.{name}]\nuri = "{path}"\n' for name, path in tables.items()]
        config.write_text("".join([*lines, sick.config]))
        words = ["--all", "--config", config, "--json", "--freshness", "6s", "--every", "1s"]
        with Watch(words, tmp_path) as watch:
            with Flushing(written, HEALTHY / 2):
                time.sleep(WRITING_SECONDS)

            def told(table: str, event: str) -> list[dict[str, Any]]:
                return [e for _, e in watch.events if (e["table"], e["event"]) == (table, event)]

            def find_missed() -> list[str]:
                unmerged = [name for name in (*tables, BIG) if not told(name, "merge")]
                quiet = [
                    n for n, least in ((SILENT, 1), (DEADLY, 2)) if len(told(n, "error")) < least
                ]
                return [*unmerged, *quiet, *find_pending(tables)]

            until(lambda: not find_missed(), find_missed, watch)
            ran_seconds = time.time() - watch.events[0][0]
        deaths, away = told(DEADLY, "error"), told(SILENT, "error")
        assert all("SIGKILL" in e["message"] for e in deaths)
        for errors in (deaths, away):  # left alone for longer each time
            assert [e["failures"] for e in errors] == list(range(1, len(errors) + 1))
            assert all(e["retry_seconds"] > 2 ** (e["failures"] - 1) * 0.9 for e in errors)
        assert 2 ** (len(sick.killer.killed_at) - 2) < ran_seconds
        assert len(sick.silent.connections) < ran_seconds
        assert not told(BIG, "error") and not any(told(name, "error") for name in tables)
        assert find_pending({DEADLY: tmp_path / DEADLY})


def test_two_watches_share_tables_and_one_takes_over_from_one_that_is_killed(
    tmp_path: Path,
) -> None:
    """Without a coordinator: whoever has a table's lease works on it."""
    tables = make_tables(tmp_path, SHARED)
    written = [(str(path), shard) for path in tables.values() for shard in new_shards(1)]
    config = tmp_path / "memwal.toml"
    lines = [f'[tables.{name}]\nuri = "{path}"\n' for name, path in tables.items()]
    config.write_text("".join([f"[defaults]\nlease_seconds = {LEASE_SECONDS:g}\n", *lines]))
    words = ["--all", "--config", config, "--json", "--freshness", "4s", "--every", "1s"]
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()

    def merged_by(watch: Watch, since: float = 0.0) -> set[str]:
        return {e["table"] for at, e in watch.events if e["event"] == "merge" and at > since}

    with Watch(words, folders[0]) as first, Watch(words, folders[1]) as second:
        with Flushing(written, SHARED / 2) as writers:
            until(lambda: all(map(merged_by, (first, second))), lambda: "both to work", second)
            kill_in_mid_work(first, tables)
            killed_at = time.time()
            until(
                lambda: merged_by(second, killed_at) == set(tables),
                lambda: set(tables) - merged_by(second, killed_at),
                second,
            )
            took_seconds = time.time() - killed_at
            writers.stop()
        until(lambda: not find_pending(tables), lambda: find_pending(tables), second)
    assert took_seconds < LEASE_SECONDS + ROUND_SECONDS
    assert not [e for _, e in second.events if e["event"] == "error"]


def kill_in_mid_work(watch: Watch, tables: dict[str, Path]) -> None:
    """Kill a watch and its workers, once one of them has a table's lease, as if its host had died.

    Of a process that has ended on the same host, the others would take the lease over at once.
    """
    pids = {process.pid for process in watch.workers()}
    found = [open_stores(str(path), {}) for path in tables.values()]

    def find_held() -> list[tuple[Stores, LeaseClaim]]:
        claims = [(stores, stores.leases.current()) for stores in found]
        return [
            (stores, claim)
            for stores, claim in claims
            if claim and stores.leases.is_live(claim) and find_pid(claim.holder) in pids
        ]

    until(lambda: bool(find_held()), lambda: "a lease", watch)
    for process in watch.processes():
        os.kill(process.pid, signal.SIGKILL)
    watch.wait(10)
    for stores, claim in find_held():
        away = encode_claim(replace(claim, holder="who@another-host:1"))
        stores.objects.put(layout.lease_claim_path(claim.token), away)
