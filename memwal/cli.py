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
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from memwal.config import Config, Settings, load_config, parse_storage_options, resolve_table
from memwal.console import RunProgress, show_report, stderr, stdout
from memwal.errors import MemWalError, Usage
from memwal.layout import parse_shard_id
from memwal.plan.merge import MergeRequest
from memwal.report import JobReport

# Lance prints an error about its own field-less MemWAL index at every commit, and pyarrow datasets
# warn about forks; neither tells an operator anything.
os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

EXIT_CANCELLED = 130

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


class Output:
    """Where a command's report goes, and how its errors end."""

    def __init__(
        self, job: str, *, as_json: bool, debug: bool = False, report: Path | None = None
    ) -> None:
        self._job = job
        self._json = as_json
        self._debug = debug
        self._file = report

    def run(self, work: Callable[[RunProgress], JobReport]) -> NoReturn:
        """Run the job, print its report, exit with its code. No traceback without `--debug`."""
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with RunProgress(debug=self._debug) as progress:
                report = work(progress)
        except KeyboardInterrupt:
            stderr().print("cancelled; what was committed stays, run again to go on")
            raise SystemExit(EXIT_CANCELLED) from None
        except MemWalError as error:
            report = self._from_error(error, error.outcome, error.exit_code)
        except Exception as error:
            text = f"unexpected {type(error).__name__}: {error}"
            report = self._from_error(error, "failed", 1, text)
        self._show(report)
        raise SystemExit(report.exit_code)

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
        else:
            show_report(report, stdout())
        if report.error:
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


def main(arguments: list[str] | None = None) -> None:
    """The `memwal` command."""
    app(arguments)


if __name__ == "__main__":
    main()
