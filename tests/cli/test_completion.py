"""What a shell offers behind the cursor: words of an option, configured tables, checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import memwal
from memwal.cli import main
from tests.support import builders


def complete(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("sys.argv", ["memwal"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # else that is the program
    monkeypatch.setenv("_MEMWAL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.integration
def test_words_tables_and_checkpoints_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = builders.make_table(tmp_path / "t")
    memwal.open_table(table.uri).checkpoint("monday")
    monkeypatch.chdir(tmp_path)
    Path("memwal.toml").write_text("[tables.tickets]\nuri = 't'\n[tables.orders]\nuri = 'o'\n")
    for line, offered in {
        "memwal maintain tickets --compaction a": "auto always",
        "memwal merge --engine s": "spark",
        "memwal merge t": "tickets",
        "memwal read ": "tickets orders",
        "memwal read tickets --checkpoint m": "monday",
        "memwal checkpoint drop tickets ": "monday",
        "memwal checkpoint drop orders ": "",
    }.items():
        assert complete(line, monkeypatch, capsys) == offered, line
