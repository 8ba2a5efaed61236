"""Text as it may be shown, whoever wrote it: on terminals, in logs, in Airflow."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

# Control characters, those that turn the direction of text or hide in it, halves of surrogate
# pairs, and the separators of lines and paragraphs.
_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str) -> str:
    """Text that is safe on a terminal or in a log: one line, unprintable characters escaped.

    What is stored, and what a store or a library says, may be anybody's text.
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSHOWN else c
        for c in text
    )


def iso_time(nanos: int | None, timespec: str = "seconds") -> str | None:
    """The time in UTC, cut to the second or what `timespec` says; None for None."""
    if nanos is None:
        return None
    return datetime.fromtimestamp(nanos // 10**6 / 1000, UTC).isoformat(timespec=timespec)


def shorten(text: str, characters_max: int) -> str:
    """The text, cut where it is longer than that."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def name_some(lines: Sequence[str], lines_max: int, what: str) -> tuple[str, ...]:
    """The first lines, and how many more there are of `what`: there may be very many."""
    more = len(lines) - lines_max
    return (*lines[:lines_max], *([f"and {more} more {what}"] if more > 0 else ()))
