"""Tests that sample chance: the same part in each `make test`, all of it in `make test-nightly`.

The part holds what notices the mutations that name its test. `MEMWAL_TEST_FULL=1` says that it is
the night's run; `MEMWAL_TEST_SEED` repeats one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date
from itertools import combinations, product
from typing import Any

import pytest

FULL = os.environ.get("MEMWAL_TEST_FULL") == "1"
SEED = int(os.environ.get("MEMWAL_TEST_SEED", date.today().toordinal() if FULL else 0))


def grid(*axes: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the product of the axes, of which all but a part is nightly."""
    part = set(map(repr, part_of(*axes)))
    return [
        pytest.param(*case, marks=() if repr(case) in part else pytest.mark.nightly)
        for case in product(*axes)
    ]


def part_of(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases of a product that have each value, and of three axes and more each choice of all but
    one: pairs of three axes.
    """
    cases = list(product(*axes))
    waiting = dict.fromkeys(covered for case in cases for covered in _covered(case))
    part = []
    while waiting:
        best = max(cases, key=lambda case: sum(each in waiting for each in _covered(case)))
        part.append(best)
        for each in _covered(best):
            waiting.pop(each, None)
    return part


def _covered(case: tuple[Any, ...]) -> list[tuple[tuple[int, Any], ...]]:
    """The choices of all axes but one that a case is one of."""
    return list(combinations(enumerate(case), len(case) - 1))


def many(full: int, part: int) -> int:
    """How many seeds or examples."""
    return full if FULL else part


def seeds(full: int, part: int) -> range:
    """Seeds of the day, or the same few each time."""
    first = SEED * full
    return range(first, first + many(full, part))
