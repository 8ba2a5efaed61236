"""`memwal submit`: a job through spark-submit."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import replace
from inspect import Parameter, unwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from memwal.cli.console import stderr
from memwal.cli.flags import make_signature
from memwal.cli.output import name_explanation
from memwal.cli.requests import make_parameters, read_request
from memwal.config import read_environment_settings
from memwal.errors import MemWalError, Usage, unexpected
from memwal.run.engines.launcher import check_java
from memwal.run.submit import (
    JOBS,
    SHIPPED,
    SparkSubmit,
    find_spark_submit,
    is_local,
    run_command,
    zip_package,
)

Job = Annotated[str, typer.Argument(metavar="JOB", help="The command to run, such as merge.")]
Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE... [OPTIONS]",
        help="The job's own. Put those that submit has too, such as --dry-run, after --.",
    ),
]


def submit(context: typer.Context, job: str, arguments: list[str], **values: Any) -> None:
    """Run a job through spark-submit.

    It takes the options of the job's own command.
    """
    try:
        if job not in JOBS:
            raise Usage(f"JOB {job!r}: expected one of {', '.join(JOBS)}")
        _check(context, job, arguments)
        found: SparkSubmit = read_request(SparkSubmit, values)
        master = found.master or read_environment_settings().get("master")
        asked = replace(found, job=job, arguments=arguments, master=master)
        with tempfile.TemporaryDirectory() as folder:
            if not is_local(master):
                # A command that is only printed names the file that would be created.
                shipped = SHIPPED if asked.dry_run else str(zip_package(Path(folder)))
                asked = replace(asked, py_files=(*asked.py_files, shipped))
            asked.check()
            program = find_spark_submit()
            command = asked.command(program)
            if asked.dry_run:
                print(shlex.join(command))
                return
            asked.check_archive()
            check_java(program)
            code = run_command(command, is_driver_here=asked.is_driver_here)
    except (MemWalError, ModuleNotFoundError) as error:
        known = error if isinstance(error, MemWalError) else unexpected(error)
        stderr().print(f"error: {known}", style="red")
        name_explanation([str(known)])
        code = known.exit_code
    raise SystemExit(code)


_OPTIONS = make_parameters(SparkSubmit)
submit.__signature__ = make_signature(  # type: ignore[attr-defined]
    {
        **dict.fromkeys(("context", "job", "arguments"), Parameter.empty),
        **{name: default for name, (_, default) in _OPTIONS.items()},
    },
    {
        "context": typer.Context,
        "job": Job,
        "arguments": Arguments,
        **{name: hint for name, (hint, _) in _OPTIONS.items()},
    },
)


def _check(context: typer.Context, job: str, arguments: list[str]) -> None:
    """Raise Usage for options that the job does not have, and for values that it does not take.

    This is done before a JVM is started.
    """
    group: Any = context.find_root().command
    command = group.commands[job]
    unwrap(command.callback).check(**command.make_context(f"memwal {job}", list(arguments)).params)
