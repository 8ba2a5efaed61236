"""What the page on trouble says about the code of a message, and that on concepts about a word.

A wheel brings these pages, so that a terminal and Airflow can show what they say; in a checkout
they are the site's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from memwal.errors import MemWalError, Usage
from memwal.report import Section

_HERE = Path(__file__).parent
_DOCS = _HERE.parent / "docs"
PLACES = (_HERE / "trouble.md", _DOCS / "operate" / "trouble.md")
_CONCEPTS = (_HERE / "concepts.md", _DOCS / "concepts.md")

_ENTRY = re.compile(
    r"^### (MW-[A-Z]\d\d)\n\n- \*\*What\*\* \(exit (\d)\): (.*?)\n- \*\*Safe\*\*: (.*?)"
    r"\n- \*\*Do\*\*: (.*?)(?=\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
_WORD = re.compile(r"^\*\*([^*]+)\.\*\* (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_MORE = re.compile(r"\[more\]\(([^)]*)\)")
_CODE = re.compile(r"(?:MW-?)?([A-Z]\d\d)", re.IGNORECASE)


class Entry(Section):
    """What happened, what is safe, and what to do; `exit_code` is that of the error."""

    code: str
    exit_code: int
    what: str
    safe: str
    do: str


class Word(Section):
    """What a word means."""

    word: str
    meaning: str


def read_page(places: Sequence[Path] = ()) -> str:
    """Return the page on trouble, or that in `places`. A MemWalError if there is none here."""
    places = places or PLACES
    for place in places:
        if place.is_file():
            return place.read_text("utf-8")
    tried = " nor ".join(map(str, places))
    raise MemWalError(f"the page is missing: neither {tried} is there; install lance-memwal again")


@cache
def read_entries() -> dict[str, Entry]:
    """Read the entries of all codes, in order; links become their texts."""
    return {
        code: Entry(
            code=code, exit_code=int(exit_code), what=_join(what), safe=_join(safe), do=_join(do)
        )
        for code, exit_code, what, safe, do in _ENTRY.findall(read_page())
    }


def find_entry(text: str) -> Entry | Word:
    """Find the entry of a code, such as `MW-W01`, `mw-w01` or `W01`, or of a word. Raises Usage."""
    found = _CODE.fullmatch(text.strip(" ()"))
    entry = found and read_entries().get(f"MW-{found[1].upper()}")
    if entry:
        return entry
    words = _WORD.findall(read_page(_CONCEPTS))
    wanted = re.escape(text.strip().removesuffix("s") or "?")
    # The word that is explained, before one that an explanation mentions in italics.
    for pattern, part in ((rf"\b{wanted}s?\b", 0), (rf"\*{wanted}s?\*", 1)):
        for word in words:
            if re.search(pattern, word[part], re.IGNORECASE):
                return Word(word=word[0], meaning=_join(word[1]).replace("*", ""))
    known = ", ".join(word.lower() for word, _ in words)
    raise Usage(f"no code {text!r}: `memwal explain` lists all; nor such a word. Words: {known}")


def _join(text: str) -> str:
    joined = _MORE.sub(_name_page, " ".join(text.split()))
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", joined)


def _name_page(link: re.Match[str]) -> str:
    """In a terminal nobody can follow a link that says no more than "more"."""
    page, _, anchor = link[1].rpartition("/")[2].partition(".md")
    section = f'"{anchor.lstrip("#").replace("-", " ")}" on ' if anchor else ""
    return f"more: {section}the page {page or 'trouble'}"
