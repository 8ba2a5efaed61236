"""Arguments and options that several commands share.

A command asks for a whole set of them with one parameter, `flags`, and `@with_flags`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from memwal.cli import gc_pause
from memwal.cli.console import stderr
from memwal.cli.output import Output, ReportPlace, checked_engine, keeps_quiet, load
from memwal.config import Config, ResolvedTable, resolve_table
from memwal.errors import MemWalError, Usage

Options = TypeVar("Options")

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="Path, s3:// address, or name in the config file."),
]
OneTable = Annotated[
    str, typer.Argument(metavar="TABLE", help="Path, s3:// address, or name in the config file.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Default: ./memwal.toml if present.")
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="K=V",
        help="As pylance takes them; repeatable. Beats MEMWAL_STORAGE_OPTIONS (JSON), where "
        "secrets belong: other users of this host see a command line.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="auto|spark|local",
        help="Where the work runs (default: auto).",
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark master.")]
NoLease = Annotated[
    bool,
    typer.Option(
        "--no-lease", help="Work without the table's lease: wasteful; snapshot and maintain refuse."
    ),
]
# Taken everywhere, so that one set of options goes with every command; those
# that only look work in this process and need no lease.
UnusedEngine = Annotated[
    str | None, typer.Option("--engine", metavar="auto|spark|local", hidden=True)
]
UnusedMaster = Annotated[str | None, typer.Option("--master", hidden=True)]
UnusedNoLease = Annotated[bool, typer.Option("--no-lease", hidden=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done; change nothing.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="MEMWAL_DEBUG", help="Show tracebacks of errors.")
]
Untested = Annotated[
    bool, typer.Option("--allow-untested-lance", help="Run on a pylance that was never tested.")
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the JSON document here too: a path, or s3://bucket/key (with the first "
        "table's storage options).",
    ),
]

Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Default: the latest.")
]
Shard = Annotated[str | None, typer.Option("--shard", metavar="ID", help="Only this one.")]
Shards = Annotated[
    list[str] | None, typer.Option("--shard", metavar="ID", help="Only these; repeatable.")
]
UntilGeneration = Annotated[
    int | None, typer.Option("--until-generation", metavar="N", min=1, help="Up to this one.")
]
GenerationsPerCommitMax = Annotated[
    int | None,
    typer.Option("--generations-per-commit-max", metavar="N", min=1),
]
BytesPerCommitMax = Annotated[
    int | None,
    typer.Option(
        "--bytes-per-commit-max",
        metavar="N",
        min=1,
        help="In-memory bytes; at least one generation is always taken.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReadFlags:
    """What every command takes that looks at tables."""

    as_json: Json = False
    config: ConfigFile = None
    storage_option: StorageOption = None
    debug: Debug = False
    allow_untested_lance: Untested = False
    report: Report = None
    engine: UnusedEngine = None
    master: UnusedMaster = None
    no_lease: UnusedNoLease = False

    def tables(self, names: Sequence[str]) -> list[ResolvedTable]:
        """The TABLE arguments, looked up in the configuration, each table once. Raises Usage.

        The command has imported its job by then, so its start ends here.
        """
        gc_pause.resume()
        checked_engine(self.engine)
        return self._looked_up(names, quiet=keeps_quiet(self.as_json))

    def _looked_up(self, names: Sequence[str], *, quiet: bool) -> list[ResolvedTable]:
        config, options = load(self.config, self.storage_option, quiet=quiet)
        resolved = [resolve_table(name, config, options) for name in names]
        return _distinct(resolved, config, quiet=quiet)

    def run_options(
        self, kind: Callable[..., Options], names: Sequence[str], **more: Any
    ) -> Options:
        """A job's options (`memwal.run.open.RunOptions` or a kind of it) out of these flags."""
        return kind(
            tables=self.tables(names), untested_lance_allowed=self.allow_untested_lance, **more
        )

    def output(self, job: str, names: Sequence[str]) -> Output:
        """Where the command's result goes. `names` are its TABLE arguments."""
        place = None
        if self.report is not None:
            place = ReportPlace(
                self.report, lambda: self._looked_up(names[:1], quiet=True)[0].storage_options
            )
        return Output(job, as_json=self.as_json, debug=self.debug, report=place)


@dataclass(frozen=True, kw_only=True)
class JobFlags(ReadFlags):
    """What every command takes besides that can change a table."""

    dry_run: DryRun = False
    engine: EngineOption = None
    master: Master = None
    no_lease: NoLease = False

    def run_options(
        self, kind: Callable[..., Options], names: Sequence[str], **more: Any
    ) -> Options:
        """A job's options out of these flags."""
        return super().run_options(
            kind,
            names,
            engine=checked_engine(self.engine),
            master=self.master,
            dry_run=self.dry_run,
            lease=not self.no_lease,
            **more,
        )


def _distinct(
    tables: Sequence[ResolvedTable], config: Config, *, quiet: bool
) -> list[ResolvedTable]:
    """One for each table, however often and by whatever names it is given.

    What the configuration has of a table counts, whether its address was given first or not. Raises
    Usage for two of its names that stand for one table and want different things of it.
    """
    from memwal.store.objects import same_place

    found: dict[object, ResolvedTable] = {}
    for table in tables:
        try:
            place = same_place(table.uri, table.storage_options)
        except MemWalError:
            place = table.name  # told where it is opened
        before = found.setdefault(place, table)
        if before is table:
            continue
        if not quiet:
            stderr().print(f"{table.name} and {before.name} are one table", style="dim")
        if table.name not in config.tables:
            continue
        if before.name not in config.tables:
            found[place] = table
        elif _wants(table) != _wants(before):
            raise Usage(
                f"{before.name} and {table.name} are one table, with two configurations: name one"
            )
    return list(found.values())


def _wants(table: ResolvedTable) -> object:
    return table.settings, table.storage_options, table.policy


def with_flags(kind: type[ReadFlags]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of `kind`, in place of its parameter `flags`."""
    hints = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own_hints = get_type_hints(command, include_extras=True)
        own = [
            p.replace(annotation=own_hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for p in inspect.signature(command).parameters.values()
            if p.name != "flags"
        ]

        def call(**values: Any) -> None:
            flags = kind(**{p.name: values.pop(p.name) for p in shared})
            command(flags=flags, **values)

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        # What typer reads: the command's own parameters, then the shared ones.
        call.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        return call

    return decorate
