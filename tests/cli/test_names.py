"""TABLE may be a glob over the configuration's names, and --all is every one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from memwal.cli.app import app
from memwal.cli.flags import ReadFlags
from memwal.errors import Usage

NAMES = ["orders_eu", "orders_us", "users", "odd*", "oddity", "a/b"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    tables = "".join(f"[tables.'{name}']\nuri = '/nowhere/{i}'\n" for i, name in enumerate(NAMES))
    (tmp_path / "memwal.toml").write_text(tables)
    return str(tmp_path / "memwal.toml")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["orders_*"], ["orders_eu", "orders_us"]),
        (["users", "*us", "orders_??"], ["users", "orders_us", "orders_eu"]),
        (["[!o]*"], ["users"]),
        (["odd*"], ["odd*"]),
        (["odd?*"], ["odd*", "oddity"]),
        (["a*"], None),
        (["ORDERS_*"], None),
        (["orders_*", "user?s"], None),
        (["./orders_*"], ["./orders_*"]),
        (["here*"], ["here*"]),
        ([], None),
    ],
)
def test_a_glob_is_the_names_that_it_matches(
    file: str, tmp_path: Path, given: list[str], names: list[str] | None
) -> None:
    (tmp_path / "here*").mkdir()
    flags = ReadFlags(config=file)
    if names is None:
        with pytest.raises(Usage):
            flags.tables(given)
    else:
        assert [table.name for table in flags.tables(given)] == names


def test_all_is_every_table_of_the_file(file: str) -> None:
    assert [t.name for t in ReadFlags(config=file, everything=True).tables(())] == NAMES
    with pytest.raises(Usage, match="name none beside it"):
        ReadFlags(config=file, everything=True).tables(["users"])
    with pytest.raises(Usage, match=r"--all: no tables: /dev/null has none; add \[tables.NAME\]"):
        ReadFlags(config="/dev/null", everything=True).tables(())


def test_what_names_no_table_says_what_there_is(file: str) -> None:
    with pytest.raises(Usage, match=r"^name the tables, or give --all for those .*\(orders_eu, "):
        ReadFlags(config=file).tables(())
    with pytest.raises(Usage) as refused:
        ReadFlags(config=file).tables(["oders_*"])
    assert str(refused.value).startswith(f"oders_*: no name matches: {file} has orders_eu, ")
    assert "(is orders_us or orders_eu meant?)" in str(refused.value)
    with pytest.raises(Usage, match=r"^sea:\*: no name matches: no \[namespaces.sea\] in "):
        ReadFlags(config=file).tables(["sea:*"])


def test_a_command_for_one_table_takes_a_glob_of_one(file: str) -> None:
    flags = ReadFlags(config=file)
    assert flags.table("u*").name == "users"
    with pytest.raises(Usage, match=r"^orders_\*: matches orders_eu, orders_us: name one$"):
        flags.table("orders_*")


def test_all_goes_with_every_command_of_several_tables() -> None:
    group: Any = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = {
        name: {text for parameter in command.params for text in parameter.opts}
        for name, command in group.commands.items()
        if any(parameter.name == "tables" for parameter in command.params)
    }
    assert found.keys() >= {"status", "merge", "maintain", "garbage", "runs", "rescue", "watch"}
    assert [name for name, taken in found.items() if "--all" not in taken] == []
    one = {text for parameter in group.commands["read"].params for text in parameter.opts}
    assert "--all" not in one
