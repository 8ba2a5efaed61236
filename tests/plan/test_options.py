"""Design section 6: some options go with every command."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from memwal.cli_app import app

EVERYWHERE = {
    "--json",
    "--config",
    "--storage-option",
    "--engine",
    "--master",
    "--no-lease",
}
CHANGING = {"merge", "index-catchup", "snapshot", "garbage", "compaction", "maintain"}
CHANGING |= {"ingest", "backfill", "rescue"}


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
    assert found.keys() > CHANGING | {"status", "verify", "read", "inspect wal", "wait"}
    for name, command in found.items():
        if name == "demo":  # makes its own table
            continue
        taken = {text for parameter in command.params for text in parameter.opts}
        wanted = EVERYWHERE | ({"--dry-run"} if name in CHANGING else set())
        assert not wanted - taken, name
