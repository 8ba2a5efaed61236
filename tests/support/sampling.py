"""What samples chance: in full in `make test-nightly`, in part in `make test`.

`MEMWAL_TEST_FULL=1` says which. A part is the same in every run, and holds what notices the
mutations that name its test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

FULL = os.environ.get("MEMWAL_TEST_FULL") == "1"


def in_part(full: Iterable[Any], part: Iterable[Any], *, whole: bool = FULL) -> list[Any]:
    """Parameters of a test that samples chance. Its level is `long`.

    Raises ValueError when the part has what the whole lacks: a case with another name, say.
    """
    full, part = list(full), list(part)
    if foreign := [each for each in part if each not in full]:
        raise ValueError(f"not among all cases: {foreign}")
    return [_long(each) for each in (full if whole else part)]


def each_once(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The part of a product in which each value of each axis is there."""
    many = max(map(len, axes))
    return [tuple(axis[n % len(axis)] for axis in axes) for n in range(many)]


def grid(*axes: Sequence[Any], whole: bool = FULL) -> list[Any]:
    """The product of the axes, or `each_once`."""
    return in_part(product(*axes), each_once(*axes), whole=whole)


def many(full: int, part: int) -> int:
    """How many seeds or examples."""
    return full if FULL else part


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
