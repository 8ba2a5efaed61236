"""Tables that come and go in a namespace or a folder while they are watched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.config import NamespacedTable
from memwal.errors import MemWalError, StoreUnavailable
from memwal.jobs.watch.store import StoredNames
from memwal.testing import ManualClock
from tests.support import builders
from tests.support.builders import Put
from tests.support.namespace_server import TOKEN, NamespaceServer
from tests.support.nursery import Started, start_memwal

LAKE = NamespacedTable(namespace="lake", impl="dir", id=("sales", "*"), properties={})
POND = NamespacedTable(namespace="pond", impl="dir", id=("*",), properties={})


class Lists:
    """What each namespace answers, in turn; an event has to be set before it does."""

    def __init__(self, **answers: list[list[str] | MemWalError | threading.Event]) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, glob: NamespacedTable) -> list[str]:
        self.asked += 1
        answer = self.answers[glob.namespace].pop(0)
        if isinstance(answer, MemWalError):
            raise answer
        if isinstance(answer, threading.Event):
            answer.wait(60)
            return []
        return answer


def renew(names: StoredNames) -> bool:
    """Begin what is due, wait for it, and take it in."""
    began = names.renew()
    for thread in threading.enumerate():
        if thread.name == "memwal-names":
            thread.join(10)
    return names.renew() or began


def test_a_namespace_is_asked_once_an_interval_and_what_it_says_stays() -> None:
    clock, away = ManualClock(), StoreUnavailable("away")
    lists = Lists(lake=[["a"], ["a"], ["a", "b"], away, []])
    names = StoredNames(lists, clock, every_seconds=60.0)
    assert names.find(LAKE) == names.find(LAKE) == ["a"]
    assert not renew(names)
    assert lists.asked == 1
    for changed, found in ((False, ["a"]), (True, ["a", "b"]), (False, ["a", "b"])):
        clock.advance(60.0)
        assert renew(names) is changed
        assert names.find(LAKE) == found
    assert names.find_problems() == {"lake:sales.*": away}
    clock.advance(59.0)
    assert not renew(names)
    assert lists.asked == 4
    clock.advance(1.0)
    assert renew(names)
    assert (names.find(LAKE), names.find_problems()) == ([], {})


def test_a_namespace_that_never_answers_is_told_and_holds_up_no_other() -> None:
    clock, hung = ManualClock(), threading.Event()
    lists = Lists(lake=[["a"], hung, ["a"]], pond=[["x"], ["x", "y"], ["x"]])
    names = StoredNames(lists, clock, every_seconds=60.0)
    assert (names.find(LAKE), names.find(POND)) == (["a"], ["x"])
    clock.advance(60.0)
    names.renew()
    clock.advance(60.5)
    while not (changed := names.renew()):
        pass
    assert changed
    assert (names.find(LAKE), names.find(POND)) == (["a"], ["x", "y"])
    ((name, error),) = names.find_problems().items()
    assert (name, str(error)) == (
        "lake:sales.*", "lake:sales.*: no list of its tables for 60 s"
    )  # fmt: skip
    assert lists.answers["lake"] == [["a"]]
    hung.set()
    assert renew(names)
    assert names.find_problems() == {}


def until(started: Started, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events up to one."""
    found = []
    for line in started.stdout:
        found.append(json.loads(line))
        if wanted(found[-1]):
            return found
    raise AssertionError(f"it ended: {found}, {started.stderr.read()}")


@pytest.mark.nightly
def test_a_watch_finds_the_tables_of_a_namespace_as_they_come_and_go(tmp_path: Path) -> None:
    tables = [builders.make_table(tmp_path / name, rows=range(5), shards=1) for name in "ab"]
    config = tmp_path / "memwal.toml"
    with NamespaceServer(tables={"sales.a": tables[0].uri, "sales.c": "/nowhere"}) as server:
        config.write_text(
            f'[namespaces.lake]\nimpl = "rest"\nuri = "{server.uri}"\n'
            f'header.Authorization = "{TOKEN}"\n[watch]\nnames_every = "1s"\n'
        )
        arguments = ("--config", config, "--json", "--freshness", "2s", "--every", "1s")
        with start_memwal("watch", "lake:sales.[ab]", *arguments) as run:
            until(run, lambda e: e["event"] == "look")
            server.tables["sales.b"] = tables[1].uri
            tables[1].flush(tables[1].shards[0], Put([1, 30], 1))
            until(run, lambda e: e["table"] == "lake:sales.b" and e["event"] == "merge")
            server.is_away = True
            (*_, error) = until(run, lambda e: e["table"] is None)
            assert (error["event"], error["kept"]) == ("error", 2)
            assert "lake:sales.[ab]: the namespace fails" in error["message"]
            for name in ("sales.a", "sales.b"):
                del server.tables[name]
            server.is_away = False
            found = until(run, lambda e: e["table"] == "lake:sales.b" and e["event"] == "gone")
            assert [e["event"] for e in found if e["table"] is None] == ["fresh"]
            assert [e["table"] for e in found if e["event"] == "gone"] == [
                "lake:sales.a",
                "lake:sales.b",
            ]
            server.tables["sales.a"] = tables[0].uri
            until(run, lambda e: e["table"] == "lake:sales.a" and e["event"] == "look")
            os.kill(run.pid, signal.SIGTERM)
            assert run.wait() == 0
    builders.check_merged(tables[1])


@pytest.mark.nightly
def test_a_watch_finds_the_tables_below_a_folder(tmp_path: Path) -> None:
    first = builders.make_table(tmp_path / "lake" / "a.lance", rows=range(5), shards=1)
    config = tmp_path / "memwal.toml"
    config.write_text('[watch]\nnames_every = "1s"\n')
    arguments = ("--config", config, "--json", "--freshness", "2s", "--every", "1s")
    with start_memwal("watch", f"{tmp_path}/lake/", *arguments) as run:
        until(run, lambda e: e["event"] == "look")
        second = builders.make_table(tmp_path / "lake" / "team" / "b", rows=range(5), shards=1)
        second.flush(second.shards[0], Put([1, 30], 1))
        until(run, lambda e: e["table"] == second.uri and e["event"] == "merge")
        shutil.rmtree(first.uri)
        until(run, lambda e: e["table"] == first.uri and e["event"] == "gone")
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 0
    builders.check_merged(second)
