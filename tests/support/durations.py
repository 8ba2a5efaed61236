"""pytest plugin: how long each test file takes, kept in a file; the longest start first.

`--record-durations FILE` (`make durations`) renews what FILE says about the files that ran.
"""

from __future__ import annotations

import fcntl
import json
from collections import defaultdict
from collections.abc import Mapping
from math import inf
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "durations.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--record-durations", metavar="FILE", help="keep the seconds of each test file in FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Under xdist, reports of all processes arrive where it was started."""
    file = config.getoption("record_durations")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file).resolve(), config.rootpath))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among several processes, the longest files first: nothing should wait for them at the end."""
    if hasattr(config, "workerinput"):
        seconds = read(KEPT)
        items.sort(key=lambda item: rank(item.path, seconds))


def rank(path: Path, seconds: Mapping[str, float]) -> float:
    """The longest files have the lowest, but for those that nobody has measured yet."""
    return -seconds.get(name_of(path), inf)


def name_of(path: Path) -> str:
    """How FILE calls a test file."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def read(file: Path) -> dict[str, float]:
    """Seconds by test file; nothing when there is no such file."""
    return json.loads(file.read_text() or "{}") if file.exists() else {}


def merge(file: Path, measured: Mapping[str, float], root: Path = ROOT) -> None:
    """Renew what was measured, and forget test files that are gone.

    The two suites end at any time, also at the same one.
    """
    with file.open("a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        seconds = json.loads(opened.read() or "{}")
        seconds |= {name: round(value, 1) for name, value in measured.items()}
        kept = {name: seconds[name] for name in sorted(seconds) if (root / name).exists()}
        opened.truncate(0)
        opened.write(json.dumps(kept, indent=0) + "\n")


class Recorder:
    """Adds up what the tests of each file took, with their fixtures."""

    def __init__(self, file: Path, rootpath: Path) -> None:
        self.file = file
        self._rootpath = rootpath
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each test, in any process."""
        path = self._rootpath / report.nodeid.partition("::")[0]
        self._seconds[name_of(path)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Also after failures: they take about as long. What was interrupted took longer."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            merge(self.file, self._seconds)
