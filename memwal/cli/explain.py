"""`memwal explain`: what the code of a message means, and what to do; or what a word means."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.output import Document
from memwal.report import Section
from memwal.trouble import Entry, Word, find_entry, read_entries

if TYPE_CHECKING:
    from rich.console import Console


Codes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CODE|WORD...",
        help="Such as MW-W01, or generation. Default: list all codes.",
        show_default=False,
    ),
]


class ExplainDocument(Section):
    """The entries of the codes, and of words, in the order in which they were named."""

    entries: list[Entry]
    words: list[Word] = []


@command()
def explain(codes: Codes = None, *, flags: ReadFlags) -> Document:
    """Say what a message's code, or a word, means, and what to do."""
    found = list(dict.fromkeys(map(find_entry, codes or read_entries())))
    content = ExplainDocument(
        entries=[one for one in found if isinstance(one, Entry)],
        words=[one for one in found if isinstance(one, Word)],
    )
    return Document(
        content=content.to_json(),
        show=_show_entries if codes else _show_list,
    )


def _show_entries(content: Mapping[str, Any], console: Console) -> None:
    # A path or a command can't be copied from folded lines: only a screen gets those.
    width = get_terminal_size().columns if console.is_terminal else sys.maxsize
    for number, entry in enumerate(content["entries"]):
        if number:
            console.print()
        console.print(f"{entry['code']} (exit {entry['exit_code']})")
        for title, text in (("What:", "what"), ("Safe:", "safe"), ("Do:  ", "do")):
            for line in wrap(f"{title} {entry[text]}", width - 2, subsequent_indent=" " * 6):
                console.print(f"  {line}", markup=False, soft_wrap=True)
    for entry in content["words"]:
        for line in wrap(f"{entry['word']}: {entry['meaning']}", width, subsequent_indent="  "):
            console.print(line, markup=False, soft_wrap=True)


def _show_list(content: Mapping[str, Any], console: Console) -> None:
    for entry in content["entries"]:
        console.print(f"{entry['code']}  {entry['what']}", markup=False, soft_wrap=True)
