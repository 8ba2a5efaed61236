"""`memwal explain`: the page's entries in the terminal, and the errors that lead there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.cli import main
from memwal.cli.commands import ELSEWHERE
from memwal.trouble import read_entries, read_page

Run = Callable[..., tuple[object, str, str]]
HEADINGS = re.findall(r"^### (MW-\S+)", read_page(), re.MULTILINE)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns its exit code, stdout and stderr."""

    def run_command(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run_command


def test_every_heading_of_the_page_is_an_entry() -> None:
    assert len(HEADINGS) > 100
    assert list(read_entries()) == HEADINGS
    for entry in read_entries().values():
        assert not re.search(r"\]\(|\*\*|\n", entry.what + entry.safe + entry.do), entry.code


def test_a_link_that_says_no_more_than_more_is_told_in_words() -> None:
    entry = read_entries()["MW-T01"]
    assert '(more: "before the write spec changes" on the page cases)' in entry.do
    assert not any("(more)" in e.do for e in read_entries().values())


@pytest.mark.parametrize("text", ["MW-W01", "mw-w01", "W01", "w01", "(MW-W01)"])
def test_a_code_is_found_as_people_write_it(text: str, run: Run) -> None:
    _, found, _ = run("explain", text)
    assert found.startswith("MW-W01 (exit 8)\n  What: a shard's WAL has a missing")
    assert len(found.splitlines()) == 4  # nothing is folded off a screen
    (entry,) = json.loads(run("explain", text, "--json")[1])["entries"]
    assert entry == read_entries()["MW-W01"].to_json()


def test_several_codes_and_all(run: Run) -> None:
    _, found, _ = run("explain", "G01", "MW-W01", "g01")
    assert re.findall(r"^MW-\S+", found, re.MULTILINE) == ["MW-G01", "MW-W01"]
    assert [line[:6] for line in run("explain")[1].splitlines()] == HEADINGS


@pytest.mark.parametrize("text", ["MW-Z99", "W1", "", "vakuum", "MW-W01x"])
def test_an_unknown_code_is_usage(text: str, run: Run) -> None:
    code, _, errors = run("explain", text)
    assert (code, errors.count("`memwal explain` lists all")) == (2, 1)


@pytest.mark.parametrize(
    ("text", "word"),
    [("generations", "Generation"), ("DUE", "Due"), ("catch-up", "Index catch-up"),
     ("fenced", "Epoch"), ("reclaimable", "Garbage"), ("grace", "Drop and grace")],
)  # fmt: skip
def test_a_word_has_the_entry_of_concepts(text: str, word: str, run: Run) -> None:
    _, found, _ = run("explain", text)
    assert found.startswith(f"{word}: ") and not re.search(r"\*|\]\(", found)
    (entry,) = json.loads(run("explain", text, "--json")[1])["words"]
    assert entry["word"] == word


@pytest.mark.parametrize("verb", ELSEWHERE)
def test_who_comes_from_another_format_is_told_our_command(verb: str, run: Run) -> None:
    code, _, errors = run(verb.replace("-", "_"), "t")
    assert code == 2 and f"Here it is `memwal {ELSEWHERE[verb]}`: " in errors


def test_an_error_ends_by_naming_the_command_once(tmp_path: Path, run: Run) -> None:
    tables = [str(tmp_path / name) for name in ("a.lance", "b.lance")]
    for table in tables:
        lance.write_dataset(pa.table({"k": [1]}), table)
    code, _, errors = run("garbage", *tables, "--grace", "1s")
    assert code == 5
    assert errors.endswith("what to do: memwal explain MW-G01\n")
    assert errors.count("memwal explain") == 1
    _, _, logged = run("garbage", tables[0], "--grace", "1s", "--log-format", "json")
    assert "MW-G01" in logged
    assert "memwal explain" not in logged
