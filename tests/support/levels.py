"""pytest plugin: each test has one of four levels, and is held to what its level may do.

A test without a marker is a unit test. What a test or a fixture of its own does is watched; what a
fixture of a session or a module does, such as one S3 server for all, is not.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest

LEVELS = {
    "integration": "real tables, one S3 server for all, commands in this process; no other one",
    "e2e": "a JVM, an Airflow, a browser, the demo: one of each",
    "nightly": "all else: processes, kills, races, chance; `make test` leaves it out",
}
UNIT = "unit"
_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
_SOCKET = {"socket.connect", "socket.bind"}
_FORBIDDEN = {UNIT: _PROCESS | _SOCKET | {"time.sleep", "lance"}, "integration": _PROCESS}


class Watch:
    """What the test that runs now must not do, and what it did of that."""

    def __init__(self) -> None:
        self.level = "nightly"
        self.done: list[str] = []
        self._others: set[int | None] = set()

    def start(self, level: str) -> None:
        """Watch from now on. Threads of tests before this one are not its own."""
        self._others = {thread.ident for thread in threading.enumerate()}
        self._others.discard(threading.get_ident())
        self.level, self.done = level, []

    def stop(self) -> list[str]:
        """What was done that the level forbids."""
        self.level = "nightly"
        return self.done

    def see(self, event: str, arguments: Any = ()) -> None:
        """Raises AssertionError where the level forbids it."""
        if event not in _FORBIDDEN.get(self.level, ()) or threading.get_ident() in self._others:
            return
        self.done.append(f"{event} {str(arguments)[:200]}")
        raise AssertionError(f"a test of level {self.level} must not: {self.done[-1]}")


_WATCH = Watch()


def pytest_configure(config: pytest.Config) -> None:
    """Levels are markers."""
    for name, meaning in LEVELS.items():
        config.addinivalue_line("markers", f"{name}: level of a test: {meaning}")
    sys.addaudithook(_WATCH.see)
    time.sleep = _seen("time.sleep", time.sleep)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What races, or starts a JVM, is nightly; but for the smoke."""
    needs = item.get_closest_marker("races") or item.get_closest_marker("spark")
    if needs and not item.get_closest_marker("e2e"):
        item.add_marker(pytest.mark.nightly)


def level_of(item: pytest.Item) -> str:
    """The level of a test: of several markers the last of `LEVELS`."""
    marked = [name for name in LEVELS if item.get_closest_marker(name)]
    return marked[-1] if marked else UNIT


@pytest.fixture(autouse=True)
def _kept_to_its_level(request: pytest.FixtureRequest) -> Iterator[None]:
    _watch_lance()
    _WATCH.start(level_of(request.node))
    yield
    done = _WATCH.stop()
    assert not done, f"done, and the error was swallowed: {done}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Any:
    """What is made for more than one test may be first needed in one."""
    level = _WATCH.level
    if fixturedef.scope != "function":
        _WATCH.level = "nightly"
    try:
        return (yield)
    finally:
        _WATCH.level = level


def _watch_lance() -> None:
    """From the first test on that finds Lance imported: importing it costs a second."""
    lance = sys.modules.get("lance")
    dataset = getattr(lance, "LanceDataset", None)
    if lance is None or dataset is None or hasattr(dataset.__init__, "__wrapped__"):
        return
    dataset.__init__ = _seen("lance", dataset.__init__)
    lance.write_dataset = _seen("lance", lance.write_dataset)


def _seen(event: str, function: Any) -> Any:
    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        _WATCH.see(event, arguments if event == "time.sleep" else ())
        return function(*arguments, **options)

    return call
