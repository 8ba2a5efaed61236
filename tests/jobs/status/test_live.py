"""`memwal status --live` on real tables: once, in a terminal, and through a watch's metrics."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.builders import Put
from tests.support.command import run_here
from tests.support.nursery import start_memwal

# What is forked becomes another program at once.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables, one of them behind, and a name that leads to none."""
    folder = tmp_path_factory.mktemp("top")
    tables = {name: builders.make_table(folder / name, rows=range(9), shards=2) for name in "ab"}
    for shard in tables["b"].shards:
        tables["b"].flush(shard, Put([1, 30], 1))
    names = {**{name: table.uri for name, table in tables.items()}, "gone": folder / "none"}
    lines = [f'[tables.{name}]\nuri = "{uri}"\n' for name, uri in names.items()]
    (folder / "memwal.toml").write_text("".join(lines))
    return folder


def list_files(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}


def look(*options: object) -> tuple[int, dict[str, Any]]:
    done = run_here("status", "--json", *options)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.integration
def test_where_stdout_is_no_terminal_it_is_shown_once(here: Path) -> None:
    before = list_files(here)
    done = run_here("status", "--all", "--live")
    assert done.returncode == 6
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["table", "pending", "bytes", "oldest", "lag", "garbage", "now"]
    assert [row.split()[:2] for row in rows[:3]] == [["gone", "?"], ["b", "2"], ["a", "0"]]
    assert "no such table" in rows[3]
    assert rows[4].startswith("3 tables; 1 to look after")
    assert list_files(here) == before


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["a", "--every", "0s"], "--every 0s: expected 100ms or more"),
        (["a", "--until", "merged"], "not with --live"),
        (["--from", "http://localhost:1", "a"], "name none beside it"),
        ([], "name the tables, or give --all"),
    ],
)
def test_what_it_refuses(options: list[str], text: str, here: Path) -> None:
    done = run_here("status", "--live", *options)
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.nightly
def test_a_watch_is_seen_through_its_metrics(here: Path) -> None:
    options = ("--all", "--dry-run", "--metrics-port", "0", "--every", "200ms")
    with start_memwal("watch", "--config", here / "memwal.toml", *options) as watch:
        address = re.search(r"http://\S+(?=/metrics)", watch.stderr.readline())
        assert address is not None
        wait_for(lambda: len(look("--from", address[0])[1]["tables"]) == 3)
        wait_for(lambda: look("--from", address[0])[1]["tables"][1]["pending_generations"] == 2)
        code, found = look("--from", address[0])
        assert (code, found["job"]) == (0, "status")
        _, behind, gone = found["tables"]
        assert (behind["table"], behind["attention"]) == ("b", [])
        assert (gone["table"], gone["outcome"]) == ("gone", "done")
        assert gone["attention"][0]["what"].startswith("NotATable")
        watch.kill()
    done = run_here("status", "--from", address[0])
    assert done.returncode == 1
    assert "Connection refused" in done.stderr


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Terminal:
    """A terminal that `memwal status --live` runs in."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process, self._ours = process, ours
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self) -> str:
        """What is on the screen now."""
        while select.select([self._ours], [], [], 0.05)[0]:
            self.shown += os.read(self._ours, 65536).decode()
        frame = self.shown.rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame)

    def until(self, pattern: str) -> str:
        """The screen, once it shows that."""
        deadline = time.monotonic() + 30
        while not re.search(pattern, screen := self.read(), re.DOTALL):
            assert time.monotonic() < deadline, screen
            assert self.process.poll() is None, self.shown
        return screen

    @property
    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._ours)


def _take_terminal(theirs: int) -> None:
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    # Ignored where the tests run in the background of a shell.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def open_terminal(folder: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (12, 100))
    program = Path(sys.executable).parent / "memwal"
    words = [str(program), "status", "--all", "--live", "--every", "200ms"]
    # pytest's workers have a size of their own there, which would hide the terminal's.
    own = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        words, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**own, "TERM": "xterm-256color"},
        preexec_fn=lambda: _take_terminal(theirs),
    )  # fmt: skip
    terminal = Terminal(process, ours)
    before = terminal.attributes
    try:
        yield terminal
        assert terminal.attributes == before
        assert terminal.shown.count("\x1b[?1049h") == terminal.shown.count("\x1b[?1049l") == 1
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


@pytest.mark.nightly
def test_it_stays_in_a_terminal_until_ctrl_c(folder: Path) -> None:
    with open_terminal(folder) as terminal:
        screen = terminal.until("gone.*b  .*a  .*3 tables; 1 to look after")
        assert len(screen.splitlines()) <= 12
        terminal.press("\x03")
        deadline = time.monotonic() + 20
        while terminal.process.poll() is None:  # what nobody reads would hold up its last words
            terminal.read()
            assert time.monotonic() < deadline
        terminal.read()
        assert terminal.process.returncode == 0
