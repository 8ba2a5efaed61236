"""A command line with one command is that of all of them, as far as the command goes."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from memwal import __version__
from memwal.cli.commands import SECTIONS, make_app
from tests.support.nursery import run_memwal

NAMES = " ".join(SECTIONS.values()).split()
ALONE = [name for name in NAMES if name != "submit"]


def commands(*arguments: str) -> dict[str, Any]:
    group = typer.main.get_command(make_app(arguments))
    assert isinstance(group, TyperGroup)
    return group.commands


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return commands()


@pytest.mark.parametrize("name", ALONE)
def test_a_command_is_the_same_alone(name: str, everything: dict[str, Any]) -> None:
    alone = commands(name, "TABLE")
    assert list(alone) == [name]
    assert _describe(alone[name]) == _describe(everything[name])


@pytest.mark.parametrize("arguments", [[], ["--help"], ["stauts"], ["submit", "merge"]])
def test_all_are_there_where_none_is_named(
    arguments: list[str], everything: dict[str, Any]
) -> None:
    assert commands(*arguments).keys() == everything.keys() == set(NAMES)


def _describe(command: Any) -> Any:
    if isinstance(command, TyperGroup):
        return {name: _describe(each) for name, each in command.commands.items()}
    return command.help, [(p.name, p.opts, getattr(p, "help", "")) for p in command.params]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("typed", "shows"),
    [
        ([], "memwal [OPTIONS] COMMAND"),
        (["-h"], "memwal [OPTIONS] COMMAND"),
        (["help"], "memwal [OPTIONS] COMMAND"),
        (["help", "merge"], "memwal merge [OPTIONS]"),
        (["help", "options"], "--storage-option K=V"),
        (["merge", "-h"], "memwal merge [OPTIONS]"),
        (["version"], f"memwal {__version__}"),
    ],
)
def test_what_is_typed_first(typed: list[str], shows: str) -> None:
    done = run_memwal(*typed)
    assert (done.returncode, done.stderr) == (0, "")
    assert shows in done.stdout
