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


def test_every_exit_code_lasts_or_passes() -> None:
    """So that a new one tells Airflow's provider too what to do about it."""
    codes = {kind.exit_code for kind in (MemWalError, *subclasses(MemWalError))}
    assert codes <= errors.LASTING_EXITS | errors.PASSING_EXITS
    assert not errors.LASTING_EXITS & errors.PASSING_EXITS


def test_an_exit_code_in_a_report_is_its_branch_s_error() -> None:
    for kind in subclasses(MemWalError):
        if (
            parent(kind) is MemWalError
            and kind.exit_code != MemWalError.exit_code
            and kind.__module__ == errors.__name__
        ):
            found = errors.error_of(kind.exit_code, kind.outcome, "why")
            assert isinstance(found, kind), kind


def test_the_tree_is_complete() -> None:
    import_all()
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
        assert parent(kind).__name__ == parents[kind.__name__], kind
        if kind.__name__ not in _ANSWERS:
            assert kind.exit_code == drawn[kind.__name__], kind


def test_a_message_ends_with_its_code() -> None:
    torn = errors.Corruption("MW-W03", "it is cut off")

    assert (str(torn), torn.text, torn.code) == (
        "it is cut off (MW-W03)",
        "it is cut off",
        "MW-W03",
    )
    assert str(torn.at("t")) == "t: it is cut off (MW-W03)"
    assert str(torn.say(str(torn))) == str(torn)
    assert str(pickle.loads(pickle.dumps(torn))) == str(torn)


@pytest.mark.parametrize("text", ["a hole (MW-H01)", "a hole (MW-H01); more", "a hole", ""])
def test_a_message_in_a_report_keeps_its_code(text: str) -> None:
    found = errors.error_of(errors.EXIT_REFUSED, "refused", text)

    assert isinstance(found, errors.Refused)
    assert (str(found), found.code) == (text, "MW-H01" if text.endswith(")") else "")
