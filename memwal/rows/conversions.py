"""What a value may become on its way into a column, if it is asked for. Pure, and without Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from memwal.errors import Usage

Conversion = Literal["round", "utc", "text"]
"""What goes in changed, if it is asked for."""

MEANINGS: dict[Conversion, str] = {
    "round": "a number becomes the nearest that the column's float can be",
    "utc": "a time without a zone is one in UTC, and one with a zone becomes one of UTC",
    "text": "a text is read as CSV's are, and bytes that are UTF-8 are a text",
}


def read_conversions(names: Iterable[str]) -> frozenset[Conversion]:
    """The conversions of these names. Raises Usage."""
    names = frozenset(names)
    if unknown := sorted(names - MEANINGS.keys()):
        raise Usage(f"--convert {unknown[0]}: expected {', '.join(MEANINGS)}")
    return frozenset(conversion for conversion in MEANINGS if conversion in names)
