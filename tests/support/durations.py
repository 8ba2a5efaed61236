"""pytest plugin: how long each test file takes, kept in a file; the longest start first.

`--record-durations FILE` renews what FILE says about the files that ran; `make test-nightly` does.
`--part 1/3` runs a third of the files, which takes a third of the time.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "durations.json"
# Seconds of a file, by level: what `make test` runs of it, and what the night adds.
Seconds = dict[str, dict[str, float]]
UNMEASURED_SECONDS = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    parser.addoption(
        "--record-durations", metavar="FILE", help="keep the seconds of each test file in FILE"
    )
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts that take equally long")


def pytest_configure(config: pytest.Config) -> None:
    """Under xdist, reports of all processes arrive where it was started."""
    file = config.getoption("record_durations")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file).resolve(), config.rootpath))


@pytest.hookimpl(trylast=True)  # behind what selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first: nothing should wait for them at the end."""
    nightly = any(item.get_closest_marker("nightly") for item in items)
    seconds = {name_of(item.path): 0.0 for item in items}
    # Parts are those of the commit, although the part before has renewed what is kept.
    known = read_committed() if config.getoption("part") else read(KEPT)
    for name in seconds:
        levels = known.get(name, {"test": UNMEASURED_SECONDS})
        seconds[name] = sum(levels.values()) if nightly else levels.get("test", 0.0)
    items.sort(key=lambda item: -seconds[name_of(item.path)])
    if part := config.getoption("part"):
        number, parts = map(int, part.split("/"))
        chosen = split(seconds, parts)[number - 1]
        left_out = [item for item in items if name_of(item.path) not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if name_of(item.path) in chosen]


def split(seconds: Mapping[str, float], parts: int) -> list[set[str]]:
    """Files in parts that take about equally long."""
    chosen: list[set[str]] = [set() for _ in range(parts)]
    total = [0.0] * parts
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        least = total.index(min(total))
        chosen[least].add(name)
        total[least] += seconds[name]
    return chosen


def name_of(path: Path) -> str:
    """How FILE calls a test file."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def read(file: Path) -> Seconds:
    """Seconds by test file and level; nothing when there is no such file."""
    return json.loads(file.read_text() or "{}") if file.exists() else {}


def read_committed() -> Seconds:
    """As `read`, of the commit; what is kept now, where there is none."""
    words = ["git", "show", f"HEAD:{name_of(KEPT)}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    found: Seconds = json.loads(done.stdout) if done.returncode == 0 else read(KEPT)
    return found


def merge(file: Path, measured: Mapping[str, Mapping[str, float]], root: Path = ROOT) -> None:
    """Renew what was measured, and forget test files that are gone."""
    seconds = read(file)
    for name, levels in measured.items():
        rounded = {level: round(value, 1) for level, value in sorted(levels.items())}
        seconds[name] = seconds.get(name, {}) | rounded
    kept = {name: seconds[name] for name in sorted(seconds) if (root / name).exists()}
    lines = (f"{json.dumps(name)}: {json.dumps(levels)}" for name, levels in kept.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class Recorder:
    """Adds up what the tests of each file took, with their fixtures."""

    def __init__(self, file: Path, rootpath: Path) -> None:
        self.file = file
        self._rootpath = rootpath
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each test, in any process."""
        path = self._rootpath / report.nodeid.partition("::")[0]
        level = "nightly" if "nightly" in report.keywords else "test"
        self._seconds[name_of(path)][level] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Also after failures: they take about as long. What was interrupted took longer."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            merge(self.file, self._seconds)
