"""Makes text safe to show, whoever wrote it, and parses amounts as people write them.

The text goes to terminals, logs and Airflow.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

# Control characters, characters that change the direction of text or are invisible, halves of
# surrogate pairs, and the separators of lines and paragraphs.
_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")

_CODE = re.compile(r" \(MW-[A-Z]\d\d\)\Z")

_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([A-Za-z]{0,3})")
_BYTES = {"b": 1} | {
    unit: base**power
    for base, units in ((1000, ("kb", "mb", "gb", "tb")), (1024, ("kib", "mib", "gib", "tib")))
    for power, unit in enumerate(units, start=1)
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SECONDS_MAX = 36_500 * 86_400.0
BYTES_EXPECTED = "expected bytes, such as 268435456, 256MB or 1GiB"
SECONDS_EXPECTED = "expected seconds, such as 90, or 90s, 10m, 1h, 7d or 500ms"


def one_line(text: str) -> str:
    """Make text safe for a terminal or a log: one line, with unprintable characters escaped.

    Stored values, and messages of stores and libraries, may contain anything.
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSHOWN else c
        for c in text
    )


def iso_time(nanos: int | None, timespec: str = "seconds") -> str | None:
    """Return the time in UTC as ISO text, cut to the second or to `timespec`; None for None."""
    if nanos is None:
        return None
    return datetime.fromtimestamp(nanos // 10**6 / 1000, UTC).isoformat(timespec=timespec)


def shorten(text: str, characters_max: int) -> str:
    """Cut the text to that length; a code such as `(MW-K10)` at its end stays."""
    if len(text) <= characters_max:
        return text
    code = _CODE.search(text)
    end = f"…{code[0]}" if code else "…"
    return text[: characters_max - len(end)] + end


# Azure's addresses name a container where others have a user.
_CONTAINER = re.compile(r"abfss://[A-Za-z0-9$-]+@[A-Za-z0-9.-]+(?:/[^?#]*)?", re.IGNORECASE)


def mask_address(address: str) -> str:
    """Return an address as it may be shown: a user, a password or a query in it is starred out."""
    if _CONTAINER.fullmatch(address):
        return address
    # An address with too few slashes leads nowhere, but what it holds is as secret.
    match = re.match(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:/*|//)", address)
    if match is None:
        return address
    scheme, rest = match[0], address[match.end() :]
    rest, query, _ = rest.replace("#", "?").partition("?")
    place = rest.partition("/")[0]
    # A secret key may hold slashes, so a colon or an at sign in the host's place is enough.
    if "@" in place or (":" in place and "@" in rest):
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + rest + ("?***" if query else "")


def name_some(lines: Sequence[str], lines_max: int, what: str) -> tuple[str, ...]:
    """Return the first `lines_max` lines, and one that counts the rest of `what`."""
    more = len(lines) - lines_max
    return (*lines[:lines_max], *([f"and {more} more {what}"] if more > 0 else ()))


def count_of(number: int, what: str) -> str:
    """`1 shard`, `2 shards`: for words that take an s."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def name_columns(names: Iterable[str]) -> str:
    """`column a`, or `columns a, b`; the names come quoted."""
    found = list(names)
    return f"column{'' if len(found) == 1 else 's'} {', '.join(found)}"


def format_mb(size: float) -> str:
    """Format bytes as `268 MB`; MB is also a unit in which they can be given."""
    return f"{size / 1e6:,.0f} MB"


def parse_bytes(text: str) -> int:
    """Parse bytes: `268435456`, `256MB` (millions) or `1GiB` (powers of 2). Raises ValueError."""
    match = _AMOUNT.fullmatch(text.strip())
    unit = (match[2].lower() or "b") if match else ""
    if match is None or unit not in _BYTES or (unit == "b" and "." in match[1]):
        raise ValueError(f"{text!r}: {BYTES_EXPECTED}")
    return int(Decimal(match[1]) * _BYTES[unit])


def parse_seconds(text: str) -> float:
    """Parse seconds: `90`, `90s`, `10m`, `1h`, `7d` or `500ms`. Raises ValueError."""
    match = _AMOUNT.fullmatch(text.strip())
    unit = (match[2] or "s") if match else ""
    seconds = float(match[1]) * _SECONDS[unit] if match and unit in _SECONDS else None
    if seconds is None or seconds > _SECONDS_MAX:
        raise ValueError(f"{text!r}: {SECONDS_EXPECTED}")
    return seconds


def format_age(seconds: float | None) -> str:
    """Format a time span for people, in the largest unit that fits; `?` when unknown."""
    if seconds is None:
        return "?"
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def format_duration(seconds: float) -> str:
    """Format seconds so that `parse_seconds` reads the same: `1h`, `14d`, `90s`, `500ms`."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms" if seconds else "0s"
