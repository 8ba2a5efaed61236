"""pytest plugin: each test has one level, by what it needs; `pytest -m table` selects one.

Read off where the test lies, its markers, and what its code, its fixtures and their helpers name,
as far as that can be followed through functions and classes of `tests`. Where that is not enough,
the test is marked with its level.
"""

from __future__ import annotations

import http.server
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from tests.support.child_server import ChildServer

LEVELS = {
    "pure": "no disk but temporary files, no server, no JVM",
    "table": "real Lance tables, or processes of memwal that work on files",
    "server": "a server: S3, Azurite, Google's storage, Prometheus, namespaces, plain HTTP",
    "jvm": "Spark",
    "airflow": "Airflow's environment",
    "long": "samples chance: seeds, races, kills; `make test-nightly` runs more of them",
}
_CHANCE = ("races",)
_SERVERS = (ChildServer, http.server.HTTPServer)
_AIRFLOW = Path(__file__).resolve().parents[1] / "airflow"
_OURS = "tests."
# What tests that run on fakes and on the real thing call the fakes.
_FAKES = {"memory", "lake"}


def pytest_configure(config: pytest.Config) -> None:
    """Levels are markers."""
    for name, meaning in LEVELS.items():
        config.addinivalue_line("markers", f"{name}: level of a test: {meaning}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Before any test is selected by marker."""
    if not levels(item):
        item.add_marker(level_of(item))


def levels(item: pytest.Item) -> set[str]:
    """The levels that it is marked with."""
    return {mark.name for mark in item.iter_markers() if mark.name in LEVELS}


def level_of(item: pytest.Item) -> str:
    """The level of a test that is not marked with one."""
    if item.path.is_relative_to(_AIRFLOW):
        return "airflow"
    marks = {mark.name for mark in item.iter_markers()}
    if marks.intersection(_CHANCE):
        return "long"
    if "spark" in marks:
        return "jvm"
    given = [each for each in _given(item) if isinstance(each, str)]
    if "integration" not in marks and _FAKES.intersection(given):
        return "pure"
    needs = {"server"} if "served" in marks else set()
    needs = needs.union(*map(needs_of, _functions(item)))
    if "server" in needs:
        return "server"
    return "table" if needs or "integration" in marks else "pure"


def _functions(item: pytest.Item) -> Iterator[FunctionType]:
    """The test's own, those of its fixtures, and those that it is parametrized with."""
    found = [getattr(item, "obj", None)]
    fixtures = getattr(item, "_fixtureinfo", None)
    for definitions in fixtures.name2fixturedefs.values() if fixtures else ():
        found += [definition.func for definition in definitions]
    for each in (*found, *_given(item)):
        yield from _plain(each)


def _given(item: pytest.Item) -> list[Any]:
    """What it is parametrized with."""
    callspec = getattr(item, "callspec", None)
    return [*callspec.params.values()] if callspec else []


@cache
def needs_of(function: FunctionType) -> frozenset[str]:
    """`table` and `server`, as far as what it names or calls tells."""
    seen, waiting = {function}, [function]
    needs: set[str] = set()
    while waiting:
        own, called = _look_into(waiting.pop())
        needs |= own
        waiting += called - seen
        seen |= called
    return frozenset(needs)


@cache
def _look_into(function: FunctionType) -> tuple[set[str], set[FunctionType]]:
    """What one function needs by itself, and those of ours that it names."""
    needs: set[str] = set()
    called: set[FunctionType] = set()
    for named in _named(function):
        if isinstance(named, type) and issubclass(named, _SERVERS):
            needs.add("server")
        elif isinstance(named, ModuleType) and named.__name__ == "lance":
            needs.add("table")
        else:
            called.update(_plain(named))
    return needs, called


def _plain(named: Any) -> list[FunctionType]:
    """The functions of `tests` behind a function, a class or what wraps one."""
    # Hypothesis keeps the test there, pytest the fixture's function behind `__wrapped__`.
    named = getattr(getattr(named, "hypothesis", None), "inner_test", named)
    if isinstance(named, MethodType | classmethod | staticmethod):
        named = named.__func__
    if isinstance(named, property):
        named = named.fget
    if callable(named) and not isinstance(named, type):
        named = inspect.unwrap(named)
    if not str(getattr(named, "__module__", "")).startswith(_OURS):
        return []
    if isinstance(named, FunctionType):
        return [named]
    return _methods(named) if isinstance(named, type) else []


@cache
def _methods(owner: type) -> list[FunctionType]:
    return [each for member in vars(owner).values() for each in _plain(member)]


def _named(function: FunctionType) -> Iterator[Any]:
    """What the names in its code stand for: globals, our modules, attributes of these."""
    names = set(_names(function.__code__))
    known = [function.__globals__[name] for name in names if name in function.__globals__]
    known += [sys.modules[name] for name in names if name.startswith(_OURS) and name in sys.modules]
    for value in known:
        yield value
        if isinstance(value, ModuleType) and value.__name__.startswith(_OURS):
            yield from (vars(value)[name] for name in names if name in vars(value))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
