"""`memwal help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

from memwal.cli.jobs import merge
from memwal.cli.shared import SHARED, App

Topic = Annotated[str, typer.Argument(metavar="COMMAND|options")]


def help(topic: Topic = "options") -> None:
    """Explain a command, or the options that commands share."""
    # Any other topic has become `COMMAND --help` before (`memwal.cli`).
    app = App()
    app.command()(merge)
    shown: Any = get_command(app)
    context = typer.Context(shown, help_option_names=[])
    formatter = context.make_formatter()
    shown.show(context, formatter, hidden=[p for p in shown.params if p.name not in SHARED])
    typer.echo(formatter.getvalue().strip())
