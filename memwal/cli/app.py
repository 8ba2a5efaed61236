"""The command line: its commands, each in a file of its name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memwal import __version__
from memwal.cli.backfill import backfill
from memwal.cli.checkpoint import checkpoint_app
from memwal.cli.compaction import compaction
from memwal.cli.console import stdout
from memwal.cli.demo import demo
from memwal.cli.doctor import doctor
from memwal.cli.garbage import garbage
from memwal.cli.index_catchup import index_catchup
from memwal.cli.ingest import ingest
from memwal.cli.init import init
from memwal.cli.inspect import inspect_app
from memwal.cli.lease import lease_app
from memwal.cli.maintain import maintain
from memwal.cli.merge import merge
from memwal.cli.quiesce import quiesce
from memwal.cli.read import read
from memwal.cli.rescue import rescue
from memwal.cli.runs import runs
from memwal.cli.snapshot import snapshot
from memwal.cli.status import status
from memwal.cli.submit import submit
from memwal.cli.verify import verify
from memwal.cli.wait import wait
from memwal.cli.watch import watch
from memwal.identity import DISTRIBUTION

SECTIONS = {
    "Jobs": "merge index-catchup compaction snapshot garbage maintain watch backfill quiesce",
    "Look": "status runs wait verify inspect",
    "Data": "read checkpoint ingest rescue",
    "Operate": "init doctor submit lease demo",
}
"""How --help groups the commands, in the order of use."""


class GroupedHelp(TyperGroup):
    """The commands, in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each section, with a line a command."""
        longest = max(map(len, self.commands))
        left = formatter.width - longest - 4
        for title, names in SECTIONS.items():
            lines = [
                (name.ljust(longest), self.commands[name].get_short_help_str(left))
                for name in names.split()
                if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(lines)


app = typer.Typer(
    name="memwal",
    cls=GroupedHelp,
    help="Keeps the MemWAL write tier of Lance tables healthy.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    status, merge, index_catchup, snapshot, garbage, compaction, maintain, watch, ingest, backfill,
    verify, read, rescue, quiesce, runs, wait, demo, doctor, init,
):  # fmt: skip
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True})(submit)
app.add_typer(inspect_app, name="inspect")
app.add_typer(lease_app, name="lease")
app.add_typer(checkpoint_app, name="checkpoint")


def show_version(asked: bool) -> None:
    """Which memwal this is, and the libraries it would run with; imports none of them."""
    if not asked:
        return
    stdout().print(f"memwal {__version__} ({DISTRIBUTION})", highlight=False)
    for library in ("pylance", "pyspark"):
        try:
            found = version(library)
        except PackageNotFoundError:
            found = "not installed"
        stdout().print(f"{library} {found}", highlight=False)
    raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of memwal, pylance and pyspark.",
        ),
    ] = False,
) -> None:
    """What stands before a command."""
