"""Some options go with every command, and a table is one, whatever it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from memwal.cli.app import app
from memwal.cli.commands import SECTIONS
from memwal.cli.flags import ReadFlags
from memwal.errors import Usage

EVERYWHERE = {
    "--json",
    "--config",
    "--log-format",
    "--storage-option",
    "--engine",
    "--master",
    "--no-lease",
}
CHANGING = {"merge", "index-catchup", "snapshot", "garbage", "compaction", "maintain"}
CHANGING |= {"ingest", "backfill", "rescue", "quiesce", "init"}


def commands(group: TyperGroup, context: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            found |= {f"{name} {rest}": each for rest, each in commands(command, context).items()}
        else:
            found[name] = command
    return found


def test_every_command_on_a_table_takes_the_options_of_all() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = commands(group, group.make_context("memwal", ["status"]))
    assert found.keys() > CHANGING | {"status", "verify", "read", "inspect wal"}
    for name, command in found.items():
        if name in ("demo", "help", "submit"):  # of no table; passes a job's options on
            continue
        taken = {text for parameter in command.params for text in parameter.opts}
        wanted = EVERYWHERE | ({"--dry-run"} if name in CHANGING else set())
        assert not wanted - taken, name


def test_help_has_each_command_in_its_section_on_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    assert {name for names in SECTIONS.values() for name in names.split()} >= set(group.commands)
    for each in (group, *(c for c in group.commands.values() if isinstance(c, TyperGroup))):
        text = each.get_help(each.make_context("memwal", [], resilient_parsing=True))
        *_, commands = text.split("--help", 1)
        assert "..." not in commands
        for name, command in each.commands.items():
            (line,) = [n for n in commands.splitlines() if n.startswith(f"  {name} ")]
            assert (command.help or "").startswith(line.split(maxsplit=1)[1])


# ---- one table, whatever it is called

TWICE = """
[tables.a]
uri = "{uri}"
[tables.same]
uri = "{uri}/"
[tables.other]
uri = "{uri}"
bytes_per_commit_max = 5
[tables.minio]
uri = "s3://lake/t"
storage_options = {{ aws_endpoint = "http://minio" }}
"""


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["T", "T/", "link"], ["T"]),
        (["a", "T"], ["a"]),
        (["T", "other", "link"], ["other"]),
        (["a", "same"], ["a"]),
        (["T", "T/not"], ["T", "T/not"]),
        (["s3://lake/t", "s3://lake/t/"], ["s3://lake/t"]),
        (["s3://lake/t", "minio"], ["s3://lake/t", "minio"]),
        (["gs://a/b", "gs://a/b", "gs://a/c"], ["gs://a/b", "gs://a/c"]),
        (["a", "other"], None),
    ],
)
def test_a_table_is_one_whatever_it_is_called(
    tmp_path: Path, names: list[str], left: list[str] | None
) -> None:
    (tmp_path / "T").mkdir()
    (tmp_path / "link").symlink_to("T")
    (tmp_path / "memwal.toml").write_text(TWICE.format(uri=tmp_path / "T"))

    def here(name: str) -> str:
        return str(tmp_path / name) if name[0] in "Tl" else name

    def given(names: list[str]) -> list[str]:
        flags = ReadFlags(config=str(tmp_path / "memwal.toml"))
        return [table.name for table in flags.tables([*map(here, names)])]

    if left is None:
        with pytest.raises(Usage, match="a and other are one table, with two configurations"):
            given(names)
    else:
        got = given(names)
        assert [name.rstrip("/") for name in got] == [*map(here, left)]
