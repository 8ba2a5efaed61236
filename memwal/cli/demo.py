"""`memwal demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memwal.cli import process
from memwal.cli.console import RunProgress, stderr, stdout
from memwal.cli.flags import Debug, Json
from memwal.cli.output import Output
from memwal.cli.requests import parse_engine
from memwal.config import read_environment_settings
from memwal.report import JobReport

Folder = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="Default: a new temporary folder.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="auto|spark|local", help="Where the work runs (default: spark, if it can start)."
    ),
]


def demo(
    folder: Folder = None, engine: Engine = None, debug: Debug = False, as_json: Json = False
) -> None:
    """Make a table with a live MemWAL, and run the jobs on it."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.demo import run_demo

        process.resume_collecting()
        settings = read_environment_settings()
        # With --json the story goes to stderr, as stdout holds one document.
        console = stderr() if as_json else stdout()

        def tell(text: str) -> None:
            for line in text.splitlines():
                console.print(line, soft_wrap=True, markup=False, highlight=False)

        return run_demo(
            folder,
            tell,
            engine=parse_engine(engine) or settings.get("engine"),
            master=settings.get("master"),
        )

    Output(job="demo", as_json=as_json, debug=debug, shows=False).run(work)
