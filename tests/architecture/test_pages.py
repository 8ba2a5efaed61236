"""The pages: links lead somewhere, commands have options that exist, code can be read."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from memwal.cli.app import app
from tests.architecture.files import ROOT, modules, pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:memwal|make) [^`]+)`")
_command = cache(typer.main.get_command)


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


@cache
def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_somewhere(page: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    if "://" in link:
        return True
    target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    return target.exists() and (
        not anchor or anchor in anchors(target.relative_to(ROOT).as_posix())
    )


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page, text in pages().items() for link in _LINK.findall(text)]
    assert len(links) > 200
    assert [(page, link) for page, link in links if not leads_somewhere(page, link)] == []


def test_commands_have_options_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    found = [(page, command) for page in pages() for command in commands(page)]
    made = [each for each in found if each[1].startswith("make ")]
    run = [each for each in found if each[1].startswith("memwal ")]
    assert len(made) > 10 and len(run) > 30
    assert [each for each in made if words_of(each[1])[1] not in targets] == []
    assert [(*each, word) for each in run for word in unknown(words_of(each[1])[1:])] == []


def test_what_messages_tell_to_run_exists() -> None:
    told = [
        (name, command)
        for name, text in modules().items()
        # A literal that goes on is one.
        for command in re.findall(r"`(memwal [a-z][^`]*)`", re.sub(r'"\s+f?"', "", text))
    ]
    assert len(told) > 30
    assert [(*each, word) for each in told for word in unknown(words_of(each[1])[1:])] == []


def words_of(command: str) -> list[str]:
    """Its words. Brackets, which say that something may be left out, are no part of it."""
    plain = command.replace("[-", "-").replace("]", "")
    return shlex.split(plain.replace("…", ""), comments=True)


def unknown(words: list[str]) -> list[str]:
    """Commands and options that memwal does not have."""
    found: Any = _command(app)
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
        options += _command(app).commands[words[1]].params  # type: ignore[attr-defined]
    known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    return [word for word in words if word.startswith("--") and word not in known | {"--help"}]


def test_an_option_that_does_not_exist_is_noticed() -> None:
    assert unknown(["merge", "TABLE", "--dry-run"]) == []
    assert unknown(["merge", "TABLE", "--dry", "--no-lease"]) == ["--dry"]
    assert unknown(["lease", "break", "TABLE", "--reason", "x"]) == []
    assert unknown(["merges", "TABLE"]) == ["merges"]
    assert unknown(["backup", "lists", "DEST"]) == ["lists"]
    assert unknown(["submit", "merge", "TABLE", "--conf", "--no-lease", "--grace"]) == ["--grace"]
    assert unknown(["inspect", "index|wall", "TABLE"]) == ["wall"]


def test_code_can_be_read() -> None:
    for page in pages():
        for code in blocks(page, "python"):
            ast.parse(code, page)
        for code in blocks(page, "toml"):
            tomllib.loads(code)
