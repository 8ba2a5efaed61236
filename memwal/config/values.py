"""Kinds of values that settings may have: amounts with a unit, functions by their import paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from memwal.text import parse_bytes, parse_seconds


def _with_unit(parse: Callable[[str], float]) -> BeforeValidator:
    """Takes a text that ends in a unit by `parse`; a plain number is left to pydantic."""

    def read(value: object) -> object:
        return parse(value) if isinstance(value, str) and value.strip()[-1:].isalpha() else value

    return BeforeValidator(read)


def _mark(unit: str) -> Any:
    return Field(json_schema_extra={"unit": unit})


ByteCount = Annotated[int, _with_unit(parse_bytes), _mark("bytes")]
"""`268435456`, `"256MB"` or `"1GiB"`."""
Seconds = Annotated[float, _with_unit(parse_seconds), _mark("seconds")]
"""`90`, `"90s"`, `"10m"`, `"1h"` or `"7d"`."""

ImportPaths = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")], ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
"""`"my_module.my_function"`, or a list of such."""
