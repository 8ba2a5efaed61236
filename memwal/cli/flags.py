"""Turns the functions that do the work into commands, with the options that all of them share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from memwal.cli import process
from memwal.cli.completion import offer, offer_tables
from memwal.cli.console import RunProgress, stderr
from memwal.cli.output import Document, Output, ReportPlace, is_quiet
from memwal.cli.requests import (
    make_parameters,
    parse_engine,
    parse_log_format,
    parse_pairs,
    parse_size,
    read_request,
)
from memwal.clock import SystemClock
from memwal.config import (
    DEFAULT_FILE,
    Config,
    EngineName,
    Folder,
    Glob,
    ResolvedTable,
    Settings,
    check_named,
    find_named_file,
    find_names,
    is_address,
    is_glob,
    load_config,
    make_settings,
    mask_address,
    read_environment_options,
    resolve_table,
)
from memwal.config.names import ListNames
from memwal.errors import BadCredentials, MemWalError, StoreUnavailable, Usage
from memwal.report import JobReport
from memwal.run.options import choose_run_id
from memwal.run.process import logs

Options = TypeVar("Options")

Result = JobReport | Document
Job = Callable[[RunProgress], JobReport]
"""The work that is left to do once a command's options have been parsed."""

Tables = Annotated[
    list[str],
    typer.Argument(
        autocompletion=offer_tables,
        metavar="TABLE...",
        help="Path, address (s3, gs, az), or name in the config file; FOLDER/ is every table in "
        "it, 'a_*' every such name; NAMESPACE:schema.table a name in a Lance namespace.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every table of the configuration.")]
OneTable = Annotated[
    str,
    typer.Argument(
        autocompletion=offer_tables,
        metavar="TABLE",
        help="Path, address (s3, gs, az), or name in the config file.",
    ),
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
        autocompletion=offer(get_args(EngineName)),
        metavar="auto|spark|local",
        help="Where the work runs (default: auto).",
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark master.")]
NoLease = Annotated[
    bool,
    typer.Option(
        "--no-lease",
        help="Work without the table's lease: wasteful; snapshot and maintain refuse it.",
    ),
]
Audit = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="PLACE",
        help="A folder or address for audit trails (default: as configured).",
    ),
]
MemoryMax = Annotated[
    str | None,
    typer.Option(
        "--memory-max",
        metavar="1GiB",
        help="What this process, or each of Spark's executors, may take; what can't fit is refused "
        "(default: no limit).",
    ),
]
# Accepted everywhere, so that one set of options works with every command. Commands that only look
# ignore them: they work in this process and need no lease.
UnusedEngine = Annotated[
    str | None, typer.Option("--engine", metavar="auto|spark|local", hidden=True)
]
UnusedMaster = Annotated[str | None, typer.Option("--master", hidden=True)]
UnusedNoLease = Annotated[bool, typer.Option("--no-lease", hidden=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="MEMWAL_DEBUG", help="Show tracebacks of errors.")
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        envvar="MEMWAL_LOG_FORMAT",
        autocompletion=offer(("text", "json")),
        metavar="text|json",
        help="With json each line that memwal itself writes on stderr is a JSON object "
        "(default: text).",
    ),
]
Untested = Annotated[
    bool, typer.Option("--allow-untested-lance", help="Run on a pylance that was never tested.")
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the JSON document here too: a path, or an object (s3://bucket/key; with the "
        "first table's storage options).",
    ),
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Default: the latest.")
]

_REQUEST = "request"
_PROVIDED = ("flags", "progress", "results", _REQUEST)
_OF_SEVERAL = "everything"


@dataclass(frozen=True, kw_only=True)
class ReadFlags:
    """The flags of every command on tables; only commands on TABLE... take `everything`."""

    everything: All = False
    as_json: Json = False
    config: ConfigFile = None
    storage_option: StorageOption = None
    debug: Debug = False
    log_format: LogFormat = None
    allow_untested_lance: Untested = False
    report: Report = None
    engine: UnusedEngine = None
    master: UnusedMaster = None
    no_lease: UnusedNoLease = False

    @cached_property
    def run_id(self) -> str:
        """The id of this run. Raises Usage."""
        return choose_run_id()

    def tables(
        self,
        names: Sequence[str],
        *,
        quiet: bool = False,
        listed: ListNames | None = None,
    ) -> list[ResolvedTable]:
        """Look up the TABLE arguments in the configuration, each table once. Raises Usage.

        With `--all` the tables are those of the configuration. The command has imported its job by
        now, so its start-up ends here and garbage collection resumes. `quiet` suppresses notes on
        what was found in the configuration; `listed` replaces asking namespaces for their tables.
        """
        process.resume_collecting()
        parse_engine(self.engine)
        return self._look_up(names, quiet=quiet or is_quiet(self.as_json), listed=listed)

    def table(self, name: str) -> ResolvedTable:
        """Look up the one TABLE of a command. Raises Usage for a glob that matches several."""
        # Whoever names one table must not get the one that happens to lie below a folder.
        found = self.tables([name.rstrip("/") or name if is_address(name) else name])
        if len(found) > 1:
            raise Usage(f"{name}: matches {', '.join(t.name for t in found)}: name one")
        return found[0]

    def _look_up(
        self, names: Sequence[str], *, quiet: bool, listed: ListNames | None = None
    ) -> list[ResolvedTable]:
        config, options = load(self.config, self.storage_option, quiet=quiet)
        if self.log_format is None and config.defaults.log_format == logs.JSON:
            logs.start()
        found = find_names(
            names, config, listed or _list_what_answers(config, options), everything=self.everything
        )
        resolve = resolve_table if len(found) == 1 else _resolve_one
        resolved = [resolve(name, config, options) for name in found]
        return _drop_repeated(resolved, config, quiet=quiet)

    def run_options(
        self, kind: Callable[..., Options], tables: Sequence[ResolvedTable], **more: Any
    ) -> Options:
        """Make a job's options (`memwal.run.options.RunOptions` or a subclass) from these flags."""
        return kind(
            tables=tables,
            untested_lance_allowed=self.allow_untested_lance,
            run_id=self.run_id,
            **more,
        )

    def job(
        self,
        run: Callable[[Options, RunProgress], JobReport],
        kind: Callable[..., Options],
        names: Sequence[str] | str,
        **more: Any,
    ) -> Job:
        """Return the job on TABLE or TABLE..., with these flags and `more` options of its own."""

        def work(progress: RunProgress) -> JobReport:
            tables = [self.table(names)] if isinstance(names, str) else self.tables(names)
            return run(self.run_options(kind, tables, **more), progress)

        return work

    def check(self) -> None:
        """Raise Usage for flags whose values no job would take, without looking anything up."""
        parse_engine(self.engine)
        parse_log_format(self.log_format)
        parse_pairs(self.storage_option or [], "--storage-option")

    def output(self, job: str, names: Sequence[str]) -> Output:
        """Where the command's result goes. `names` are its TABLE arguments."""
        place = None
        if self.report is not None:
            place = ReportPlace(self.report, lambda: self._find_options(names[:1]))
        return Output(
            job=job,
            as_json=self.as_json,
            debug=self.debug,
            place=place,
            commits=hasattr(self, "dry_run"),
            log_format=self.log_format,
            choose_id=lambda: self.run_id,
            table=mask_address(names[0]) if len(names) == 1 and not is_glob(names[0]) else None,
        )

    def _find_options(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the storage options of the first table; without one, those for every table."""
        for table in self._look_up(names, quiet=True) if names or self.everything else ():
            from memwal.store.objects.opening import find_address, normalise_uri

            return find_address(normalise_uri(table.uri), table.storage_options)[1]
        return load(self.config, self.storage_option, quiet=True)[1]


@dataclass(frozen=True, kw_only=True)
class AuditFlags(ReadFlags):
    """The further flags of every command that writes or reads an audit trail."""

    audit: Audit = None

    def check(self) -> None:
        """As for every command, and check the settings that these flags hold."""
        super().check()
        self.settings()

    def tables(
        self,
        names: Sequence[str],
        *,
        quiet: bool = False,
        listed: ListNames | None = None,
    ) -> list[ResolvedTable]:
        """As for every command, with the settings that these flags hold."""
        given = self.settings()
        found = super().tables(names, quiet=quiet, listed=listed)
        return [table.with_settings(given) for table in found]

    def settings(self) -> Settings:
        """The settings that these flags hold. Raises Usage."""
        return make_settings(audit=self.audit)


@dataclass(frozen=True, kw_only=True)
class JobFlags(AuditFlags):
    """The further flags of every command that can change a table."""

    dry_run: DryRun = False
    engine: EngineOption = None
    master: Master = None
    no_lease: NoLease = False
    memory_max: MemoryMax = None

    def settings(self) -> Settings:
        """The settings that these flags hold. Raises Usage."""
        return make_settings(
            audit=self.audit,
            memory_bytes_max=parse_size(self.memory_max, "--memory-max"),
        )

    def run_options(
        self, kind: Callable[..., Options], tables: Sequence[ResolvedTable], **more: Any
    ) -> Options:
        """Make a job's options from these flags."""
        return super().run_options(
            kind,
            tables,
            engine=parse_engine(self.engine),
            master=self.master,
            dry_run=self.dry_run,
            lease=not self.no_lease,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class RescueFlags(AuditFlags):
    """The further flags of what runs in this process: rescue, repair, backup."""

    dry_run: DryRun = False
    no_lease: NoLease = False

    def run_options(
        self, kind: Callable[..., Options], tables: Sequence[ResolvedTable], **more: Any
    ) -> Options:
        """Make a job's options from these flags."""
        own = {"dry_run": self.dry_run, "lease": not self.no_lease}
        return super().run_options(kind, tables, **own, **more)


class DefaultGroup(TyperGroup):
    """Takes words that begin with none of its commands for those of its first one."""

    @property
    def default_command(self) -> str:
        """The command whose word may be left out."""
        return next(iter(self.commands))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, with the command's word where it was left out."""
        word = next((word for word in args if not word.startswith("-")), None)
        helps = not args or (set(args) & {"--help", "-h"} and word is None)
        if not helps and word not in self.commands:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


def command(
    kind: type[ReadFlags] = ReadFlags, *, job: str | None = None
) -> Callable[[Callable[..., Result | Job]], Command]:
    """Turn the function that does a command's work into the command.

    The command has the options of `kind` in place of the function's parameter `flags`, and those
    that its `request` declares (`memwal.options`) in place of that. The function may have a
    parameter `progress` for the run's progress, and `results` to store a report while it runs. Its
    result, or the result of the job that it returns, is shown and stored, and decides the exit
    code; an error is shown without a traceback. `job` is the command's name if it differs from the
    function's.

    The command's method `check` takes the parsed parameters and raises Usage for an invalid value;
    if the function returns a job, the job is not run for that.
    """

    return lambda work: Command(work, kind, job or work.__name__.replace("_", "-"))


class Command:
    """A command: the function that does its work, and the signature that typer reads.

    What that takes is found out when it is asked for, since a run has one command of many.
    """

    def __init__(self, work: Callable[..., Result | Job], kind: type[ReadFlags], name: str) -> None:
        self.work, self.kind, self.name = work, kind, name
        self.__name__, self.__doc__ = work.__name__, work.__doc__
        self.__annotations__: dict[str, Any] = {}  # those are in the signature
        self.asked = inspect.signature(work).parameters
        self.several = "tables" in self.asked

    @cached_property
    def shared(self) -> Mapping[str, Any]:
        """The shared options, with their defaults."""
        several = self.several
        return {f.name: f.default for f in fields(self.kind) if several or f.name != _OF_SEVERAL}

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The types of the function's parameters and of the shared options."""
        own = get_type_hints(self.work, include_extras=True)
        return own | get_type_hints(self.kind, include_extras=True)

    @cached_property
    def requested(self) -> Mapping[str, tuple[Any, Any]]:
        """The options of its request, with their types and defaults."""
        return make_parameters(self.hints[_REQUEST]) if _REQUEST in self.asked else {}

    @cached_property
    def __signature__(self) -> inspect.Signature:
        # The function's own parameters, then those of its request, then the shared ones.
        own = {p.name: p.default for p in self.asked.values() if p.name not in _PROVIDED}
        own |= {"tables": None} if self.several else {}
        requested = {name: default for name, (_, default) in self.requested.items()}
        hints = {**self.hints, **{name: hint for name, (hint, _) in self.requested.items()}}
        return make_signature({**own, **requested, **self.shared}, hints)

    def __call__(self, **values: Any) -> None:
        """Do the work, show and store its result, and exit."""
        flags = self._take(values)
        output = flags.output(self.name, _list_tables(values))

        def run_job(progress: RunProgress) -> Result:
            found = self._call(values, flags=flags, progress=progress, results=output)
            return found if isinstance(found, JobReport | Document) else found(progress)

        output.run(run_job)

    def check(self, **values: Any) -> None:
        """Raise Usage for an invalid value; a job is not run for that."""
        flags = self._take(values)
        flags.check()
        if self.several:
            check_named(_list_tables(values), everything=flags.everything)
        self._call(values, flags=flags, progress=None, results=flags.output(self.name, ()))

    def _take(self, values: dict[str, Any]) -> ReadFlags:
        if self.several:
            values["tables"] = values["tables"] or []
        return self.kind(**{field: values.pop(field) for field in self.shared})

    def _call(self, values: dict[str, Any], **provided: object) -> Result | Job:
        given = {name: values.pop(name) for name in self.requested}
        if _REQUEST in self.asked:
            provided[_REQUEST] = read_request(self.hints[_REQUEST], given)
        return self.work(**values, **{k: v for k, v in provided.items() if k in self.asked})


def make_signature(defaults: Mapping[str, Any], hints: Mapping[str, Any]) -> inspect.Signature:
    """Make a signature of keywords only for typer to read."""
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
            )
            for name, default in defaults.items()
        ]
    )


def _list_tables(values: Mapping[str, Any]) -> Sequence[str]:
    found: Sequence[str] = values.get("tables", ())
    return [values["table"]] if "table" in values else found


def load(
    config: str | None, options: list[str] | None, *, quiet: bool = False
) -> tuple[Config, dict[str, str]]:
    """Load the configuration file, and the storage options that take precedence over it.

    Those are the environment's, overridden by the flags'. A file that was not asked for is named on
    stderr. Raises Usage.
    """
    loaded = load_config(config)
    if not quiet and find_named_file(config) is None and Path(DEFAULT_FILE).exists():
        file = Path(DEFAULT_FILE).absolute()
        stderr().print(f"configuration: {file}, found in the current folder", style="dim")
    pairs = parse_pairs(options or [], "--storage-option")
    return loaded, {**read_environment_options(), **pairs}


def make_lister(config: Config, storage_options: Mapping[str, str]) -> ListNames:
    """Make what lists a glob's namespace, or a folder; imports Lance late, as everywhere."""

    def list_names(glob: Glob) -> list[str]:
        if isinstance(glob, Folder):
            from memwal.store.objects.opening import open_objects
            from memwal.store.tables.folders import find_tables

            place = resolve_table(glob.name, config, storage_options)
            return find_tables(open_objects(place.uri, place.storage_options, SystemClock()))
        from memwal.store.tables import namespaces

        return namespaces.list_names(glob)

    return list_names


def _list_what_answers(config: Config, storage_options: Mapping[str, str]) -> ListNames:
    """As `make_lister`; a folder that can't be listed is taken for a table, and fails as one."""
    list_names = make_lister(config, storage_options)

    def list_or_none(glob: Glob) -> list[str]:
        try:
            return list_names(glob)
        except (StoreUnavailable, BadCredentials):
            if isinstance(glob, Folder):
                return []
            raise

    return list_or_none


def _resolve_one(name: str, config: Config, options: Mapping[str, str]) -> ResolvedTable:
    """As `resolve_table`; a table whose settings can't be told fails as one, the others go on."""
    try:
        return resolve_table(name, config, options)
    except Usage as error:
        masked = mask_address(name)
        return ResolvedTable(
            name=masked, uri=masked, settings=Settings(), storage_options={}, problem=str(error)
        )


def _drop_repeated(
    tables: Sequence[ResolvedTable], config: Config, *, quiet: bool
) -> list[ResolvedTable]:
    """Keep one entry for each table, however often and by whatever names it is given.

    A name in the configuration, with its settings, wins over an address, whichever came first.
    Raises Usage if two configured names stand for one table but have different settings.
    """
    from memwal.store.objects.opening import same_place

    found: dict[object, ResolvedTable] = {}
    for table in tables:
        try:
            place = same_place(table.uri, table.storage_options)
        except MemWalError:
            place = table.name  # the error shows up when the table is opened
        before = found.setdefault(place, table)
        if before is table:
            continue
        if not quiet:
            stderr().print(f"{table.name} and {before.name} are one table", style="dim")
        if table.name not in config.tables:
            continue
        if before.name not in config.tables:
            found[place] = table
        elif _pick_settings(table) != _pick_settings(before):
            raise Usage(
                f"{before.name} and {table.name} are one table, with two configurations: name one"
            )
    return list(found.values())


def _pick_settings(table: ResolvedTable) -> object:
    return table.settings, table.storage_options, table.policy
