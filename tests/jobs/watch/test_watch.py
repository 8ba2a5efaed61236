"""`memwal watch` on real tables: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.format import layout
from memwal.store.records.lease import StoredLeases
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.command import run_here
from tests.support.nursery import Started, run_memwal, start_memwal

Wanted = Callable[[dict[str, Any]], bool]
Steps = Generator[Wanted, list[dict[str, Any]], None]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for shard in table.shards:
        table.flush(shard, Put([1, 30], 1))
    return table


def read_events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def watch(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """One that starts no worker: it only looks, or is refused."""
    done = run_here("watch", *arguments, "--json")
    return done.returncode, read_events(done.stdout), done.stderr


def until(started: Started, wanted: Wanted) -> list[dict[str, Any]]:
    """The events up to one."""
    found = []
    for line in started.stdout:
        found.append(json.loads(line))
        if wanted(found[-1]):
            return found
    raise AssertionError(f"it ended: {found}, {started.stderr.read()}")


def of(event: str, table: str | None = None) -> Wanted:
    return lambda found: found["event"] == event and table in (None, found["table"])


@pytest.mark.integration
def test_a_dry_run_only_looks_and_a_table_that_was_never_seen_is_told_at_the_end(
    table: Table, tmp_path: Path
) -> None:
    before = table.versions()
    code, events, _ = watch(table.uri, "--dry-run", "--once")
    assert (code, [e["event"] for e in events]) == (0, ["look"])
    assert events[0]["needs"] == ["merge", "index-catchup"]
    assert table.versions() == before
    assert not (Path(table.uri) / layout.MAINTENANCE).exists()
    code, _, error = watch(table.uri, tmp_path / "none", "--dry-run", "--for", "200ms")
    assert (code, "no such table" in error) == (2, True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("./t", "--all"), 2, "--all is every table"),
        (("./t", "--freshness", "0s"), 2, "--freshness 0s: "),
        (("./t", "--every", "0s"), 2, "--every: "),
        (("tabel",), 2, "tabel: no such table"),
        (("./t", "--no-lease"), 5, "--no-lease"),
        (("./t", "--metrics-host", "0.0.0.0"), 2, "--metrics-port"),
        (("./t", "--metrics-port", "0", "--metrics-host", "192.0.2.1"), 2, "192.0.2.1"),
    ],
)
def test_what_is_no_request_is_named(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run_here("watch", *arguments)
    assert done.returncode == code
    assert text in done.stderr


@pytest.mark.integration
def test_a_port_that_is_taken_ends_it_before_its_work(table: Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, events, error = watch(table.uri, "--once", "--metrics-port", port)
    assert (code, [(e["event"], e["exit_code"]) for e in events]) == (2, [("error", 2)])
    assert f"port {port} of 127.0.0.1: Address already in use" in error
    assert not Path(table.uri, layout.MAINTENANCE).exists()


# ---- with worker processes


@pytest.mark.nightly
def test_once_brings_tables_up_to_date_and_exits_as_maintain_does(
    table: Table, tmp_path: Path
) -> None:
    def once(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
        done = run_memwal("watch", *arguments, "--once", "--json")
        first, *others = read_events(done.stdout)
        # While its workers start it may look again.
        return done.returncode, [first, *(e for e in others if e["event"] != "look")]

    code, events = once(table.uri)
    assert (code, [e["event"] for e in events]) == (0, ["look", "merge", "index-catchup"])
    look, merge, _ = events
    assert (look["pending_generations"], merge["generations"]) == (2, 2)
    assert merge["version"] > look["version"]
    assert all(e["table"] == table.uri and e["at"].endswith("+00:00") for e in events)
    builders.check_merged(table)
    code, events = once(table.uri)
    assert (code, [e["event"] for e in events]) == (0, ["look"])
    assert events[0]["reclaimable_generations"] == 2
    code, events = once(table.uri, "--retention", "7d")
    assert (code, [e["event"] for e in events]) == (0, ["look"])
    assert once(table.uri, tmp_path / "none")[0] == 6


@pytest.mark.nightly
def test_it_keeps_a_table_fresh_until_sigterm(table: Table) -> None:
    with start_memwal("watch", table.uri, "--json", "--freshness", "4s", "--every", "1s") as run:
        until(run, of("merge"))
        table.flush(table.shards[0], Put([31], 2))
        flushed_at = time.monotonic()
        until(run, lambda e: e["event"] == "merge" and e["rows_inserted"] == 1)
        assert time.monotonic() - flushed_at < 8
        os.kill(run.pid, signal.SIGTERM)
        ended = time.monotonic()
        assert run.wait() == 0
        assert time.monotonic() - ended < 10
    builders.check_merged(table)
    leases = StoredLeases(table.stores.objects, SystemClock())
    claim = leases.current()
    assert claim is None or not leases.is_live(claim)


@pytest.mark.nightly
def test_a_reader_that_goes_away_ends_it_quietly(table: Table) -> None:
    with start_memwal("watch", table.uri, "--json", "--freshness", "4s", "--every", "1s") as run:
        until(run, of("look"))
        run.stdout.close()
        table.flush(table.shards[0], Put([31], 2))
        assert run.wait() == 0
        assert run.stderr.read() == ""
