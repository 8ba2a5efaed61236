"""What a mutation is, and all of them: `groups/*.toml`.

A group is of one file, and of pytest's arguments that select the tests which notice it; without
`tests`, seeds of the simulation do. `level = "nightly"` stands at a mutation, or at a group, that
nothing notices which `make test` runs. `also` are changes of other places: where one gate stands
behind another, each would go unnoticed without the other.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("groups")


@dataclass(frozen=True, kw_only=True)
class Change:
    """Text that is in the file once, and what it becomes."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A safety check that is switched off."""

    name: str
    changes: tuple[Change, ...]
    tests: str = ""
    nightly: bool = False


def read_all(folder: Path = FOLDER) -> tuple[Mutation, ...]:
    """The mutations of all files. Raises KeyError, TypeError when one is not of this form."""
    return tuple(found for file in sorted(folder.glob("*.toml")) for found in _read(file))


def _read(file: Path) -> Iterator[Mutation]:
    for group in tomllib.loads(file.read_text())["group"]:
        for given in group.pop("mutation"):
            yield _mutation({**group, **given})


def _mutation(given: dict[str, Any]) -> Mutation:
    tests, level = given.pop("tests", ""), given.pop("level", "test")
    name, also = given.pop("name"), given.pop("also", ())
    changes = tuple(Change(**change) for change in (given, *also))
    return Mutation(name=name, changes=changes, tests=tests, nightly=level == "nightly")
