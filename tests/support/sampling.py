"""What samples chance: in full in `make test-nightly`, in part in `make test`.

`MEMWAL_TEST_FULL=1` says which. A part is the same in every run, and holds what notices the
mutations that name its test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

FULL = os.environ.get("MEMWAL_TEST_FULL") == "1"


def grid(*axes: Iterable[Any], whole: bool = FULL) -> list[Any]:
    """Parameters of a test that samples chance, whose level is `long`: the product, or its part."""
    cases = list(product(*axes)) if whole else part_of(*axes)
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


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
