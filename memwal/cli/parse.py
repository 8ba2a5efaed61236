"""Parses the values on a command line. Every function raises Usage for an invalid value."""

from __future__ import annotations

from memwal.errors import Usage
from memwal.text import parse_bytes, parse_seconds


def parse_duration(text: str, option: str) -> float:
    """Parse seconds from `90s`, `10m`, `1h`, `7d` or `500ms`.

    A number without a unit is refused: it is too ambiguous to delete by.
    """
    try:
        if text[-1:].isalpha():
            return parse_seconds(text)
    except ValueError:
        pass
    raise Usage(
        f"{option} {text!r}: expected a number and a unit, such as 90s, 10m, 1h, 7d or 500ms"
    )


def parse_size(text: str | None, option: str) -> int | None:
    """Parse bytes from `268435456`, `256MB` or `1GiB`; None for None."""
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise Usage(f"{option} {error}") from None


def parse_engine(name: str | None) -> str | None:
    """Return the engine's name if it is valid."""
    if name not in (None, "auto", "spark", "local"):
        raise Usage(f"--engine {name!r}: expected auto, spark or local")
    return name


def parse_log_format(name: str | None) -> str | None:
    """Return the format of lines on stderr if it is valid."""
    if name not in (None, "text", "json"):
        raise Usage(f"--log-format {name!r}: expected text or json")
    return name


def parse_pairs(pairs: list[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse an option's `K=V` texts. Raises Usage naming the bad one (not its value)."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Usage(f"{option} {key!r}: expected {form}")
        options[key] = value
    return options
