"""The operator's command line. Wiring and jobs live in `jobs/`; this is arguments and output."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.markup import escape

from memwal.config import Config, Settings, load_config, parse_storage_options, resolve_table
from memwal.console import RunProgress, show_document, show_report, stderr, stdout
from memwal.errors import MemWalError, Usage
from memwal.layout import parse_shard_id
from memwal.plan.merge import MergeRequest
from memwal.report import JobReport

# Lance prints an error about its own field-less MemWAL index at every commit, and pyarrow datasets
# warn about forks; neither tells an operator anything.
os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

EXIT_CANCELLED = 130

T = TypeVar("T")

app = typer.Typer(
    name="memwal",
    help="Keeps the MemWAL write tier of Lance tables healthy.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
inspect_app = typer.Typer(help="Shows what is stored, decoded.", no_args_is_help=True)
app.add_typer(inspect_app, name="inspect")

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
    typer.Option("--storage-option", metavar="K=V", help="As pylance takes them; repeatable."),
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="auto|spark|local", envvar="MEMWAL_ENGINE",
                 help="Where the work runs (default: auto)."),
]  # fmt: skip
Master = Annotated[
    str | None, typer.Option("--master", envvar="MEMWAL_MASTER", help="Spark master.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done; change nothing.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="MEMWAL_DEBUG", help="Show tracebacks of errors.")
]
Untested = Annotated[
    bool, typer.Option("--allow-untested-lance", help="Run on a pylance that was never tested.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON document here too.")
]


Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Default: the latest.")
]
Shard = Annotated[str | None, typer.Option("--shard", metavar="ID", help="Only this one.")]


class Output:
    """Where a command's report goes, and how its errors end."""

    def __init__(
        self,
        job: str,
        *,
        as_json: bool,
        debug: bool = False,
        report: Path | None = None,
        shows: bool = True,
    ) -> None:
        self._job = job
        # spark-submit sends a Python driver's stderr to stdout, where it would break the document.
        self._quiet = as_json and "PYSPARK_GATEWAY_PORT" in os.environ
        self._json = as_json
        self._debug = debug
        self._file = report
        self._shows = shows

    def run(self, work: Callable[[RunProgress], JobReport]) -> NoReturn:
        """Run the job, print its report, exit with its code. No traceback without `--debug`."""
        report = self._guarded(work)
        self._show(report)
        raise SystemExit(report.exit_code)

    def run_document(self, work: Callable[[RunProgress], dict[str, object]]) -> NoReturn:
        """Run a command that reads one thing, print it, exit. Errors end as in `run`."""
        found = self._guarded(work)
        if isinstance(found, JobReport):
            self._show(found)
            raise SystemExit(found.exit_code)
        if self._json:
            sys.stdout.write(json.dumps(found, indent=2) + "\n")
        else:
            show_document(found, stdout())
        raise SystemExit(0)

    def _guarded(self, work: Callable[[RunProgress], T]) -> T | JobReport:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with RunProgress(debug=self._debug, quiet=self._quiet) as progress:
                return work(progress)
        except KeyboardInterrupt:
            stderr().print("cancelled; what was committed stays, run again to go on")
            raise SystemExit(EXIT_CANCELLED) from None
        except MemWalError as error:
            return self._from_error(error, error.outcome, error.exit_code)
        except Exception as error:
            text = f"unexpected {type(error).__name__}: {error}"
            return self._from_error(error, "failed", 1, text)

    def _from_error(
        self, error: Exception, outcome: str, code: int, text: str | None = None
    ) -> JobReport:
        if self._debug:
            stderr().print(escape("".join(traceback.format_exception(error))))
        return JobReport(job=self._job, outcome=outcome, error=text or str(error), exit_code=code)

    def _show(self, report: JobReport) -> None:
        document = json.dumps(report.to_json(), indent=2)
        if self._file is not None:
            self._file.write_text(document + "\n")
        if self._json:
            sys.stdout.write(document + "\n")
        elif self._shows:
            show_report(report, stdout())
        if report.error and not self._quiet:
            stderr().print(f"error: {escape(report.error)}", style="red")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _settings(**values: object) -> Settings:
    return Settings.model_validate({k: v for k, v in values.items() if v is not None})


def _engine(name: str | None) -> str | None:
    if name not in (None, "auto", "spark", "local"):
        raise Usage(f"--engine {name!r}: expected auto, spark or local")
    return name


def _load(config: str | None, options: list[str] | None) -> tuple[Config, dict[str, str]]:
    return load_config(config), parse_storage_options(options or [])


@app.command()
def status(
    tables: Tables,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
    report: Report = None,
) -> None:
    """Show shards, pending generations, merge progress and index lag."""

    def work(progress: RunProgress) -> JobReport:
        # Imported late, here and below: lance alone takes longer to import than --help may take.
        from jobs._launch import RunOptions, run_status

        loaded, options = _load(config, storage_option)
        return run_status(
            RunOptions(
                tables=[resolve_table(t, loaded, options) for t in tables],
                untested_lance_allowed=allow_untested_lance,
            )
        )

    Output("status", as_json=as_json, debug=debug, report=report).run(work)


@app.command()
def merge(
    tables: Tables,
    shard: Annotated[
        list[str] | None, typer.Option("--shard", metavar="ID", help="Only these; repeatable.")
    ] = None,
    until_generation: Annotated[
        int | None, typer.Option("--until-generation", metavar="N", min=1, help="Up to this one.")
    ] = None,
    generations_per_commit_max: Annotated[
        int | None,
        typer.Option("--generations-per-commit-max", metavar="N", min=1,
                     envvar="MEMWAL_GENERATIONS_PER_COMMIT_MAX"),
    ] = None,
    bytes_per_commit_max: Annotated[
        int | None,
        typer.Option("--bytes-per-commit-max", metavar="N", min=1,
                     envvar="MEMWAL_BYTES_PER_COMMIT_MAX",
                     help="In-memory bytes; at least one generation is always taken."),
    ] = None,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Pass over missing generation numbers.")
    ] = False,
    allow_reinitialised: Annotated[
        bool,
        typer.Option("--allow-reinitialised",
                     help="Merge generations that are older than the table's MemWAL index."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    engine: EngineOption = None,
    master: Master = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
    report: Report = None,
) -> None:  # fmt: skip
    """Fold flushed generations into the base table, oldest first."""

    def work(progress: RunProgress) -> JobReport:
        from jobs._launch import MergeOptions, run_merge

        loaded, options = _load(config, storage_option)
        return run_merge(
            MergeOptions(
                tables=[resolve_table(t, loaded, options) for t in tables],
                engine=_engine(engine),
                master=master,
                dry_run=dry_run,
                untested_lance_allowed=allow_untested_lance,
                shards=[parse_shard_id(s) for s in shard or []],
                request=MergeRequest(
                    until_generation=until_generation,
                    holes_allowed=allow_holes,
                    reinitialised_allowed=allow_reinitialised,
                ),
                limits=_settings(
                    generations_per_commit_max=generations_per_commit_max,
                    bytes_per_commit_max=bytes_per_commit_max,
                ),
            ),
            progress,
        )

    Output("merge", as_json=as_json, debug=debug, report=report).run(work)


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Default: a new temporary folder.")
    ] = None,
    engine: EngineOption = "spark",
    master: Master = None,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Make a real table with a live MemWAL, merge it, show before and after."""

    def work(progress: RunProgress) -> JobReport:
        from jobs._demo import run_demo

        # With --json the story goes to stderr: stdout holds one document.
        shown = stderr() if as_json else stdout()
        return run_demo(folder, shown, progress, engine=_engine(engine) or "auto", master=master)

    Output("demo", as_json=as_json, debug=debug, shows=False).run(work)


def _inspect(
    what: str,
    table: str,
    options: tuple[str | None, list[str] | None, bool, bool],
    *,
    as_json: bool,
    shard: str | None = None,
    version: int | None = None,
) -> NoReturn:
    config, storage_option, debug, untested = options

    def work(progress: RunProgress) -> dict[str, object]:
        from jobs._inspect import run_inspect

        loaded, given = _load(config, storage_option)
        return run_inspect(
            what,
            resolve_table(table, loaded, given),
            shard=None if shard is None else parse_shard_id(shard),
            version=version,
            untested_lance_allowed=untested,
        )

    Output(f"inspect {what}", as_json=as_json, debug=debug).run_document(work)


@inspect_app.command("index")
def inspect_index(
    table: OneTable,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """The MemWAL index details of a table version."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("index", table, options, as_json=as_json, version=version)


@inspect_app.command("manifest")
def inspect_manifest(
    table: OneTable,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """A table version's manifest file, as far as memwal reads it."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("manifest", table, options, as_json=as_json, version=version)


@inspect_app.command("shard")
def inspect_shard(
    table: OneTable,
    shard: Shard = None,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """Shard manifests, next to the table's merge progress."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("shard", table, options, as_json=as_json, shard=shard, version=version)


@inspect_app.command("wal")
def inspect_wal(
    table: OneTable,
    shard: Shard = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """WAL entries: position, epoch, generation, rows, sentinels."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("wal", table, options, as_json=as_json, shard=shard)


def main(arguments: list[str] | None = None) -> None:
    """The `memwal` command."""
    app(arguments)


if __name__ == "__main__":
    main()
