"""A command line with one command is that of all of them, as far as the command goes."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
import typer
from typer.core import TyperGroup

from memwal import __version__
from memwal.cli.commands import SECTIONS, make_app
from memwal.cli.console import RunProgress
from memwal.cli.flags import JobFlags, ReadFlags
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


@pytest.mark.parametrize(
    ("kind", "stays"),
    [(ReadFlags, ""), (JobFlags, "; what was committed stays, run again to go on")],
)
def test_a_command_that_only_looks_is_just_cancelled(
    kind: type[ReadFlags], stays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(progress: RunProgress) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        kind(as_json=True).output("changes", ()).run(stop)
    assert json.loads(capsys.readouterr().out)["error"] == f"cancelled{stays}"


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
