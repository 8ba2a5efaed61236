"""Every error of the package is in the tree that `memwal.errors` draws, with its exit code."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

import memwal
from memwal import errors
from memwal.errors import MemWalError

# Answers of the object stores, which never end a run.
_ANSWERS = {"AlreadyExists", "Missing"}


def subclasses(kind: type[MemWalError]) -> Iterator[type[MemWalError]]:
    for found in kind.__subclasses__():
        if not found.__name__.startswith("_"):
            yield found
        yield from subclasses(found)


def import_all() -> None:
    for module in pkgutil.walk_packages(memwal.__path__, "memwal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def parent(kind: type[MemWalError]) -> type:
    return next(base for base in kind.__mro__[1:] if not base.__name__.startswith("_"))


# The next scheduled run may mend these by itself.
PASSING_EXITS = {errors.EXIT_FAILED, errors.EXIT_CONDITION, errors.EXIT_HELD, errors.EXIT_PARTIAL}


def test_every_exit_code_lasts_or_passes() -> None:
    """So that a new one tells Airflow's provider too what to do about it."""
    codes = {kind.exit_code for kind in (MemWalError, *subclasses(MemWalError))}
    assert codes <= errors.LASTING_EXITS | PASSING_EXITS
    assert not errors.LASTING_EXITS & PASSING_EXITS


def test_the_tree_is_complete() -> None:
    import_all()
    found = {kind for kind in subclasses(MemWalError) if kind.__module__.startswith("memwal.")}

    drawn: dict[str, tuple[str, int]] = {}
    branch, code = "MemWalError", 1
    for bar, name, exit_code in re.findall(
        r"^(│   )?[├└]── (\w+)(?: +exit (\d))?", errors.__doc__ or "", re.MULTILINE
    ):
        if not bar:
            branch, code = name, int(exit_code or 1)
        drawn[name] = (branch if bar else "MemWalError", code)

    assert {kind.__name__ for kind in found} == drawn.keys()
    for kind in found:
        assert parent(kind).__name__ == drawn[kind.__name__][0], kind
        assert kind.exit_code == drawn[kind.__name__][1] or kind.__name__ in _ANSWERS, kind


def test_a_message_ends_with_its_code() -> None:
    torn = errors.Corruption("MW-W03", "it is cut off")

    assert str(torn) == f"{torn.text} ({torn.code})" == "it is cut off (MW-W03)"
    assert str(torn.at("t")) == "t: it is cut off (MW-W03)"
    assert str(torn.say(str(torn))) == str(torn)
    assert str(pickle.loads(pickle.dumps(torn))) == str(torn)


@pytest.mark.parametrize("text", ["a hole (MW-H01)", "a hole (MW-H01); more", "a hole", ""])
def test_a_message_in_a_report_keeps_its_code(text: str) -> None:
    found = errors.error_of(errors.EXIT_REFUSED, "refused", text)

    assert isinstance(found, errors.Refused)
    assert (str(found), found.code) == (text, "MW-H01" if text.endswith(")") else "")
