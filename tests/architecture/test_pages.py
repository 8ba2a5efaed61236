"""The pages: links lead somewhere, commands have options that exist, sentences can be read."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from memwal.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README_WORDS_MAX = 650
SENTENCE_WORDS_MAX = 35
CELL_WORDS_MAX = 25

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:memwal|make) [^`]+)`")


def pages() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(done.stdout.split())


PAGES = pages()


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    return [code for found, code in _FENCE.findall(text_of(page)) if found == language]


def indented(page: str) -> Iterator[str]:
    """Blocks of code that are indented, not fenced."""
    block: list[str] = []
    for line in [*_FENCE.sub("", text_of(page)).splitlines(), "end"]:
        if line.startswith("    ") or (block and not line):
            block.append(line)
        elif block:
            yield textwrap.dedent("\n".join(block)).strip()
            block = []


def commands(page: str) -> Iterator[str]:
    for block in indented(page):
        yield from (line for line in block.splitlines() if line.startswith(("memwal ", "make ")))
        scripts = re.findall(r"^spark-submit .*?jobs/(\w+)\.py(.*)$", block, re.MULTILINE)
        yield from (f"memwal {job.replace('_', '-')}{rest}" for job, rest in scripts)
    yield from (" ".join(found.split()) for found in _INLINE.findall(text_of(page)))


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_there_are_pages() -> None:
    assert {"README.md", "docs/promises/guarantees.md", "docs/guides/ingest.md"} <= set(PAGES)
    found = [command for page in PAGES for command in commands(page)]
    assert len([c for c in found if c.startswith("memwal ")]) > 30
    assert len([c for c in found if c.startswith("make ")]) > 10


def test_the_readme_is_for_newcomers() -> None:
    assert len(text_of("README.md").split()) <= README_WORDS_MAX, "move something to a page"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    lost = []
    for link in _LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target.relative_to(ROOT)))):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_options_that_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    wrong = []
    for command in commands(page):
        name, *words = words_of(command)
        if name == "make":
            wrong += [command] * (words[0] not in targets)
        else:
            wrong += [f"{command}: {word}" for word in unknown(words)]
    assert wrong == []


def test_what_messages_tell_to_run_exists() -> None:
    told, wrong = 0, []
    for folder in ("memwal", "jobs", "airflow_plugins", "dags"):
        for file in (ROOT / folder).rglob("*.py"):
            text = re.sub(r'"\s+f?"', "", file.read_text())  # a literal that goes on
            for command in re.findall(r"`(memwal [a-z][^`]*)`", text):
                told += 1
                wrong += [f"{file}: {command}: {word}" for word in unknown(words_of(command)[1:])]
    assert wrong == []
    assert told > 30


def words_of(command: str) -> list[str]:
    """Its words. Brackets, which say that something may be left out, are no part of it."""
    plain = command.replace("[-", "-").replace("]", "")
    return shlex.split(plain.replace("…", ""), comments=True)


def unknown(words: list[str]) -> list[str]:
    """Commands and options that memwal does not have."""
    found: Any = typer.main.get_command(app)
    place = 0
    while hasattr(found, "commands") and place < len(words):
        names = words[place].split("|")  # any of them
        missing = [name for name in names if name not in found.commands]
        default = getattr(found, "default_command", None)
        if missing and default and (words[place].isupper() or "://" in words[place]):
            found = found.commands[default]
            break
        if missing:
            return missing
        found, place = found.commands[names[0]], place + 1
    options = list(found.params)
    if words[:1] == ["submit"] and len(words) > 1:  # it passes on what the job takes
        options += typer.main.get_command(app).commands[words[1]].params  # type: ignore[attr-defined]
    known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    return [word for word in words if word.startswith("--") and word not in known | {"--help"}]


def test_an_option_that_does_not_exist_is_noticed() -> None:
    assert unknown(["merge", "TABLE", "--dry-run"]) == []
    assert unknown(["merge", "TABLE", "--dry", "--no-lease"]) == ["--dry"]
    assert unknown(["lease", "break", "TABLE", "--reason", "x"]) == []
    assert unknown(["merges", "TABLE"]) == ["merges"]
    assert unknown(["backup", "TABLE", "DEST", "--keep", "7", "--kept"]) == ["--kept"]
    assert unknown(["erase", "TABLE", "--key", "--keys", "--kez"]) == ["--kez"]
    assert unknown(["backup", "lists", "DEST"]) == ["lists"]
    assert unknown(["submit", "merge", "TABLE", "--conf", "--no-lease", "--grace"]) == ["--grace"]
    assert unknown(["inspect", "index|wall", "TABLE"]) == ["wall"]


@pytest.mark.parametrize("page", PAGES)
def test_code_can_be_read(page: str) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)
    for code in blocks(page, "toml"):
        tomllib.loads(code)


# ---- sentences


def count_words(text: str) -> int:
    """Code counts as one word, the address of a link as none."""
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>", " ", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def prose(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and headings, each on one line, without code."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |#)", text):
        if not block.startswith("    "):
            yield " ".join(block.split())


def sentences(text: str) -> Iterator[str]:
    for block in prose(text):
        hidden = re.sub(r"`[^`]*`", lambda code: re.sub(r"[.?!]", "_", code[0]), block)
        ends = [match.end() for match in re.finditer(r"[.?!][)\"*”]*\s", hidden)]
        for start, end in zip([0, *ends], [*ends, len(block)], strict=True):
            yield block[start:end].strip()


def cells(text: str) -> Iterator[str]:
    for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        yield from re.split(r"(?<!\\)\|", row)


@pytest.mark.parametrize("page", [p for p in PAGES if p == "README.md" or p.startswith("docs/")])
def test_sentences_and_cells_are_short(page: str) -> None:
    text = text_of(page)
    assert [s for s in sentences(text) if count_words(s) > SENTENCE_WORDS_MAX] == []
    assert [c for c in cells(text) if count_words(c) > CELL_WORDS_MAX] == []


def test_what_a_sentence_is() -> None:
    text = "# A head\n\nOne `a. b` two\nthree. Four\nfive (six.) Seven:\n\n- eight\n- nine\n"
    text += "\n    code\n"
    assert [*sentences(text)] == [
        "# A head", "One `a. b` two three.", "Four five (six.)", "Seven:", "- eight", "- nine",
    ]  # fmt: skip
    assert count_words("[two words](of/a/link.md), `one of code` — and a") == 5
    assert [*cells("| a | b \\| c |\n")] == [" a ", " b \\| c "]
