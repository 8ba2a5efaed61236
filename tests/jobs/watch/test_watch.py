"""`memwal watch` on real tables: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.format import layout
from memwal.model import ShardStatus
from memwal.store.records.lease import StoredLeases
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import Started, run_memwal, start_memwal

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return flushed(builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True))


def flushed(table: Table) -> Table:
    for shard in table.shards:
        table.flush(shard, Put([1, 30], 1))
    return table


def read_events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def watch(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    done = run_memwal("watch", *arguments, "--json")
    return done.returncode, read_events(done.stdout), done.stderr


def until(started: Started, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events up to one."""
    found = []
    for line in started.stdout:
        found.append(json.loads(line))
        if wanted(found[-1]):
            return found
    raise AssertionError(f"it ended: {found}, {started.stderr.read()}")


def of(event: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["event"] == event


def test_once_brings_tables_up_to_date_and_says_so(table: Table) -> None:
    code, events, _ = watch(table.uri, "--once")
    assert code == 0
    assert [e["event"] for e in events] == ["look", "merge", "index-catchup"]
    look, merge, _ = events
    assert look["pending_generations"] == 2
    assert merge["generations"] == 2
    assert merge["version"] > look["version"]
    assert all(e["table"] == table.uri and e["at"].endswith("+00:00") for e in events)
    builders.check_merged(table)
    code, events, _ = watch(table.uri, "--once")
    assert (code, [e["event"] for e in events]) == (0, ["look", "space"])
    assert events[1]["reclaimable_generations"] == 2
    assert "--retention 7d" in events[1]["message"]
    code, events, _ = watch(table.uri, "--once", "--retention", "7d")
    assert (code, [e["event"] for e in events]) == (0, ["look"])


def test_it_explains_what_a_table_waits_for_and_changes_nothing(
    table: Table, tmp_path: Path
) -> None:
    version = table.dataset.version
    table.stores.leases.acquire("merge")
    code, (found,), _ = watch(table.uri, "--explain")
    assert (code, found["event"], found["table"]) == (0, "explain", table.uri)
    assert (found["priority"], found["freshness_seconds"]) == (5, 60.0)
    assert 0 < found["begins_in_seconds"] <= 30 and found["needs"] == []
    time, lease = found["waits_for"]
    assert "small flushes share a commit" in time
    assert lease.startswith("the lease, which merge of ")
    code, (found,), _ = watch(table.uri, "--explain", "--freshness", "1s")
    assert (found["needs"], found["begins_in_seconds"]) == (["merge", "index-catchup"], 0.0)
    assert table.dataset.version == version
    code, (found,), error = watch(tmp_path / "none", "--explain")
    assert (code, found["lag_seconds"]) == (2, None)
    assert "no such table" in found["waits_for"][0] and "no such table" in error


def test_once_exits_as_maintain_does(table: Table, tmp_path: Path) -> None:
    code, events, error = watch(tmp_path / "none", "--once")
    assert (code, [e["event"] for e in events]) == (2, ["error"])
    assert "no such table" in error
    code, _, _ = watch(table.uri, tmp_path / "none", "--once")
    assert code == 6
    builders.check_merged(table)


def test_a_table_that_was_never_seen_is_told_at_the_end(table: Table, tmp_path: Path) -> None:
    code, _, error = watch(tmp_path / "none", "--for", "1s")
    assert code == 2
    assert "no such table" in error
    code, _, _ = watch(table.uri, "--for", "1s", "--dry-run")
    assert code == 0


def test_a_sealed_shard_is_refused_and_the_other_merged(table: Table) -> None:
    first, _ = table.shards
    table.stores.shard_manifests.commit(
        manifest := table.stores.shard_manifests.latest(first),
        __import__("dataclasses").replace(
            manifest, version=manifest.version + 1, status=ShardStatus.SEALED
        ),
    )
    code, events, _ = watch(table.uri, "--once")
    assert code == 6
    (error,) = [e for e in events if e["event"] == "error"]
    assert "SEALED" in error["message"]
    assert error["exit_code"] == 5


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


def test_a_reader_that_goes_away_ends_it_quietly(table: Table) -> None:
    with start_memwal("watch", table.uri, "--json", "--freshness", "4s", "--every", "1s") as run:
        until(run, of("look"))
        run.stdout.close()
        table.flush(table.shards[0], Put([31], 2))
        assert run.wait() == 0
        assert run.stderr.read() == ""


def test_a_changed_configuration_is_read_and_a_broken_one_is_not(
    table: Table, tmp_path: Path
) -> None:
    config = tmp_path / "memwal.toml"

    def write(text: str) -> None:  # so that nobody reads half of it
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(config)

    write(f'[defaults]\nfreshness = "4s"\n[tables.one]\nuri = "{table.uri}"\n')
    other = builders.make_table(tmp_path / "other", rows=range(5), shards=1)
    with start_memwal("watch", "--all", "--config", config, "--json", "--every", "500us") as run:
        assert run.wait() == 2
    with start_memwal("watch", "--all", "--config", config, "--json", "--every", "1s") as run:
        until(run, of("look"))
        good = config.read_text()
        write("[tables.one\n")
        (*_, error) = until(run, lambda e: e["table"] is None)
        assert error["event"] == "error"
        assert "not valid TOML" in error["message"]
        write("# to be written anew\n")
        (*_, error) = until(run, lambda e: e["table"] is None)
        assert "none of the tables" in error["message"]
        write(f'{good}[tables.two]\nuri = "{other.uri}"\n')
        found = until(run, lambda e: e["table"] == "two" and e["event"] == "look")
        assert [e["event"] for e in found if e["table"] is None] == ["fresh"]
        config.unlink()
        (*_, error) = until(run, lambda e: e["table"] is None)
        assert "gone" in error["message"]
        write(good.replace("tables.one", "tables.three"))
        until(run, lambda e: e["table"] == "three")
        write("")
        (*_, error) = until(run, lambda e: e["table"] is None and e["event"] == "error")
        assert "none of the tables to watch is in it" in error["message"]
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "name the tables"),
        (("./t", "--all"), 2, "--all is every table"),
        (("./t", "--freshness", "soon"), 2, "--freshness 'soon'"),
        (("./t", "--freshness", "0s"), 2, "freshness: "),
        (("./t", "--every", "0s"), 2, "--every: "),
        (("./t", "--for", "5"), 2, "--for '5'"),
        (("tabel",), 2, "tabel: no such table"),
        (("./t", "--no-lease"), 5, "--no-lease"),
        (("./t", "--metrics-host", "0.0.0.0"), 2, "--metrics-port"),
        (("./t", "--metrics-port", "65536"), 2, "65535"),
        (("./t", "--metrics-port", "0", "--metrics-host", "192.0.2.1"), 2, "--metrics-host takes"),
    ],
)
def test_what_is_no_request_is_named(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run_memwal("watch", *arguments)
    assert done.returncode == code
    assert text in done.stderr


def test_a_port_that_is_taken_ends_it_before_its_work(table: Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, events, error = watch(table.uri, "--once", "--metrics-port", port)
    assert (code, [(e["event"], e["exit_code"]) for e in events]) == (2, [("error", 2)])
    assert f"port {port} of 127.0.0.1: Address already in use" in error
    assert not Path(table.uri, layout.MAINTENANCE).exists()


def test_guards_of_garbage_hold_before_the_first_look(table: Table, tmp_path: Path) -> None:
    config = tmp_path / "memwal.toml"
    for guarded in ('retention = "1h"', 'grace = "1s"'):
        config.write_text(
            f'[watch]\ngarbage_execute = true\n{guarded}\n[tables.t]\nuri = "{table.uri}"\n'
        )
        code, events, error = watch("t", "--config", config, "--once")
        assert (code, [e["event"] for e in events]) == (5, ["error"])
        assert "--allow-short-retention" in error


def test_a_dry_run_only_looks(table: Table) -> None:
    before = table.versions()
    code, events, _ = watch(table.uri, "--dry-run", "--for", "2s", "--freshness", "1s")
    assert code == 0
    assert [e["event"] for e in events][:1] == ["look"]
    assert events[0]["needs"] == ["merge", "index-catchup"]
    assert table.versions() == before
    assert not (Path(table.uri) / layout.MAINTENANCE).exists()


def test_freshness_comes_from_the_table_the_defaults_and_the_environment(tmp_path: Path) -> None:
    from memwal.config import load_config, resolve_table

    config = tmp_path / "memwal.toml"
    config.write_text(
        '[defaults]\nfreshness = "2m"\n[tables.a]\nuri = "/a"\nfreshness = "90s"\n'
        '[tables.b]\nuri = "/b"\n'
    )
    loaded = load_config(str(config), {})
    assert resolve_table("a", loaded, {}, {}).settings.freshness == 90.0
    assert resolve_table("b", loaded, {}, {}).settings.freshness == 120.0
    given = {"MEMWAL_FRESHNESS": "30s"}
    assert resolve_table("a", loaded, {}, given).settings.freshness == 30.0
