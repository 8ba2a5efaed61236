"""Every error of the package is in the tree that `memwal.errors` draws, with its exit code."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import memwal
from memwal import errors
from memwal.errors import MemWalError

# Answers of the object stores, which never end a run.
_ANSWERS = {"AlreadyExists", "Missing"}


def subclasses(kind: type[MemWalError]) -> Iterator[type[MemWalError]]:
    for found in kind.__subclasses__():
        yield found
        yield from subclasses(found)


def test_the_tree_is_complete() -> None:
    for module in pkgutil.walk_packages(memwal.__path__, "memwal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {kind for kind in subclasses(MemWalError) if kind.__module__.startswith("memwal.")}

    drawn: dict[str, int | None] = {}
    parents: dict[str, str] = {}
    branch, code = "MemWalError", 1
    for bar, dashes, name, exit_code in re.findall(
        r"^(│   )?([├└]── )(\w+)(?: +exit (\d))?", errors.__doc__ or "", re.MULTILINE
    ):
        assert dashes
        if bar:
            parents[name], drawn[name] = branch, code
        else:
            branch, code = name, int(exit_code) if exit_code else 1
            parents[name], drawn[name] = "MemWalError", code

    assert {kind.__name__ for kind in found} == drawn.keys()
    for kind in found:
        assert kind.__mro__[1].__name__ == parents[kind.__name__], kind
        if kind.__name__ not in _ANSWERS:
            assert kind.exit_code == drawn[kind.__name__], kind
