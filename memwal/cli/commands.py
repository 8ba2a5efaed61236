"""The commands, and the options that come before a command.

Most are in `jobs.py`; those with commands below them in `groups.py`, a few in files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from memwal.cli.flags import JobFlags
from memwal.identity import print_versions

SECTIONS = {
    "Jobs": "merge index-catchup compaction snapshot garbage maintain watch backfill quiesce",
    "Look": "status runs audit verify inspect",
    "Data": "read changes checkpoint backup restore ingest rescue erase",
    "Operate": "init doctor repair explain help submit lease schema demo",
}
"""All commands, grouped as in --help, in the order of use."""

_FILES = {
    "changes": "read",
    **dict.fromkeys(("backup", "checkpoint", "erase", "inspect", "lease"), "groups"),
}
_OWN_FILE = {"demo", "explain", "read", "schema", "status", "submit", "watch"}
_COMPLETION = "_MEMWAL_COMPLETE"
_OTHERS_COMMAND = "submit"  # needs the other commands, as it passes one on


ELSEWHERE = {
    "vacuum": "garbage",
    "expire-snapshots": "garbage",
    "remove-orphan-files": "garbage",
    "cleanup-old-versions": "garbage",
    "optimize": "maintain",
    "compact": "compaction",
    "compact-files": "compaction",
    "rewrite-data-files": "compaction",
    "optimize-indices": "index-catchup",
    "tag": "checkpoint",
    "history": "runs",
}
"""The verbs of Delta, Iceberg and LanceDB, and the command that does it here."""

# Nobody should run a job without having met these two.
_SHOWN_EVERYWHERE = {"dry_run", "everything"}
SHARED = {field.name for field in fields(JobFlags)} - _SHOWN_EVERYWHERE
"""The parameters that `memwal help options` explains."""


class OwnHelp(TyperCommand):
    """Names the shared options in one line, instead of explaining them in each command's help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and that line."""
        own: list[Any] = self.params
        shared = [p for p in own if p.name in SHARED and not p.hidden]
        self.show(ctx, formatter, hidden=shared)
        if shared:
            flags = " ".join(p.opts[0] for p in shared)
            with formatter.section("Shared options (memwal help options)"):
                formatter.write_text(flags)

    def show(self, ctx: Any, formatter: Any, *, hidden: list[Any]) -> None:
        """Write all arguments and options but some."""
        for parameter in hidden:
            parameter.hidden = True
        try:
            super().format_options(ctx, formatter)
        finally:
            for parameter in hidden:
                parameter.hidden = False


class App(typer.Typer):
    """Commands of which each has such a help."""

    def command(self, name: str | None = None, **more: Any) -> Callable[..., Any]:
        """As typer's."""
        return super().command(name, **{**more, "cls": more.get("cls") or OwnHelp})


class GroupedHelp(TyperGroup):
    """The commands, in sections."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; who comes from another format is told what it is called here."""
        if ours := ELSEWHERE.get(args[0].replace("_", "-").lower()):
            meaning = self.commands[ours].get_short_help_str(100)
            ctx.fail(f"No such command '{args[0]}'. Here it is `memwal {ours}`: {meaning}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each section, with one line for each command."""
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


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Make the command line; if `arguments` begin with a command, it has only that one.

    Importing and describing all commands takes a fifth of the time that importing Lance takes.
    """
    app = App(
        name="memwal",
        cls=GroupedHelp,
        help="Keeps Lance and LanceDB tables healthy, and merges their MemWAL.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(begin)
    names = " ".join(SECTIONS.values()).split()
    first = next(iter(arguments), _OTHERS_COMMAND)
    for name in [first] if first in names and first != _OTHERS_COMMAND else names:
        _add(app, name, is_listed=first in ("--help", "-h") and _COMPLETION not in os.environ)
    return app


def _add(app: typer.Typer, name: str, *, is_listed: bool) -> None:
    """Add the command, or the group of commands, from its file; just its help if it `is_listed`."""
    word = name.replace("-", "_")
    file = word if name in _OWN_FILE else _FILES.get(name, "jobs")
    module = import_module(f"memwal.cli.{file}")
    group = getattr(module, f"{word}_app", None)
    if is_listed:
        app.command(name, help=group.info.help if group else getattr(module, word).__doc__)(_end)
        return
    if group:
        app.add_typer(group, name=name)
        return
    passes_on = {"ignore_unknown_options": True} if name == _OTHERS_COMMAND else None
    app.command(context_settings=passes_on)(getattr(module, word))


def _end() -> None:
    """Stands in for a command that is only listed."""


def show_version(asked: bool) -> None:
    """Show the versions, and end."""
    if asked:
        print_versions()
        raise typer.Exit


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
