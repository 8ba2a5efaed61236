"""`memwal submit`: a job through spark-submit."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from memwal.cli.console import stderr
from memwal.cli.flags import Master
from memwal.cli.output import name_explanation
from memwal.config import read_environment_settings
from memwal.errors import MemWalError, Usage, unexpected

Job = Annotated[str, typer.Argument(metavar="JOB", help="The command to run, such as merge.")]
Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE... [OPTIONS]",
        help="The job's own. Put those that submit has too, such as --dry-run, after --.",
    ),
]
DeployMode = Annotated[
    str | None,
    typer.Option(
        "--deploy-mode",
        metavar="client|cluster",
        help="Where the driver runs. In client mode, the default, the exit code is the job's.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="K=V", help="A Spark property; repeatable."),
]
PropertiesFile = Annotated[
    str | None,
    typer.Option(
        "--properties-file", metavar="FILE", help="A file of Spark properties; use it for secrets."
    ),
]
PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="FILE",
        help="Added to the executors' path, as this memwal is unless the master is local; "
        "repeatable.",
    ),
]
Archives = Annotated[
    str | None,
    typer.Option(
        "--archives",
        metavar="FILE[#NAME]",
        help="A packed environment (venv-pack, conda-pack) whose Python executors are to run.",
    ),
]
PrintOnly = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the command and run nothing; memwal.zip is not made."),
]


def submit(
    context: typer.Context,
    job: Job,
    arguments: Arguments,
    master: Master = None,
    deploy_mode: DeployMode = None,
    conf: Conf = None,
    properties_file: PropertiesFile = None,
    py_files: PyFiles = None,
    archives: Archives = None,
    dry_run: PrintOnly = False,
) -> None:
    """Run a job through spark-submit.

    It takes the options of the job's own command.
    """
    from memwal.run.submit import (
        JOBS,
        SHIPPED,
        SparkSubmit,
        find_spark_submit,
        is_local,
        run_command,
        zip_package,
    )

    try:
        if job not in JOBS:
            raise Usage(f"JOB {job!r}: expected one of {', '.join(JOBS)}")
        _check(context, job, arguments)
        master = master or read_environment_settings().get("master")
        with tempfile.TemporaryDirectory() as folder:
            shipped = []
            if not is_local(master):
                # A command that is only printed names the file that would be created.
                shipped = [SHIPPED if dry_run else str(zip_package(Path(folder)))]
            asked = SparkSubmit(
                job=job,
                arguments=arguments,
                master=master,
                deploy_mode=deploy_mode,
                conf=conf or (),
                properties_file=properties_file,
                py_files=(*(py_files or ()), *shipped),
                archives=archives,
            )
            asked.check()
            command = asked.command(find_spark_submit())
            if dry_run:
                print(shlex.join(command))
                return
            asked.check_archive()
            code = run_command(command, is_driver_here=asked.is_driver_here)
    except (MemWalError, ModuleNotFoundError) as error:
        code = _tell(error if isinstance(error, MemWalError) else unexpected(error))
    raise SystemExit(code)


def _tell(error: MemWalError) -> int:
    stderr().print(f"error: {error}", style="red")
    name_explanation([str(error)])
    return error.exit_code


def _check(context: typer.Context, job: str, arguments: list[str]) -> None:
    """Raise Usage for options that the job does not have, and for values that it does not take.

    This is done before a JVM is started.
    """
    group: Any = context.find_root().command
    command = group.commands[job]
    command.callback.check(**command.make_context(f"memwal {job}", list(arguments)).params)
