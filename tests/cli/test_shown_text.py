"""Text out of storage, or from anybody else, reaches a terminal or a log on one line, escaped."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from memwal.cli.console import RunProgress, print_trace, show_document, stderr, stdout
from memwal.config import ResolvedTable, Settings
from memwal.grid import build_table, numbers, words
from memwal.jobs.snapshot.job import run_snapshot
from memwal.run.options import RunOptions
from memwal.text import one_line
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import run_memwal

EVIL = "\x1b[31mroot\x1b]0;pwn\nerror: forged\x9b1m\u2028\u202ex[bold]y[/z]"
SHOWN = r"\x1b[31mroot\x1b]0;pwn\nerror: forged\x9b1m\u2028\u202ex[bold]y[/z]"


def forge(folder: Path, **fields: Any) -> None:
    """Changes the newest document in a folder of ours."""
    newest = max(folder.glob("[0-9]*.json"))
    newest.write_text(json.dumps({**json.loads(newest.read_text()), **fields}))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """One whose lease is held, and whose last run failed, by the words of somebody unkind."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    table.flush(shard, Put([1], 1))
    resolved = ResolvedTable(name=table.uri, uri=table.uri, settings=Settings(), storage_options={})
    run_snapshot(RunOptions(tables=[resolved]), RunProgress(quiet=True))
    ours = tmp_path / "t" / "_maintenance"
    forge(ours / "lease", holder=EVIL, job=EVIL, released=False, expires_at_nanos=2**62)
    forge(ours / "runs", error=EVIL)
    return table


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "code"),
    [("status", 0), ("runs", 0), ("merge", 4), ("merge --json", 4), ("merge --debug", 4)],
)
def test_what_is_stored_forges_no_line(table: Table, command: str, code: int) -> None:
    name, *flags = command.split()
    ran = run_memwal(name, table.uri, *flags)
    assert ran.returncode == code, ran.stderr
    shown = ran.stderr if "--json" in flags else ran.stdout
    assert SHOWN in shown
    for text in (ran.stdout, ran.stderr):
        assert all(c.isprintable() for c in text.replace("\n", ""))
        assert not any(line.startswith("error: forged") for line in text.splitlines())


@pytest.mark.parametrize("terminal", [False, True])
def test_the_consoles_escape_whatever_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
    stdout().print(EVIL, Text.assemble(("a", "bold"), EVIL))
    show_document({"text": EVIL, "list": [EVIL], "rows": [{"cell": EVIL}]}, stdout())
    with RunProgress(debug=True) as progress:
        progress.say(EVIL)
        progress.start(EVIL, 1)
        progress.done(1)
        progress.trace(f"Traceback\n{EVIL}")
    print_trace(EVIL, stderr())

    out, err = capsys.readouterr()
    assert (out + err).count("forged") >= 7
    plain = out + err
    # On a terminal there are codes of our own, for the bar.
    assert not any(code in plain for code in ("\x1b[31m", "\x1b]", "\x9b", "\u2028", "\u202e"))
    assert terminal or all(c.isprintable() for c in plain.replace("\n", ""))
    assert not any(line.startswith("error: forged") for line in plain.splitlines())


@pytest.mark.parametrize("text", ["plain", "a b", "naïve 表　格 🎉", "C:\\x", ""])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_what_would_move_the_cursor_is_escaped() -> None:
    assert one_line("a\r\b\x07\tb\x00\x7f\u200b\ud800") == r"a\r\x08\x07\tb\x00\x7f\u200b\ud800"


def test_a_narrow_terminal_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", "80")
    counts = [numbers(f"count {i}", lambda n: n) for i in range(6)]
    stdout().print(build_table([12_345_678], [words("shard", lambda n: "0f" * 18), *counts]))
    assert shown.getvalue().count("12,345,678") == 6
